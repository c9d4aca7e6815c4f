//! Splits into batches of given sizes, or of few different ones.

use super::{Infeasible, Share, allocate, even, finish_s};

/// No batches of the allowed sizes make the total.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSplit {
    /// No sum of allowed sizes within the bounds is the total.
    #[error("no {workers} batches of the sizes {sizes:?}, within the workers' bounds, make {total} samples")]
    NoSum {
        /// What was to be split.
        total: u64,
        /// Over how many workers.
        workers: usize,
        /// The allowed sizes.
        sizes: Vec<u64>,
    },
    /// The search would take too long.
    #[error(
        "{total} samples over {workers} workers in {sizes} sizes is too large a search: fewer sizes, or a larger common divisor"
    )]
    TooLarge {
        /// What was to be split.
        total: u64,
        /// Over how many workers.
        workers: usize,
        /// How many sizes are allowed.
        sizes: usize,
    },
}

/// Splits `total` samples into batches that are each one of `sizes`.
///
/// # Errors
/// [`NoSplit`].
pub fn allocate_sizes(shares: &[Share], total: u64, sizes: &[u64]) -> Result<Vec<u64>, NoSplit> {
    let none = || NoSplit::NoSum { total, workers: shares.len(), sizes: sizes.to_vec() };
    fn go(shares: &[Share], left: u64, sizes: &[u64]) -> Option<(f64, Vec<u64>)> {
        let Some((share, rest)) = shares.split_last() else { return (left == 0).then(|| (0.0, Vec::new())) };
        let fits = |size: &&u64| **size >= share.floor && **size <= share.cap.unwrap_or(left).min(left);
        let with = |size: &u64| {
            let (time_s, mut batches) = go(rest, left - size, sizes)?;
            batches.push(*size);
            Some((time_s.max(share.finish_s(*size)), batches))
        };
        sizes.iter().filter(fits).filter_map(with).min_by(|a, b| a.0.total_cmp(&b.0))
    }
    go(shares, total, sizes).map(|(_, batches)| batches).ok_or_else(none)
}

/// Splits `total` samples into batches of at most `distinct` different sizes where the bounds allow it, and as few as
/// were found where they do not: for compilers and kernel tuners, that take each new size as a new program.
///
/// The plain split is made on ever coarser grids, the quantum doubled each time: the sizes of the coarse grids are among those of the
/// fine ones, so that few come up over time too. Of all grids that give few sizes the one that finishes first is taken;
/// the even split is among them.
///
/// # Errors
/// As [`allocate`].
pub fn few_sizes(
    shares: &[Share],
    total: u64,
    quantum: u64,
    distinct: usize,
) -> Result<Vec<u64>, Infeasible> {
    let quantum = quantum.max(1);
    let finest = allocate(shares, total, quantum)?;
    let bounds: Vec<(u64, Option<u64>)> = shares.iter().map(|share| (share.floor, share.cap)).collect();
    let grids = std::iter::successors(quantum.checked_mul(2), |grid| grid.checked_mul(2));
    let coarser =
        grids.take_while(|grid| *grid <= total).filter_map(|grid| allocate(shares, total, grid).ok());
    let candidates = std::iter::once(finest).chain(even(&bounds, total, quantum)).chain(coarser);
    let judged = candidates.map(|batches| {
        let sizes = distinct_sizes(&batches);
        (sizes.saturating_sub(distinct.max(1)), finish_s(shares, &batches), batches)
    });
    let best = judged.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    Ok(best.map(|(_, _, batches)| batches).unwrap_or_default())
}

fn distinct_sizes(batches: &[u64]) -> usize {
    batches.iter().collect::<std::collections::BTreeSet<_>>().len()
}
