//! The single all-reduce of an iteration: gradients and all data that ranks exchange, in one flat sum.
//!
//! `[gradients .. | samples, loss sum, requests | reports of each rank .. | the next plan ..]`
//!
//! Each value of a single rank has its own slot, to which all other ranks add zero. The sum therefore
//! delivers it exactly.

mod address;
mod connect;
mod deadline;
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

/// Samples, loss sum, number of ranks with each request.
const TOTALS: usize = 5;
/// Local batch, micro-batches, compute time, loader wait, busy time, missed paces, peak memory, gradient
/// norm; four slots of the tail; two slots of the counter. The drivers follow.
const OWN_SLOTS: usize = 14;
/// Unit of memory in the slots: integers of this unit are exact up to 16 GiB.
const KIBIBYTE: u64 = 1024;
const REPORT_SLOTS: usize = OWN_SLOTS + drivers::NAMES.len();

/// A rank's part of the all-reduce, other than its gradients.
#[derive(Debug, Clone, Default)]
pub struct Contribution {
    /// The rank's report of the iteration.
    pub report: RankReport,
    /// Loss, summed over the rank's samples.
    pub loss_sum: f64,
    /// Requests of the rank at the end of the iteration.
    pub rank_requests: RankRequests,
    /// A newer plan, from rank 0 only.
    pub plan: Option<Plan>,
}

/// Requests of a rank at the end of an iteration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankRequests {
    /// A signal tells the rank to stop the run.
    pub stop: bool,
    /// A signal tells the rank to leave the run.
    pub leave: bool,
    /// A worker waits to join.
    pub regroup: bool,
}

/// Number of ranks with each request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Ranks that request a stop of the run.
    pub stop: usize,
    /// Ranks that leave the run.
    pub leave: usize,
    /// Ranks that saw a worker waiting to join.
    pub regroup: usize,
}

/// One rank's report of an iteration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankReport {
    /// Samples that the rank computed, tail included.
    pub local_batch: u64,
    /// Number of forward and backward passes.
    pub micro_batches: u64,
    /// Time of forward and backward passes, in seconds, without waiting for claims.
    pub compute_time_s: f64,
    /// Wait for data, in seconds.
    pub loader_wait_s: f64,
    /// Time from the start of the iteration to the rank's entry into the all-reduce, in seconds.
    pub busy_s: f64,
    /// Micro-batches so far that were slower than the imposed pace.
    pub pace_missed: u64,
    /// Peak memory of the rank, if the system reports it. Above 16 GiB it has seven digits, because it is
    /// sent among 32-bit gradients.
    pub peak_memory_bytes: Option<u64>,
    /// Squared norm of the rank's mean gradient, if norms are required and the rank has samples.
    pub gradient_sqr: Option<f64>,
    /// Samples claimed from the tail, and the wait for claims.
    pub tail: TailReport,
    /// Additions to the counter of the rank's pool.
    pub additions: Additions,
    /// Drivers, read at the end of the rank's compute.
    pub drivers: Readings,
}

/// Additions of one rank to its pool's counter in an iteration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Additions {
    /// Number of claims, those without a chunk included.
    pub claims: u64,
    /// Number of times that the rank announced leaving the tail.
    pub leaves: u64,
}

/// The sum of all contributions, the same on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduced {
    /// Samples over all ranks.
    pub samples: u64,
    /// Mean loss over these samples.
    pub loss: f64,
    /// Requests of the ranks.
    pub request_counts: RequestCounts,
    /// Reports by rank.
    pub reports: Vec<RankReport>,
    /// Squared norm of the mean gradient over all samples, if norms are required.
    pub gradient_sqr: Option<f64>,
    /// A newer plan.
    pub plan: Option<Plan>,
    /// Time of this rank in the all-reduce, in seconds.
    pub all_reduce_s: f64,
}

impl Reduced {
    /// Returns a rank's wait for the slowest rank, from the same numbers on all ranks.
    pub fn barrier_wait_s(&self, rank: usize) -> f64 {
        let last = self.reports.iter().map(|report| report.busy_s).fold(0.0, f64::max);
        last - self.reports[rank].busy_s
    }
}

