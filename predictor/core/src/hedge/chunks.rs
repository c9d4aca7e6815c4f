//! The sequence of chunks: they shrink as the tail empties.
//!
//! Factoring (Hummel, Schonberg, Flynn 1992) gives out half of what is left in equal parts, guided self-scheduling
//! (Polychronopoulos, Kuck 1987) one part of what is left at a time: the last chunks are small, and so is what the
//! workers' ends differ by. Weighted factoring (Hummel, Schmidt, Uma, Wein 1996) gives the faster larger parts. Ours does
//! all three: half of the part of what is left that a worker of this speed would do. Chunks are not bound to workers;
//! each is made for the one who would claim it if all went as forecast.

use std::collections::BinaryHeap;

use super::play::Free;

/// A worker that claims, by its forecast.
#[derive(Debug, Clone, Copy)]
pub struct Claimant {
    /// When its base is done, in seconds.
    pub free_s: f64,
    /// Samples per second.
    pub speed: f64,
}

/// Chunks of a tail: multiples of `quantum` that fall to `smallest` at least, itself a multiple. Their sum is `tail`, which is
/// a multiple too.
pub fn chunks(tail: u64, claimants: &[Claimant], smallest: u64, quantum: u64) -> Vec<u64> {
    let speed: f64 = claimants.iter().map(|claimant| claimant.speed).sum();
    let mut free: BinaryHeap<Free> =
        claimants.iter().enumerate().map(|(rank, claimant)| Free::new(claimant.free_s, rank)).collect();
    let (mut left, mut chunks) = (tail, Vec::new());
    while left > 0 {
        let Some(mut next) = free.peek_mut() else { break };
        let claimant = &claimants[next.rank];
        let part = left as f64 * claimant.speed / speed / 2.0;
        let whole = part as u64 / quantum * quantum;
        let mut chunk = whole.max(smallest).min(left);
        // What would be left is no chunk of its own.
        if left - chunk < smallest {
            chunk = if left >= 2 * smallest { left - smallest } else { left };
        }
        *next = Free::new(next.at_s + chunk as f64 / claimant.speed, next.rank);
        chunks.push(chunk);
        left -= chunk;
    }
    // Made for different workers, they need not fall: in falling order the last to be claimed are the smallest.
    chunks.sort_by(|a, b| b.cmp(a));
    chunks
}
