//! One worker: the training loop.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use evenstep_agent::Boundary;
use evenstep_agent::source::memory::own_peak_bytes;
use evenstep_c10d::Group;
use tch::Device;

use crate::arm::Arm;
use crate::background::Background;
use crate::checkpoint::{self, Identity, State, Tensors};
use crate::claims::{Claims, Did};
use crate::cli::{JoinArgs, Policy};
use crate::collective::{Contribution, RankReport, Wished, Wishes};
use crate::compute::{Compute, Computed};
use crate::data::{Dataset, HELD_OUT_SAMPLES};
use crate::elastic::{self, Told};
use crate::moments::{MomentsLog, Watch};
use crate::narrator::{Narrator, Step};
use crate::output::Output;
use crate::pace::Pace;
use crate::plan::Share;
use crate::rate::Rate;
use crate::rule::Beginning;
use crate::sample_log::SampleLog;
use crate::setup;

/// Everything that a worker works with, beside its replicas.
pub struct Worker<'a> {
    /// What was asked for.
    pub args: &'a JoinArgs,
    /// What is trained on.
    pub data: Dataset,
    /// Where it computes.
    pub device: Device,
    /// How it computes.
    pub compute: Compute,
    /// How it takes part of an iteration's tail.
    pub claims: Claims,
    /// Reads the machine at the boundary of an iteration.
    pub drivers: Boundary,
    /// What it trains beside the run, where that is wanted.
    pub background: Option<Background>,
    /// What it was told from outside.
    pub told: Told,
    /// Whether somebody waits to take part.
    pub called: bool,
    /// Whether it told the others that it leaves.
    pub leaving: bool,
    /// What it computed, where that is wanted.
    pub sample_log: Option<SampleLog>,
    /// When it did what, where that is wanted.
    pub timeline: Option<MomentsLog>,
    /// Rank 0's record, reports and progress.
    pub narrator: Option<Narrator>,
}

/// Trains as one worker, from the first word on the store to the last report.
///
/// # Errors
/// Values that do not go together, data that cannot be used, a worker that is gone, a gradient that is wrong.
pub fn run(args: &JoinArgs) -> Result<()> {
    if args.train.elastic {
        return elastic::run(args);
    }
    let (mut worker, group, mut arms) = setup::prepare(args)?;
    let trained = train(&mut worker, &group, &mut arms);
    // The others must see at once that this worker has left the group, whatever it still has to deliver.
    drop(group);
    worker.conclude(&arms, trained?)?;
    worker.close(&mut arms);
    Ok(())
}

/// Trains to the end of the run; true where it was told to stop before.
fn train(worker: &mut Worker<'_>, group: &Group, arms: &mut [Arm]) -> Result<bool> {
    let mut stopped = false;
    'rounds: while arms.iter().any(|arm| !worker.is_done(arm)) {
        let begun = arms[0].iteration;
        let block = if arms.len() > 1 { worker.args.train.block } else { 1 };
        for arm in arms.iter_mut() {
            while arm.iteration < begun + block && !worker.is_done(arm) {
                if worker.step(group, arm)?.stop > 0 {
                    stopped = true;
                    break 'rounds;
                }
            }
        }
        worker.checkpoint_since(begun, arms)?;
    }
    if stopped {
        worker.checkpoint(arms)?;
    }
    group.barrier().context("waiting for the others to finish")?;
    Ok(stopped)
}

