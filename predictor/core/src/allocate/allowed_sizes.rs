//! Splits into batches of given sizes.

use super::exact_split::allocate;
use super::worker::Share;

/// The most steps, of 64 sums each, that a search may take: some tens of milliseconds.
const MAX_STEPS: u64 = 1 << 26;

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
        "{total} samples over {workers} workers in {sizes} sizes is too large a search: \
         allow fewer sizes, or sizes with a larger common divisor"
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

/// Splits `total` samples into batches that are each one of `sizes` (0 among them, or not), such that the last worker
/// finishes first: the exact optimum. Of the splits that finish then, one near the unrestricted one is taken.
///
/// The finish time is one of those of a worker with an allowed size; for each that is tried, the sums that the first i
/// workers can make by then are a set of bits (a subset sum, shifted and joined in words).
///
/// # Errors
/// [`NoSplit`].
pub fn allocate_sizes(shares: &[Share], total: u64, sizes: &[u64]) -> Result<Vec<u64>, NoSplit> {
    let none = || NoSplit::NoSum { total, workers: shares.len(), sizes: sizes.to_vec() };
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
        return Err(NoSplit::TooLarge { total, workers: shares.len(), sizes: usable.len() });
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

/// A size that a worker may take.
struct Choice {
    size: u64,
    /// The size in units of the common divisor.
    units: u64,
    finish_s: f64,
}

/// A set of sums, a bit each.
type Sums = Vec<u64>;

/// The sums that the first 0, 1, 2, .. workers can make by `time_s`; `None` where all together do not make `units`.
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

/// Adds to `sums` every sum of `before` plus `units`; what passes the end is dropped.
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
