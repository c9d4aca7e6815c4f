//! The one all-reduce of an iteration: gradients, and everything that ranks tell each other, in one flat sum.
//!
//! `[gradients .. | samples, loss sum, wishes | reports of each rank .. | the next plan ..]`
//!
//! Each number that belongs to one rank has a slot of its own, where all others add zero: a sum hands it out exactly.

mod address;
mod connect;
mod drivers;

use std::time::Instant;

use evenstep_c10d::Group;
use evenstep_protocol::{Readings, TailReport};
use tch::{Device, Kind, Tensor, no_grad};

use crate::model::{kind_of, size_of};
use crate::plan::Plan;

pub use address::HostPort;
pub use connect::connect;
pub use drivers::NAMES as DRIVERS;

/// Samples, loss sum, ranks with each wish.
const TOTALS: usize = 5;
/// Local batch, micro-batches, compute time, loader wait, busy time, missed paces, peak memory, gradient norm; four of the
/// tail; two of the counter; then the drivers.
const OWN_SLOTS: usize = 14;
/// In which memory is counted on the way: whole numbers of them travel exactly up to 16 GiB.
const KIBIBYTE: u64 = 1024;
const REPORT_SLOTS: usize = OWN_SLOTS + drivers::NAMES.len();

/// What a rank brings to the all-reduce, beside its gradients.
#[derive(Debug, Clone, Default)]
pub struct Contribution {
    /// How its iteration went.
    pub report: RankReport,
    /// Its loss, summed over its samples.
    pub loss_sum: f64,
    /// What it wants when the iteration is done.
    pub wishes: Wishes,
    /// A newer plan, from rank 0.
    pub plan: Option<Plan>,
}

/// What a rank wants when an iteration is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wishes {
    /// It was told to stop the run.
    pub stop: bool,
    /// It was told to leave the run.
    pub leave: bool,
    /// It saw somebody who waits to take part.
    pub regroup: bool,
}

/// How many ranks have each wish.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wished {
    /// Those who were told to stop the run.
    pub stop: usize,
    /// Those who were told to leave it.
    pub leave: usize,
    /// Those who saw somebody who waits to take part.
    pub regroup: usize,
}

/// How an iteration went for one rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankReport {
    /// Samples it computed, those of the tail among them.
    pub local_batch: u64,
    /// Forward and backward passes over them.
    pub micro_batches: u64,
    /// Forward and backward, in seconds, without waiting for claims.
    pub compute_time_s: f64,
    /// Wait for data, in seconds.
    pub loader_wait_s: f64,
    /// From the begin of the iteration until it came to the all-reduce, in seconds.
    pub busy_s: f64,
    /// Micro-batches so far that were slower than an imposed pace allows.
    pub pace_missed: u64,
    /// Its highest memory use so far, where the system says; above 16 GiB to seven digits, as it travels among 32-bit
    /// gradients.
    pub peak_memory_bytes: Option<u64>,
    /// Squared norm of its own mean gradient, where norms are wanted and it has one.
    pub gradient_sqr: Option<f64>,
    /// What of this it claimed from the tail, and how long it waited for claims.
    pub tail: TailReport,
    /// What it added to its pool's counter.
    pub additions: Additions,
    /// Drivers read when its compute ended.
    pub drivers: Readings,
}

/// What one rank added to its pool's counter in an iteration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Additions {
    /// How often it claimed, in vain too.
    pub claims: u64,
    /// How often it said that it leaves.
    pub leaves: u64,
}

/// What the sum of all contributions says: the same on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduced {
    /// Samples over all ranks.
    pub samples: u64,
    /// Mean loss over them.
    pub loss: f64,
    /// What ranks want now.
    pub wished: Wished,
    /// Each rank's report.
    pub reports: Vec<RankReport>,
    /// Squared norm of the mean gradient over them, where norms are wanted.
    pub gradient_sqr: Option<f64>,
    /// A newer plan.
    pub plan: Option<Plan>,
    /// Time this rank spent in the all-reduce, in seconds.
    pub all_reduce_s: f64,
}

impl Reduced {
    /// How long a rank waited for the last one: by the same numbers on all ranks.
    pub fn barrier_wait_s(&self, rank: usize) -> f64 {
        let last = self.reports.iter().map(|report| report.busy_s).fold(0.0, f64::max);
        last - self.reports[rank].busy_s
    }
}

