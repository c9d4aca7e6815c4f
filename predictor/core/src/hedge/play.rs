//! Discrete-event simulation of a pool: workers compute their bases, then claim chunks.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use evenstep_rules::{CLAIM, ClaimPolicy, Counter, LEAVE, Peer};

/// Cost of claims.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClaimCost {
    /// Time from the request to the response of a claim without competing claims, in seconds.
    pub latency_s: f64,
    /// Time for which one addition occupies the counter, in seconds; other claims wait. At most the latency.
    pub busy_s: f64,
}

/// A member of a pool in an iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolMember {
    /// Samples of the base.
    pub base: u64,
    /// Compute time of the base in seconds.
    pub base_s: f64,
}

/// Part of a tail that a worker computed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TailWork {
    /// Number of samples.
    pub samples: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Compute time of the chunks in seconds.
    pub compute_s: f64,
    /// Time spent waiting for claims in seconds, including claims that got no chunk.
    pub claim_s: f64,
}

/// A free member and the time at which it is free. The earliest is the greatest; ties go to the lowest index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Free {
    pub at_s: f64,
    pub member: usize,
}

impl Free {
    pub fn new(at_s: f64, member: usize) -> Self {
        Self { at_s, member }
    }
}

impl Eq for Free {}

impl Ord for Free {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at_s.total_cmp(&self.at_s).then(other.member.cmp(&self.member))
    }
}

impl PartialOrd for Free {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Simulates an iteration of one pool. Returns the part of the tail that each member computed.
///
/// - `hands`: the members of the pool.
/// - `expected`: the expected progress of each member, in the same order.
/// - `time_s`: the compute time in seconds of a member for a number of samples.
///
/// A member's compute ends after its base and chunks. It is at the barrier when it also has the response to
/// its last claim.
pub fn play(
    chunks: &[u64],
    hands: &[PoolMember],
    expected: &[Peer],
    time_s: impl Fn(usize, u64) -> f64,
    cost: ClaimCost,
) -> Vec<TailWork> {
    let counter = Counter::new(0, chunks.len(), hands.len());
    let mut judges: Vec<ClaimPolicy<'_>> =
        (0..hands.len()).map(|member| ClaimPolicy::of_member(chunks, expected, member)).collect();
    let mut took = vec![TailWork::default(); hands.len()];
    let mut must_stay = vec![false; hands.len()];
    let mut free: BinaryHeap<Free> =
        hands.iter().enumerate().map(|(member, hand)| Free::new(hand.base_s, member)).collect();
    let (mut total, mut counter_free_s) = (0, 0.0f64);
    while let Some(Free { at_s, member }) = free.pop() {
        if judges[member].is_empty() {
            continue;
        }
        let own = &mut took[member];
        let pace_s = pace_s(&hands[member], own, &expected[member]);
        let leaves = !must_stay[member] && judges[member].should_leave(at_s, pace_s, cost.latency_s);
        total += if leaves { LEAVE } else { CLAIM };
        let begun_s = at_s.max(counter_free_s);
        counter_free_s = begun_s + cost.busy_s;
        let known_s = begun_s + cost.latency_s;
        own.claim_s += known_s - at_s;
        if leaves {
            must_stay[member] = !counter.may_leave(total);
            if must_stay[member] {
                free.push(Free::new(known_s, member));
            }
        } else if let Some(chunk) = counter.claimed(total) {
            let chunk_s = time_s(member, chunks[chunk]);
            own.samples += chunks[chunk];
            own.chunks += 1;
            own.compute_s += chunk_s;
            judges[member].record_claim(chunk, known_s);
            free.push(Free::new(known_s + chunk_s, member));
        }
    }
    took
}

/// Returns the seconds per sample that a member has measured in this iteration.
fn pace_s(hand: &PoolMember, took: &TailWork, expected: &Peer) -> f64 {
    let samples = hand.base + took.samples;
    if samples == 0 { 1.0 / expected.speed } else { (hand.base_s + took.compute_s) / samples as f64 }
}