impl Worker<'_> {
    /// One iteration of one replica; returns what ranks want when it is done.
    ///
    /// # Errors
    /// A rank is gone, a gradient is wrong, something cannot be written.
    pub fn step(&mut self, group: &Group, arm: &mut Arm) -> Result<Wished> {
        let iteration = arm.iteration;
        self.iterate(group, arm).with_context(|| format!("iteration {iteration} ({})", arm.policy))
    }

    fn iterate(&mut self, group: &Group, arm: &mut Arm) -> Result<Wished> {
        let train = &self.args.train;
        let size = arm.cursor.size(arm.global_batch, 0);

        let started = Instant::now();
        let planned = arm.planner.plan(group, arm.iteration, size)?;

        self.background.iter().for_each(|job| job.door().allow(planned.plan.budget_s(group.rank())));
        let begun = Instant::now();
        let seat = planned.plan.seat(group.rank());
        let mut turn = self.claims.turn(arm.policy, seat.as_ref(), begun)?;
        let mut computed = self.compute.begin(&mut arm.model);
        let mut watch = Watch::begin(started);
        let (mut parts, mut loader_wait_s) = (Vec::new(), 0.0);
        let mut part = Some(planned.plan.share(group.rank()));
        while let Some(Share { offset, local_batch }) = part {
            let loading = Instant::now();
            let indices = arm.cursor.slice(offset, local_batch);
            let batch = self.data.train.gather(indices, arm.model.kind(), self.device);
            loader_wait_s += loading.elapsed().as_secs_f64();
            let ask = |before: &Computed, last: u64| turn.ask_ahead(before, last);
            self.compute.add(&arm.model, &batch, &mut computed, ask)?;
            parts.push(indices);
            watch.computed(offset, local_batch);
            part = turn.next(&computed)?;
            watch.claimed(seat.is_some());
        }
        let did = turn.end(&computed);

        let report = self.report(begun, &computed, did, loader_wait_s);
        let (wishes, news) = (self.wishes(), arm.planner.news());
        let own = Contribution { report, loss_sum: computed.loss_sum, wishes, news };
        if let Some(log) = &mut self.sample_log {
            log.computed(arm.policy, arm.iteration, arm.cursor.epoch(), parts.into_iter().flatten())?;
        }
        watch.arrives();
        let reduced = arm.bucket.all_reduce(group, &arm.model, own)?;
        self.background.iter().for_each(|job| job.door().allow(0.0));
        if let Some(log) = &mut self.timeline {
            log.write(arm.policy, arm.iteration, watch)?;
        }
        ensure!(reduced.samples == size, "{} samples were computed, and not {size}", reduced.samples);
        self.claims.settle(arm.policy, &planned.plan, &reduced.reports, &computed);

        let verifying = Instant::now();
        let gradient_difference = self.verify(group, arm, size)?;
        let verified_s = verifying.elapsed().as_secs_f64();

        let lr_multiplier = planned.plan.rate().at(arm.iteration);
        let learning_rate = train.task.lr * lr_multiplier;
        arm.optimizer.step(arm.model.parameters(), &arm.bucket.gradient(self.device), learning_rate);
        let step_time_s = started.elapsed().as_secs_f64() - verified_s;

        if let Some(log) = &mut self.sample_log {
            log.finished(arm.policy, arm.iteration)?;
        }
        if let Some(narrator) = &mut self.narrator {
            let (planned, reduced) = (&planned, &reduced);
            let step = Step { planned, reduced, size, lr_multiplier, step_time_s, gradient_difference };
            narrator.tell(arm, &step)?;
        }
        arm.planner.learn(arm.iteration, &reduced, &arm.cursor);
        arm.cursor.advance(size);
        arm.iteration += 1;
        Ok(reduced.wished)
    }

    /// How an iteration went for this rank, that it began to compute at `begun`.
    fn report(&mut self, begun: Instant, computed: &Computed, did: Did, loader_wait_s: f64) -> RankReport {
        RankReport {
            local_batch: computed.samples,
            micro_batches: computed.micro_batches,
            compute_time_s: computed.compute_time_s,
            loader_wait_s,
            drivers: self.drivers.read(Instant::now()).readings,
            busy_s: begun.elapsed().as_secs_f64(),
            pace_missed: self.compute.pace.as_ref().map_or(0, Pace::missed),
            // The allocator of a GPU is not read yet.
            peak_memory_bytes: (self.device == Device::Cpu).then(own_peak_bytes).flatten(),
            gradient_sqr: None,
            tail: did.tail,
            additions: did.additions,
        }
    }

    /// What this rank wants when the iteration is done.
    fn wishes(&mut self) -> Wishes {
        self.leaving = self.told.leave.load(Ordering::Relaxed);
        let stop = self.told.stop.load(Ordering::Relaxed);
        Wishes { stop, leave: self.leaving, regroup: self.called }
    }

    /// On rank 0, in the iterations that were chosen: the gradient of uneven shares against that of one process.
    fn verify(&self, group: &Group, arm: &Arm, size: u64) -> Result<Option<f64>> {
        let due = self.args.train.verify_gradient.is_some_and(|every| arm.iteration.is_multiple_of(every));
        if !due || group.rank() != 0 {
            return Ok(None);
        }
        let whole = self.data.train.gather(arm.cursor.slice(0, size), arm.model.kind(), self.device);
        let difference = arm.gradient_difference(&whole);
        let (dtype, tolerance) = self.args.train.task.dtype.tolerance();
        ensure!(
            difference <= tolerance,
            "the gradient differs from that of one process by {difference:.2e} of its largest entry; {dtype} allows \
             {tolerance:.0e}"
        );
        Ok(Some(difference))
    }

    /// Whether a replica has trained for as long as was asked for.
    pub fn is_done(&self, arm: &Arm) -> bool {
        let train = &self.args.train;
        match train.steps {
            Some(steps) => arm.iteration >= steps,
            None => arm.cursor.epoch() >= train.epochs.unwrap_or(1),
        }
    }

    /// Iterations of each replica, as long as there are as many workers as the run began with.
    pub fn iterations(&self) -> u64 {
        let train = &self.args.train;
        let in_epoch = self.data.train.len().div_ceil(train.whole_batch(self.args.world_size));
        train.steps.unwrap_or(train.epochs.unwrap_or(1) * in_epoch)
    }

    /// The rate of a replica that begins an iteration among these workers; `before` is what was in force.
    pub fn rate(&self, arm: &Arm, before: Option<Rate>) -> Rate {
        let dataset_samples = self.data.train.len();
        let begin = Beginning {
            iteration: arm.iteration,
            global_batch: arm.global_batch,
            base_global_batch: self.args.train.base_batch(self.args.world_size),
            samples: arm.cursor.epoch() * dataset_samples + arm.cursor.position(),
            dataset_samples,
        };
        self.args.train.rule.rate(before, begin)
    }

    /// What makes this run this run.
    pub fn identity(&self) -> Identity {
        let train = &self.args.train;
        Identity {
            seed: train.task.seed,
            global_batch: train.base_batch(self.args.world_size),
            per_worker_batch: train.per_worker_batch,
            model: train.task.model_name(),
            dtype: train.task.dtype.tolerance().0.to_owned(),
            data: self.data.name.clone(),
            policies: train.policy.clone(),
            momentum_form: train.momentum_form,
        }
    }

    /// Writes a checkpoint where one is due after iteration `before`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn checkpoint_since(&mut self, before: u64, arms: &[Arm]) -> Result<()> {
        let due = |every: u64| before / every < arms[0].iteration / every;
        if self.args.train.checkpoint_every.is_some_and(due) { self.checkpoint(arms) } else { Ok(()) }
    }

    /// Rank 0 writes a checkpoint, where all replicas stand at the same iteration.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn checkpoint(&mut self, arms: &[Arm]) -> Result<()> {
        let (Some(narrator), Some(folder)) = (&mut self.narrator, &self.args.train.checkpoint_dir) else {
            return Ok(());
        };
        if arms.iter().any(|arm| arm.iteration != arms[0].iteration) {
            return Ok(());
        }
        narrator.flush()?;
        let job_id = narrator.job_id().cloned();
        let identity = self.identity();
        save(
            folder,
            arms,
            &State {
                job_id,
                iteration: arms[0].iteration,
                epoch: arms[0].cursor.epoch(),
                position: arms[0].cursor.position(),
                learning_rate: arms[0].optimizer.last_rate(),
                rate: Some(arms[0].planner.in_force().rate()),
                identity,
            },
        )
    }

    /// Ends what ran beside the run and tells what it did; then rank 0 tells how the run ended.
    ///
    /// # Errors
    /// The record cannot be written, or the background job failed.
    pub fn conclude(&mut self, arms: &[Arm], stopped: bool) -> Result<()> {
        if let Some(background) = self.background.take() {
            let rank = self.args.rank;
            Output::new(format!("rank {rank}")).say(&background.end()?.in_words());
        }
        let Some(mut narrator) = self.narrator.take() else { return Ok(()) };
        let held_out = self.data.held_out.head(HELD_OUT_SAMPLES, arms[0].model.kind(), self.device);
        for arm in arms {
            narrator.end(arm, arm.model.evaluate(&held_out), held_out.len())?;
        }
        narrator.finish(stopped)
    }

    /// Rank 0 delivers the last reports and takes the workers out of the job.
    pub fn close(&self, arms: &mut [Arm]) {
        for arm in arms {
            let next_size = arm.cursor.size(arm.global_batch, 0);
            arm.planner.close(next_size);
        }
    }
}

fn save(folder: &Path, arms: &[Arm], state: &State) -> Result<()> {
    let replicas: Vec<Tensors<'_>> = arms
        .iter()
        .map(|arm| Tensors {
            policy: arm.policy,
            parameters: arm.model.parameters(),
            velocity: arm.optimizer.velocity(),
        })
        .collect();
    checkpoint::save(folder, state, &replicas)?;
    Ok(())
}

/// Whether the predictor is asked at all.
pub fn asks(policies: &[Policy]) -> bool {
    policies.iter().any(|policy| policy.asks())
}