/// The flat buffer.
#[derive(Debug)]
pub struct Bucket {
    flat: Tensor,
    gradients: i64,
    world_size: usize,
    norms: bool,
}

impl Bucket {
    /// A buffer for the gradients of these parameters, on the device that the group reduces on. With `norms` each iteration works out
    /// the norms of gradients, which costs two passes over them.
    pub fn new(parameters: &[Tensor], world_size: usize, device: Device, norms: bool) -> Self {
        let slots = TOTALS + world_size * REPORT_SLOTS + Plan::slots(world_size);
        let (gradients, (kind, _)) = (size_of(parameters), kind_of(parameters));
        let flat = Tensor::zeros([gradients + slots as i64], (kind, device));
        Self { flat, gradients, world_size, norms }
    }

    /// Sums everything over all ranks. Afterwards [`Bucket::gradient`] is the mean gradient of the global batch,
    /// whatever each rank's share of it was: every rank brings the gradient of its *summed* loss.
    ///
    /// # Errors
    /// A rank is gone or stalls past the timeout.
    pub fn all_reduce(
        &mut self,
        group: &Group,
        parameters: &[Tensor],
        mut own: Contribution,
    ) -> evenstep_c10d::Result<Reduced> {
        let local_batch = own.report.local_batch;
        self.fill_gradients(parameters, local_batch);
        if local_batch > 0 {
            let summed = self.gradient_sqr();
            own.report.gradient_sqr = summed.map(|summed| summed / (local_batch as f64).powi(2));
        }
        let slots = Tensor::from_slice(&encode(&own, group.rank(), self.world_size));
        self.tail().copy_(&slots);
        let started = Instant::now();
        group.all_reduce_sum(&mut self.flat)?;
        let tail = self.tail().to_device(Device::Cpu).to_kind(Kind::Double);
        let all_reduce_s = started.elapsed().as_secs_f64();
        let mut sums = vec![0.0; tail.numel()];
        tail.copy_data(&mut sums, tail.numel());
        let mut reduced = decode(&sums, self.world_size, all_reduce_s);
        let _ = self.flat.narrow(0, 0, self.gradients).divide_scalar_(reduced.samples.max(1) as f64);
        reduced.gradient_sqr = self.gradient_sqr();
        Ok(reduced)
    }

    /// Squared norm of the gradients in the buffer, where norms are wanted; a training that diverges has none.
    fn gradient_sqr(&self) -> Option<f64> {
        let norm = self.norms.then(|| self.flat.narrow(0, 0, self.gradients).norm().double_value(&[]));
        norm.map(|norm| norm * norm).filter(|norm| norm.is_finite())
    }

    /// The mean gradient over the global batch, flat, in the order of the parameters.
    pub fn gradient(&self, device: Device) -> Tensor {
        self.flat.narrow(0, 0, self.gradients).to_device(device)
    }

    fn tail(&self) -> Tensor {
        self.flat.narrow(0, self.gradients, self.flat.size()[0] - self.gradients)
    }

    fn fill_gradients(&mut self, parameters: &[Tensor], local_batch: u64) {
        no_grad(|| {
            if local_batch == 0 {
                // A rank without samples takes part all the same; it may never have had gradients.
                let _ = self.flat.narrow(0, 0, self.gradients).zero_();
                return;
            }
            let mut start = 0;
            for parameter in parameters {
                let size = parameter.numel() as i64;
                let (mut own, gradient) = (self.flat.narrow(0, start, size), parameter.grad());
                // A parameter that the loss does not depend on has none.
                if gradient.defined() {
                    own.copy_(&gradient.view(-1));
                } else {
                    drop(own.zero_());
                }
                start += size;
            }
        });
    }
}

