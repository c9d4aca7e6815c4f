//! What a policy is: it shares out the global batch, and learns from reports.

use evenstep_core::hedge::learner::Parts;
use evenstep_core::hedge::{Hedged, Took};

use super::error::SimulateError;

/// How an iteration went for one worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report<'a> {
    /// Which.
    pub worker: usize,
    /// Samples it computed, those of the tail among them.
    pub batch: u64,
    /// Seconds they took.
    pub compute_time_s: f64,
    /// What it did of the tail.
    pub tail: Took,
    /// Seconds it waited for the last worker.
    pub barrier_wait_s: f64,
    /// Drivers read at the end; empty where there are none.
    pub drivers: &'a [Option<f64>],
}

/// How the global batch is shared out.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shares {
    /// Everything is given; by rank of those who take part.
    Given(Vec<u64>),
    /// Bases are given, the rest is claimed.
    Hedged(Hedged),
}

impl Shares {
    /// What each is given before any claim.
    pub fn given(&self) -> &[u64] {
        match self {
            Self::Given(batches) => batches,
            Self::Hedged(hedged) => &hedged.bases,
        }
    }
}

impl Report<'_> {
    /// Base and tail apart.
    pub fn parts(&self) -> Parts {
        let tail = self.tail;
        let base_s = self.compute_time_s - tail.compute_s;
        Parts { base: self.batch - tail.samples, base_s, tail }
    }

    /// Seconds until it was at the barrier.
    pub fn busy_s(&self) -> f64 {
        self.compute_time_s + self.tail.claim_s
    }
}

/// Shares out the global batch, and learns from how it went.
pub(super) trait Policy {
    /// The shares of those who take part, in their order.
    fn shares(&mut self, iteration: usize, present: &[usize]) -> Result<Shares, SimulateError>;

    /// Takes the reports of an iteration.
    fn learn(&mut self, reports: &[Report<'_>]);
}
