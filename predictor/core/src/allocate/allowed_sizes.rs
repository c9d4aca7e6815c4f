//! Splits into batches of given sizes.

use super::exact_split::allocate;
use super::worker::SplitWorker;

/// Maximum number of steps of a search, each on 64 sums: some tens of milliseconds.
const MAX_STEPS: u64 = 1 << 26;

/// The total cannot be split into allowed sizes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizesError {
    /// No combination of allowed sizes within the bounds adds up to the total.
    #[error(
        "cannot split {total} samples over {workers} workers in sizes {sizes:?} within their bounds; allow more sizes"
    )]
    NoCombination {
        /// Number of samples to split.
        total: u64,
        /// Number of workers.
        workers: usize,
        /// The allowed sizes.
        sizes: Vec<u64>,
    },
    /// The search would take too long.
    #[error(
        "the search to split {total} samples over {workers} workers in {sizes} sizes is too large; \
         allow fewer sizes, or sizes with a larger common divisor"
    )]
    TooLarge {
        /// Number of samples to split.
        total: u64,
        /// Number of workers.
        workers: usize,
        /// Number of allowed sizes.
        sizes: usize,
    },
}

/// Splits `total` samples into batches that are each one of `sizes`, so that the slowest worker finishes as
/// early as possible. The result is the exact optimum. `sizes` may include 0. If several splits finish at
/// that time, one near the unrestricted split is returned.
///
/// The optimal finish time is the finish time of some worker with an allowed size. The function searches
/// these times. For each time it computes the sums that the first i workers can reach by then, as a bit set
/// (a subset-sum computation by shift and OR on words).
///
/// # Errors
/// - [`SizesError::NoCombination`] if no combination of allowed sizes within the bounds adds up to `total`.
/// - [`SizesError::TooLarge`] if the search would take too long.
pub fn allocate_sizes(shares: &[SplitWorker], total: u64, sizes: &[u64]) -> Result<Vec<u64>, SizesError> {
    let none = || SizesError::NoCombination { total, workers: shares.len(), sizes: sizes.to_vec() };
    let mut usable: Vec<u64> = sizes.iter().copied().filter(|size| *size <= total).collect();
    usable.sort_unstable();
    usable.dedup();
    let unit = usable.iter().copied().fold(0, gcd).max(1);
    if shares.is_empty() || !total.is_multiple_of(unit) {
        return Err(none());
    }
    let mut options: Vec<Vec<Choice>> = Vec::with_capacity(shares.len());
    for share in shares {
        let within = |size: &&u64| **size >= share.floor && share.cap.is_none_or(|cap| **size <= cap);
        let choice = |size: &u64| Choice { size: *size, units: size / unit, finish_s: share.finish_s(*size) };
        options.push(usable.iter().filter(within).map(choice).collect());
    }
    let mut times: Vec<f64> = options.iter().flatten().map(|choice| choice.finish_s).collect();
    times.sort_by(f64::total_cmp);
    times.dedup();
    let units = total / unit;
    let tries = u64::from(times.len().max(1).ilog2()) + 2;
    let steps = (units / 64 + 1).saturating_mul((shares.len() * usable.len()) as u64).saturating_mul(tries);
    if steps > MAX_STEPS {
        return Err(SizesError::TooLarge { total, workers: shares.len(), sizes: usable.len() });
    }
    let made = |time_s: f64| sums(&options, time_s, units);
    let first = times.partition_point(|time_s| made(*time_s).is_none());
    let Some((time_s, reached)) = times.get(first).and_then(|time_s| Some((*time_s, made(*time_s)?))) else {
        return Err(none());
    };
    let ideal =
        allocate(shares, total, 1).unwrap_or_else(|_| vec![total / shares.len() as u64; shares.len()]);
    let mut left = units;
    let mut batches = Vec::with_capacity(shares.len());
    for ((options, before), ideal) in options.iter().zip(&reached).zip(&ideal).rev() {
        let fits = |choice: &&Choice| {
            choice.finish_s <= time_s && choice.units <= left && has(before, left - choice.units)
        };
        let Some(nearest) = options.iter().filter(fits).min_by_key(|choice| choice.size.abs_diff(*ideal))
        else {
            return Err(none());
        };
        batches.push(nearest.size);
        left -= nearest.units;
    }
    batches.reverse();
    Ok(batches)
}

/// A size that a worker can get.
struct Choice {
    size: u64,
    /// The size divided by the common divisor of all sizes.
    units: u64,
    finish_s: f64,
}

/// A set of sums, one bit each.
type Sums = Vec<u64>;

/// Returns the sums that the first 0, 1, 2, ... workers can reach by `time_s`; `None` if all workers together
/// cannot reach `units`.
fn sums(options: &[Vec<Choice>], time_s: f64, units: u64) -> Option<Vec<Sums>> {
    let words = (units / 64 + 1) as usize;
    let mut empty = vec![0; words];
    empty[0] = 1;
    let mut reached = vec![empty];
    for options in options {
        let before = reached.last()?;
        let mut sums = vec![0; words];
        for choice in options.iter().filter(|choice| choice.finish_s <= time_s) {
            join_shifted(&mut sums, before, choice.units);
        }
        reached.push(sums);
    }
    has(reached.last()?, units).then_some(reached)
}

/// Adds `units` to every sum in `before` and inserts the results into `sums`. Sums beyond the end are
/// dropped.
fn join_shifted(sums: &mut [u64], before: &[u64], units: u64) {
    let (words, bits) = ((units / 64) as usize, units % 64);
    for (i, word) in before.iter().enumerate().take(sums.len().saturating_sub(words)) {
        sums[i + words] |= word << bits;
        if bits > 0 && i + words + 1 < sums.len() {
            sums[i + words + 1] |= word >> (64 - bits);
        }
    }
}

fn has(sums: &[u64], sum: u64) -> bool {
    sums.get((sum / 64) as usize).is_some_and(|word| word >> (sum % 64) & 1 == 1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