fn encode(own: &Contribution, rank: usize, world_size: usize) -> Vec<f64> {
    let report = &own.report;
    let Wishes { stop, leave, regroup } = own.wishes;
    let mut slots = vec![report.local_batch as f64, own.loss_sum];
    slots.extend([stop, leave, regroup].map(|wish| f64::from(u8::from(wish))));
    slots.resize(TOTALS + world_size * REPORT_SLOTS, 0.0);
    let mine = &mut slots[TOTALS + rank * REPORT_SLOTS..][..REPORT_SLOTS];
    mine[..OWN_SLOTS].copy_from_slice(&[
        report.local_batch as f64,
        report.micro_batches as f64,
        report.compute_time_s,
        report.loader_wait_s,
        report.busy_s,
        report.pace_missed as f64,
        // A process that computes uses some: 0 is none said.
        report.peak_memory_bytes.map_or(0.0, |bytes| (bytes / KIBIBYTE) as f64),
        // A norm may be 0, and is never negative.
        report.gradient_sqr.unwrap_or(-1.0),
        report.tail.chunks as f64,
        report.tail.samples as f64,
        report.tail.compute_time_s,
        report.tail.claim_time_s,
        report.additions.claims as f64,
        report.additions.leaves as f64,
    ]);
    mine[OWN_SLOTS..].copy_from_slice(&drivers::encode(&report.drivers));
    slots.extend(Plan::encode(own.plan.as_ref(), world_size));
    slots
}

fn decode(sums: &[f64], world_size: usize, all_reduce_s: f64) -> Reduced {
    let (totals, rest) = sums.split_at(TOTALS);
    let (reports, plan) = rest.split_at(world_size * REPORT_SLOTS);
    let reports = reports
        .chunks_exact(REPORT_SLOTS)
        .map(|slots| RankReport {
            local_batch: slots[0] as u64,
            micro_batches: slots[1] as u64,
            compute_time_s: slots[2],
            loader_wait_s: slots[3],
            busy_s: slots[4],
            pace_missed: slots[5] as u64,
            peak_memory_bytes: (slots[6] > 0.0).then(|| slots[6] as u64 * KIBIBYTE),
            gradient_sqr: (slots[7] >= 0.0 && slots[7].is_finite()).then_some(slots[7]),
            tail: TailReport {
                chunks: slots[8] as u64,
                samples: slots[9] as u64,
                compute_time_s: slots[10],
                claim_time_s: slots[11],
            },
            additions: Additions { claims: slots[12] as u64, leaves: slots[13] as u64 },
            drivers: drivers::decode(&slots[OWN_SLOTS..]),
        })
        .collect();
    Reduced {
        samples: totals[0] as u64,
        loss: totals[1] / totals[0],
        wished: Wished { stop: totals[2] as usize, leave: totals[3] as usize, regroup: totals[4] as usize },
        reports,
        gradient_sqr: None,
        plan: Plan::decode(plan),
        all_reduce_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_contributions_tells_everything_that_each_rank_said() {
        let plan = Plan::in_rank_order(&[5, 0, 11], 0.5);
        let own = |rank: usize| Contribution {
            report: RankReport {
                local_batch: [64, 0, 27][rank],
                micro_batches: [2, 0, 1][rank],
                compute_time_s: 0.1 * rank as f64,
                loader_wait_s: 0.001,
                busy_s: 0.25 + rank as f64,
                pace_missed: 7 * rank as u64,
                peak_memory_bytes: (rank > 0).then(|| rank as u64 * 300 * KIBIBYTE),
                gradient_sqr: (rank != 1).then_some(0.75 * rank as f64),
                tail: TailReport {
                    chunks: rank as u64,
                    samples: 5 * rank as u64,
                    compute_time_s: 0.5 * rank as f64,
                    claim_time_s: 0.25,
                },
                additions: Additions { claims: 1 + rank as u64, leaves: 2 },
                drivers: [("other_cpu".to_owned(), rank as f64)].into(),
            },
            loss_sum: 10.0,
            wishes: Wishes { stop: rank == 1, leave: rank > 0, regroup: false },
            plan: (rank == 0).then(|| plan.clone()),
        };
        let mut sums = vec![0.0; encode(&own(0), 0, 3).len()];
        for rank in 0..3 {
            for (sum, slot) in sums.iter_mut().zip(encode(&own(rank), rank, 3)) {
                *sum += slot;
            }
        }
        let reduced = decode(&sums, 3, 0.0);
        assert_eq!((reduced.samples, reduced.wished), (91, Wished { stop: 1, leave: 2, regroup: 0 }));
        assert_eq!(reduced.loss, 30.0 / 91.0);
        assert_eq!(reduced.reports, [own(0).report, own(1).report, own(2).report]);
        assert_eq!(reduced.plan, Some(plan));
        assert_eq!([0, 1, 2].map(|rank| reduced.barrier_wait_s(rank)), [2.0, 1.0, 0.0]);
    }
}
