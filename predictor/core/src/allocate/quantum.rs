//! The bounds of a split, checked and in multiples of the quantum.

use std::fmt;

use super::worker::SplitWorker;

/// The floors add up to more, or the caps to less, than the total, or the floor of one worker exceeds its own
/// cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot split {total} samples over {workers} workers: {}floors require {floors}, caps allow {}; change the bounds or global_batch",
    .crossed.map_or_else(String::new, |crossed| crossed.to_string()), caps_in_words(*.caps)
)]
pub struct Infeasible {
    /// Number of samples to split.
    pub total: u64,
    /// Number of workers.
    pub workers: usize,
    /// Sum of the floors, each rounded up to a multiple of the quantum.
    pub floors: u64,
    /// Sum of the caps, each rounded down to a multiple of the quantum; `None` if any worker has no cap.
    pub caps: Option<u64>,
    /// The first worker whose floor exceeds its own cap.
    pub crossed: Option<Crossed>,
}

/// Bounds of a worker, in multiples of the quantum, that contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossed {
    /// Rank of the worker.
    pub rank: usize,
    /// Its floor, rounded up.
    pub floor: u64,
    /// Its cap, rounded down.
    pub cap: u64,
}

impl fmt::Display for Crossed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the floor {} of rank {} exceeds its cap {}; ", self.floor, self.rank, self.cap)
    }
}

fn caps_in_words(caps: Option<u64>) -> String {
    caps.map_or_else(|| "any number".into(), |caps| caps.to_string())
}

/// Workers and their bounds. Floors and caps are multiples of the quantum, and the total lies between their
/// sums.
pub(super) struct Problem<'a> {
    pub shares: &'a [SplitWorker],
    pub floors: Vec<u64>,
    pub caps: Vec<u64>,
    /// The part of the total that is a multiple of the quantum.
    pub whole: u64,
    /// The rest of the total, less than one quantum.
    pub remainder: u64,
    pub quantum: u64,
}

impl<'a> Problem<'a> {
    pub fn new(shares: &'a [SplitWorker], total: u64, quantum: u64) -> Result<Self, Infeasible> {
        let quantum = quantum.max(1);
        let remainder = total % quantum;
        // A quantum of 1 is the common case, so the division is skipped.
        let up = |samples: u64| {
            if quantum == 1 { samples } else { samples.div_ceil(quantum).saturating_mul(quantum) }
        };
        let floor = |share: &SplitWorker| up(share.floor);
        let floors: Vec<u64> = shares.iter().map(floor).collect();
        let capped = |share: &SplitWorker| share.cap.map(|cap| whole_quanta(cap, quantum));
        let caps: Vec<u64> = shares.iter().map(|share| capped(share).unwrap_or(u64::MAX)).collect();
        let crossed = floors.iter().zip(&caps).enumerate().find(|(_, (floor, cap))| floor > cap);
        let infeasible = Infeasible {
            total,
            workers: shares.len(),
            floors: floors.iter().fold(0u64, |sum, floor| sum.saturating_add(*floor)),
            caps: shares.iter().try_fold(0u64, |sum, share| Some(sum.saturating_add(capped(share)?))),
            crossed: crossed.map(|(rank, (floor, cap))| Crossed { rank, floor: *floor, cap: *cap }),
        };
        // The remainder goes to one worker on top of its multiples. It must not exceed that worker's cap, so
        // the caps must leave room for one more quantum.
        let whole = total - remainder;
        let needed = whole.saturating_add(if remainder > 0 { quantum } else { 0 });
        let held = infeasible.caps.is_none_or(|caps| caps >= needed);
        if shares.is_empty() || infeasible.crossed.is_some() || infeasible.floors > total || !held {
            return Err(infeasible);
        }
        // A cap above the total has no effect. Lowering it shortens the search.
        let caps = caps.iter().map(|cap| (*cap).min(needed)).collect();
        Ok(Self { shares, floors, caps, whole, remainder, quantum })
    }

    /// Returns the largest multiple of the quantum that worker `i` finishes by `time_s`, in samples, and at
    /// least its floor.
    pub fn most(&self, i: usize, time_s: f64) -> u64 {
        let most = self.shares[i].batch_within(time_s, self.caps[i]);
        whole_quanta(most, self.quantum).max(self.floors[i])
    }

    /// Adds the remainder to the worker that finishes it first. Ties go to the smaller batch, then to the
    /// lower rank.
    ///
    /// The result is exact if the whole quanta are split optimally. Either a worker finishes the remainder
    /// within the finish time of that split, or every split needs more time, and this one needs the least.
    pub fn add_remainder(&self, batches: &mut [u64]) {
        if self.remainder == 0 {
            return;
        }
        let room = (0..batches.len()).filter(|i| batches[*i] + self.quantum <= self.caps[*i]);
        let finish_s = |i: usize| self.shares[i].finish_s(batches[i] + self.remainder);
        let first = room
            .map(|i| (finish_s(i), batches[i], i))
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        if let Some((_, _, i)) = first {
            batches[i] += self.remainder;
        }
    }
}

fn whole_quanta(samples: u64, quantum: u64) -> u64 {
    if quantum == 1 { samples } else { samples - samples % quantum }
}
