//! Hedged steps: what cannot be foreseen is shared.
//!
//! A step takes as long as its slowest worker, and the best forecast leaves steps a fifth longer than they would be if each
//! speed were known. So each worker gets a base that it will surely do in time, and the rest of the global batch is a tail
//! of shrinking chunks that whoever is free claims. Nothing moves: all know the order of the samples, and a claim is an
//! addition on a shared counter that names a range.
//!
//! - [`claim`]: the worker's side: the counter, and when to leave the rest to the others
//! - `bases`: what each will surely do
//! - `chunks`: the sequence in which the tail is claimed
//! - [`play`](mod@play): what comes of both, event by event
//! - [`hedge`]: whether, and how

mod bases;
mod chunks;
pub mod claim;
pub mod play;

use bases::Parts;
use chunks::{Claimant, chunks};
pub use claim::{CLAIM, Counter, Judge, LEAVE, Peer};
pub use play::{ClaimCost, Hand, Took, play};

use crate::allocate::{Scenarios, Share};

/// The most chunks of a tail for each worker, on average.
pub const CHUNKS_PER_WORKER_MAX: usize = 16;

/// What hedging is bound to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// What a claim costs.
    pub cost: ClaimCost,
    /// No chunk is smaller; a multiple of the quantum.
    pub min_chunk: u64,
    /// Bases and chunks are multiples of this (but one base, where the global batch is none).
    pub quantum: u64,
}

/// Bases, and a tail.
#[derive(Debug, Clone, PartialEq)]
pub struct Hedged {
    /// Samples by rank that each worker does first.
    pub bases: Vec<u64>,
    /// The tail, in the order of its samples. Bases and chunks together are the global batch.
    pub pools: Vec<Pool>,
    /// Expected time of the step in seconds.
    pub step_time_s: f64,
}

/// Workers that claim from the same part of the tail.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pool {
    /// Their ranks, rising.
    pub members: Vec<usize>,
    /// Samples of each chunk, falling.
    pub chunks: Vec<u64>,
}

/// Whether part of these batches (by rank, as planned without a tail) is better left to a tail, and which part. `claims` says
/// who can claim. `None` where no tail is expected to shorten the step.
pub fn hedge(
    batches: &[u64],
    shares: &[Share],
    claims: &[bool],
    scenarios: &Scenarios,
    terms: &Terms,
) -> Option<Hedged> {
    let _ = (batches, shares, claims, scenarios, terms);
    None
}
