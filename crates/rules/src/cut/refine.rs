//! Exchanges of samples between parts, after the assignment.

use std::collections::BTreeSet;

use super::assign::Assignment;

/// Number of other parts with which the part that finishes last is compared, if one of them helps.
const PARTNERS: usize = 16;

/// Maximum number of samples of a part of which pairs are exchanged. With more samples, single exchanges reach the target.
const PAIRS_MAX: usize = 32;

/// Numbers of samples that the part that finishes last gives and takes in one step.
const SINGLE: &[(usize, usize)] = &[(1, 1), (1, 0)];

/// The same with pairs, tried if no single exchange helps.
const PAIRS: &[(usize, usize)] = &[(1, 2), (2, 1), (2, 2), (2, 0)];

/// Up to two samples and their cost.
#[derive(Debug, Clone, Copy, Default)]
struct Bundle {
    cost: f64,
    samples: [Option<usize>; 2],
}

/// An exchange between the part that finishes last and another part.
struct Exchange {
    other: usize,
    given: Bundle,
    taken: Bundle,
    /// The finish of the later of both parts afterwards.
    finish: f64,
}

/// The bits of positive floats have the order of the floats.
fn key(assigned: &Assignment<'_>, part: usize) -> (u64, usize) {
    (assigned.finish(part).to_bits(), part)
}

/// Moves samples away from the part that finishes last, or exchanges them for others with a lower cost. Each part keeps at
/// least as many samples as its floor.
///
/// This ends when the last part finishes by the target, when no exchange helps, or after a number of steps in proportion to
/// the parts.
pub(super) fn refine(assigned: &mut Assignment<'_>, floors: &[usize], target: f64) {
    let parts = assigned.parts.len();
    let mut order: BTreeSet<(u64, usize)> = (0..parts).map(|part| key(assigned, part)).collect();
    for _ in 0..64 + 8 * parts {
        let Some((finish, last)) = order.pop_last() else { return };
        if f64::from_bits(finish) <= target {
            return;
        }
        // The first to finish have the most room.
        let others = || order.iter().map(|(_, part)| *part);
        let single = best_exchange(assigned, last, others(), floors, target, SINGLE);
        let pairs = || {
            let few = |part: &usize| assigned.parts[*part].len() <= PAIRS_MAX;
            let others = others().take(PARTNERS).filter(few);
            few(&last).then(|| best_exchange(assigned, last, others, floors, target, PAIRS)).flatten()
        };
        let Some(Exchange { other, given, taken, .. }) = single.or_else(pairs) else { return };
        order.remove(&key(assigned, other));
        for &sample in given.samples.iter().flatten() {
            assigned.transfer(sample, last, other);
        }
        for &sample in taken.samples.iter().flatten() {
            assigned.transfer(sample, other, last);
        }
        order.extend([key(assigned, last), key(assigned, other)]);
    }
}

/// Returns the first exchange that reaches the target, or else the best one with enough of the others.
fn best_exchange(
    assigned: &Assignment<'_>,
    last: usize,
    others: impl Iterator<Item = usize>,
    floors: &[usize],
    target: f64,
    sizes: &[(usize, usize)],
) -> Option<Exchange> {
    let mut best: Option<Exchange> = None;
    // A gain below rounding errors could be repeated without end.
    let mut finish = assigned.finish(last) * (1.0 - 1e-12);
    for (tried, other) in others.enumerate() {
        if best.is_some() && (tried >= PARTNERS || finish <= target) {
            break;
        }
        for &(give, take) in sizes {
            let keeps = |part: usize, give: usize, take: usize| {
                assigned.parts[part].len() + take >= floors[part].saturating_add(give)
            };
            if keeps(last, give, take) && keeps(other, take, give) {
                let given = bundles(assigned, last, give);
                let taken = bundles(assigned, other, take);
                if let Some(exchange) = exchange(assigned, last, other, &given, &taken, finish) {
                    finish = exchange.finish;
                    best = Some(exchange);
                }
            }
        }
    }
    best
}

/// Returns the exchange after which the later of both parts finishes earliest, if that is before `finish`. Bundles are in
/// descending order of cost.
fn exchange(
    assigned: &Assignment<'_>,
    last: usize,
    other: usize,
    given: &[Bundle],
    taken: &[Bundle],
    mut finish: f64,
) -> Option<Exchange> {
    let (load, weight) = (assigned.loads[last], assigned.weights[last]);
    let (other_load, other_weight) = (assigned.loads[other], assigned.weights[other]);
    // If this cost moves, both finish at the same time.
    let ideal = (load * other_weight - other_load * weight) / (weight + other_weight);
    let (mut best, mut next) = (None, 0);
    for given in given {
        // The partner of the next bundle, which costs less, is never before this one's.
        while next < taken.len() && taken[next].cost > given.cost - ideal {
            next += 1;
        }
        for taken in &taken[next.saturating_sub(1)..taken.len().min(next + 1)] {
            let moved = given.cost - taken.cost;
            let after = ((load - moved) / weight).max((other_load + moved) / other_weight);
            if after < finish {
                finish = after;
                best = Some(Exchange { other, given: *given, taken: *taken, finish });
            }
        }
    }
    best
}

/// Returns all bundles of this number of samples of a part, in descending order of cost.
fn bundles(assigned: &Assignment<'_>, part: usize, size: usize) -> Vec<Bundle> {
    let (samples, costs) = (&assigned.parts[part], assigned.costs);
    let single = |&sample: &usize| Bundle { cost: costs[sample], samples: [Some(sample), None] };
    match size {
        0 => vec![Bundle::default()],
        1 => samples.iter().map(single).collect(),
        _ => {
            let pair = |a: usize, b: usize| Bundle { cost: costs[a] + costs[b], samples: [Some(a), Some(b)] };
            let pairs = |(at, &a): (usize, &usize)| samples[at + 1..].iter().map(move |&b| pair(a, b));
            let mut bundles: Vec<Bundle> = samples.iter().enumerate().flat_map(pairs).collect();
            bundles.sort_by(|a, b| b.cost.total_cmp(&a.cost));
            bundles
        }
    }
}
