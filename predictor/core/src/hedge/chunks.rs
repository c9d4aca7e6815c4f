//! The sequence of chunks: they shrink as the tail empties.
//!
//! Factoring (Hummel, Schonberg, Flynn 1992) gives out half of what is left in equal parts, guided self-scheduling
//! (Polychronopoulos, Kuck 1987) one part of what is left at a time: the last chunks are small, and so is what the
//! workers' ends differ by. Weighted factoring (Hummel, Schmidt, Uma, Wein 1996) gives the faster larger parts. Ours does
//! all three: half of the part of what is left that a worker of this speed would do. Chunks are not bound to workers;
//! each is made for the one who would claim it if all went as forecast.

use std::collections::BinaryHeap;

use super::claim::Peer;
use super::play::Free;

/// Chunks of a tail: multiples of `quantum` that fall to `smallest` at least, itself a multiple. Their sum is `tail`, which is
/// a multiple too.
pub fn chunks(tail: u64, members: &[Peer], smallest: u64, quantum: u64) -> Vec<u64> {
    let speed: f64 = members.iter().map(|member| member.speed).sum();
    let mut free: BinaryHeap<Free> =
        members.iter().enumerate().map(|(at, member)| Free::new(member.base_end_s, at)).collect();
    let (mut left, mut chunks) = (tail, Vec::new());
    while left > 0 {
        let Some(mut next) = free.peek_mut() else { break };
        let member = &members[next.member];
        let part = left as f64 * member.speed / speed / 2.0;
        let whole = part as u64 / quantum * quantum;
        let mut chunk = whole.max(smallest).min(left);
        // What would be left is no chunk of its own.
        if left - chunk < smallest {
            chunk = if left >= 2 * smallest { left - smallest } else { left };
        }
        *next = Free::new(next.at_s + chunk as f64 / member.speed, next.member);
        chunks.push(chunk);
        left -= chunk;
    }
    // Made for different workers, they need not fall: in falling order the last to be claimed are the smallest.
    chunks.sort_by(|a, b| b.cmp(a));
    chunks
}
