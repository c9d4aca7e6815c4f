//! One iteration.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use evenstep_c10d::{Group, cuda};
use evenstep_sensors::memory::own_peak_bytes;
use tch::{Device, Kind};

use super::replica::Replica;
use super::shares::Shares;
use super::worker::Worker;
use crate::claims::ClaimSummary;
use crate::collective::{Contribution, RankReport, RankRequests, RequestCounts};
use crate::model::{Computed, kind_of};
use crate::progress::{CompletedStep, Output};
use crate::training::At;

impl Worker<'_> {
    /// Runs one iteration of one replica. Returns the requests of all ranks at its end.
    ///
    /// # Errors
    /// A rank has left, a gradient is wrong, or a write failed.
    pub fn step(&mut self, group: &Group, replica: &mut Replica) -> Result<RequestCounts> {
        let iteration = replica.iteration;
        self.iterate(group, replica).with_context(|| format!("iteration {iteration} ({})", replica.policy))
    }

    fn iterate(&mut self, group: &Group, replica: &mut Replica) -> Result<RequestCounts> {
        let (policy, iteration, epoch) = (replica.policy, replica.iteration, replica.cursor.epoch());
        let (at, size) = (At { policy, iteration, epoch }, replica.cursor.size(replica.global_batch, 0));

        // Plan: assigns samples to ranks, the same on all ranks.
        let started = Instant::now();
        let planned = replica.planner.plan(group, iteration, size);
        let (plan, begun) = (&planned.plan, Instant::now());
        self.observer.compute_started(plan.budget_s(group.rank()));

        // Load and compute: this rank's share, then chunks of the shared tail.
        let pool = plan.pool(group.rank());
        let mut turn = self.claims.turn(policy, pool.as_ref(), begun)?;
        let rank = group.rank();
        let output = || Output::new(format!("rank {rank}"));
        let mut shares = Shares::begin(
            &mut self.compute,
            (&*replica.model, &replica.parameters),
            (&*self.training.data, &replica.cursor),
            self.device,
        );
        let mut part = Some(plan.share(rank));
        while let Some(share) = part {
            shares.add(share, output, |before, last| Ok(turn.request_ahead(before, last)?))?;
            self.observer.samples_computed(replica.cursor.slice(share.offset, share.local_batch));
            part = turn.next(&shares.computed)?;
        }
        let Shares { computed, loader_wait_s, .. } = shares;
        let did = turn.end(&computed);

        // Reduce: one all-reduce carries the gradients, the reports and the next plan.
        let report = self.report(begun, &computed, did, loader_wait_s);
        let (rank_requests, next) = (self.rank_requests(), replica.planner.newest());
        let own = Contribution { report, loss_sum: computed.loss_sum, rank_requests, plan: next };
        self.observer.all_reduce_started(at)?;
        let reduced = replica.bucket.all_reduce(group, &replica.parameters, own)?;
        self.observer.all_reduce_finished();
        ensure!(
            reduced.samples == size,
            "all ranks together computed {} samples instead of {size}",
            reduced.samples
        );
        self.claims.settle(policy, plan, &reduced.reports, &computed);
        let verifying = Instant::now();
        let gradient_difference = self.verify(group, replica, size)?;
        let verified_s = verifying.elapsed().as_secs_f64();

        // Optimizer step, at the learning rate of the plan.
        let lr_multiplier = plan.rate().at(iteration);
        let learning_rate = self.training.options.step.lr * lr_multiplier;
        replica.optimizer.step(&replica.parameters, &replica.bucket.gradient(self.device), learning_rate);
        let step_time_s = started.elapsed().as_secs_f64() - verified_s;
        self.observer.step_finished(at)?;

        // Report, and request the next plan.
        if let Some(log) = &mut self.log {
            let (planned, reduced) = (&planned, &reduced);
            let step = CompletedStep {
                planned,
                reduced,
                size,
                lr_multiplier,
                step_time_s,
                gradient_difference,
                policy,
                iteration,
                epoch,
            };
            self.observer.iteration_logged(log.iteration(&step))?;
        }
        let next_size = replica.cursor.size(replica.planner.in_force().global_batch(), 2);
        replica.planner.learn(iteration, reduced.plan, next_size);
        replica.cursor.advance(size);
        replica.iteration += 1;
        Ok(reduced.request_counts)
    }

    /// Returns this rank's report of the iteration; `begun` is the start of its compute.
    fn report(
        &mut self,
        begun: Instant,
        computed: &Computed,
        did: ClaimSummary,
        loader_wait_s: f64,
    ) -> RankReport {
        RankReport {
            local_batch: computed.samples,
            micro_batches: computed.micro_batches,
            compute_time_s: computed.compute_time_s,
            loader_wait_s,
            drivers: self.drivers.read(Instant::now()).readings,
            busy_s: begun.elapsed().as_secs_f64(),
            pace_missed: self.compute.pace.as_ref().map_or(0, |pace| pace.missed()),
            peak_memory_bytes: match self.device {
                // Not a part of the run: without the value, the report only lacks it.
                Device::Cuda(index) => cuda::peak_bytes(index).ok(),
                _ => own_peak_bytes(),
            },
            gradient_sqr: None,
            tail: did.tail,
            additions: did.additions,
        }
    }

    /// Returns this rank's requests at the end of the iteration.
    fn rank_requests(&mut self) -> RankRequests {
        self.leaving = self.flags.leave();
        RankRequests { stop: self.flags.stop(), leave: self.leaving, regroup: self.called }
    }

    /// On rank 0, in the selected iterations: compares the gradient of uneven shares with the one-process
    /// gradient.
    fn verify(&self, group: &Group, replica: &Replica, size: u64) -> Result<Option<f64>> {
        let every = self.training.options.verify_gradient;
        let due = every.is_some_and(|every| replica.iteration.is_multiple_of(every));
        if !due || group.rank() != 0 {
            return Ok(None);
        }
        let whole = self.training.data.batch(replica.cursor.slice(0, size), self.device);
        let difference = replica.gradient_difference(&whole);
        let (kind, _) = kind_of(&replica.parameters);
        let tolerance = if kind == Kind::Double { 1e-12 } else { 1e-5 };
        ensure!(
            difference <= tolerance,
            "the gradient differs from the one-process gradient by {difference:.2e} of its largest entry; the tolerance of {} is \
             {tolerance:.0e}",
            Replica::dtype(kind)
        );
        Ok(Some(difference))
    }
}