/// The flat buffer of the all-reduce.
#[derive(Debug)]
pub struct Bucket {
    flat: Tensor,
    gradients: i64,
    world_size: usize,
    norms: bool,
}

impl Bucket {
    /// Creates a buffer for the gradients of these parameters, on the device that the group reduces on. With
    /// `norms`, each iteration also computes the gradient norms, which costs two passes over the gradients.
    pub fn new(parameters: &[Tensor], world_size: usize, device: Device, norms: bool) -> Self {
        let slots = TOTALS + world_size * REPORT_SLOTS + Plan::slots(world_size);
        let (gradients, (kind, _)) = (size_of(parameters), kind_of(parameters));
        let flat = Tensor::zeros([gradients + slots as i64], (kind, device));
        Self { flat, gradients, world_size, norms }
    }

    /// Sums the buffer over all ranks. Afterwards [`Bucket::gradient`] is the mean gradient of the global
    /// batch, for any shares: every rank contributes the gradient of its *summed* loss.
    ///
    /// # Errors
    /// A rank has left or stalls for longer than the timeout.
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

    /// Returns the squared norm of the gradients in the buffer, if norms are required and the norm is finite.
    fn gradient_sqr(&self) -> Option<f64> {
        let norm = self.norms.then(|| self.flat.narrow(0, 0, self.gradients).norm().double_value(&[]));
        norm.map(|norm| norm * norm).filter(|norm| norm.is_finite())
    }

    /// Returns the mean gradient over the global batch, flat, in the order of the parameters.
    pub fn gradient(&self, device: Device) -> Tensor {
        self.flat.narrow(0, 0, self.gradients).to_device(device)
    }

    fn tail(&self) -> Tensor {
        self.flat.narrow(0, self.gradients, self.flat.size()[0] - self.gradients)
    }

    fn fill_gradients(&mut self, parameters: &[Tensor], local_batch: u64) {
        no_grad(|| {
            if local_batch == 0 {
                // A rank without samples takes part too; it may never have had gradients.
                let _ = self.flat.narrow(0, 0, self.gradients).zero_();
                return;
            }
            let mut start = 0;
            for parameter in parameters {
                let size = parameter.numel() as i64;
                let (mut own, gradient) = (self.flat.narrow(0, start, size), parameter.grad());
                // A parameter that does not influence the loss has no gradient.
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
    let RankRequests { stop, leave, regroup } = own.rank_requests;
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
        // A process always uses memory, so 0 means that the value is unknown.
        report.peak_memory_bytes.map_or(0.0, |bytes| (bytes / KIBIBYTE) as f64),
        // A norm is never negative, so -1 means that it is absent.
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
        request_counts: RequestCounts {
            stop: totals[2] as usize,
            leave: totals[3] as usize,
            regroup: totals[4] as usize,
        },
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
    fn a_sum_of_contributions_keeps_each_ranks_fields() {
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
            rank_requests: RankRequests { stop: rank == 1, leave: rank > 0, regroup: false },
            plan: (rank == 0).then(|| plan.clone()),
        };
        let mut sums = vec![0.0; encode(&own(0), 0, 3).len()];
        for rank in 0..3 {
            for (sum, slot) in sums.iter_mut().zip(encode(&own(rank), rank, 3)) {
                *sum += slot;
            }
        }
        let reduced = decode(&sums, 3, 0.0);
        assert_eq!(
            (reduced.samples, reduced.request_counts),
            (91, RequestCounts { stop: 1, leave: 2, regroup: 0 })
        );
        assert_eq!(reduced.loss, 30.0 / 91.0);
        assert_eq!(reduced.reports, [own(0).report, own(1).report, own(2).report]);
        assert_eq!(reduced.plan, Some(plan));
        assert_eq!([0, 1, 2].map(|rank| reduced.barrier_wait_s(rank)), [2.0, 1.0, 0.0]);
    }
}
