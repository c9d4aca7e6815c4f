//! What comes of bases and chunks: workers do their bases, then claim.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::claim::{CLAIM, Counter, Judge, LEAVE, Peer};

/// What claiming costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClaimCost {
    /// From asking to knowing, where nobody else asks, in seconds.
    pub latency_s: f64,
    /// How long the counter is busy with one addition, in seconds: others wait behind it. At most the latency.
    pub busy_s: f64,
}

/// A member of a pool in an iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hand {
    /// Samples of its base.
    pub base: u64,
    /// Seconds that its base takes.
    pub base_s: f64,
}

/// What a worker did of a tail.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Took {
    /// Samples.
    pub samples: u64,
    /// Chunks.
    pub chunks: u64,
    /// Seconds of computing them.
    pub compute_s: f64,
    /// Seconds of waiting for claims, those that came to nothing among them.
    pub claim_s: f64,
}

/// A member that is free at a time; the first is the greatest, then the lowest number.
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

/// Plays an iteration of one pool: `hands` are its members', in its order, `expected` what they expect of each other, and
/// `time_s` says how long a member takes for so many samples. Answers what each member did of the tail. Its compute ends after
/// base and chunks; it is at the barrier when its last claim is answered too.
pub fn play(
    chunks: &[u64],
    hands: &[Hand],
    expected: &[Peer],
    time_s: impl Fn(usize, u64) -> f64,
    cost: ClaimCost,
) -> Vec<Took> {
    let counter = Counter::new(0, chunks.len(), hands.len());
    let mut judges: Vec<Judge<'_>> =
        (0..hands.len()).map(|member| Judge::of_member(chunks, expected, member)).collect();
    let mut took = vec![Took::default(); hands.len()];
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
        let leaves = !must_stay[member] && judges[member].declines(at_s, pace_s, cost.latency_s);
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
            judges[member].saw(chunk, known_s);
            free.push(Free::new(known_s + chunk_s, member));
        }
    }
    took
}

/// Seconds for a sample as a member has seen them in this iteration.
fn pace_s(hand: &Hand, took: &Took, expected: &Peer) -> f64 {
    let samples = hand.base + took.samples;
    if samples == 0 { 1.0 / expected.speed } else { (hand.base_s + took.compute_s) / samples as f64 }
}
