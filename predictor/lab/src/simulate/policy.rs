//! The interface of a policy: it splits the global batch and learns from reports.

use evenstep_core::hedge::learner::Parts;
use evenstep_core::hedge::{Hedged, TailWork};

use super::error::SimulateError;

/// Report of one worker on one iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report<'a> {
    /// Index of the worker.
    pub worker: usize,
    /// Samples computed, including samples of the shared tail.
    pub batch: u64,
    /// Compute time in seconds.
    pub compute_time_s: f64,
    /// Part of the shared tail that the worker claimed.
    pub tail: TailWork,
    /// Seconds of barrier wait for the slowest worker.
    pub barrier_wait_s: f64,
    /// Drivers read at the end of the iteration; may be empty.
    pub drivers: &'a [Option<f64>],
}

/// A split of the global batch.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shares {
    /// Samples of each member, in rank order. Nothing is claimed.
    Given(Vec<u64>),
    /// A hedged step: base batches are fixed, the rest is claimed.
    Hedged(Hedged),
}

impl Shares {
    /// Samples of each member before any claim.
    pub fn given(&self) -> &[u64] {
        match self {
            Self::Given(batches) => batches,
            Self::Hedged(hedged) => &hedged.bases,
        }
    }
}

impl Report<'_> {
    /// Base batches and shared tail.
    pub fn parts(&self) -> Parts {
        let tail = self.tail;
        let base_s = self.compute_time_s - tail.compute_s;
        Parts { base: self.batch - tail.samples, base_s, tail }
    }

    /// Seconds until the worker reaches the barrier.
    pub fn busy_s(&self) -> f64 {
        self.compute_time_s + self.tail.claim_s
    }
}

/// A policy: splits the global batch, and learns from the reports.
pub(super) trait Policy {
    /// Returns the shares of the members `present`, in their order.
    fn shares(&mut self, iteration: usize, present: &[usize]) -> Result<Shares, SimulateError>;

    /// Processes the reports of an iteration.
    fn learn(&mut self, reports: &[Report<'_>]);
}
