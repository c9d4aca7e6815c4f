//! The account of a job: time saved compared with even shares, and time lost waiting, over all its iterations.
//!
//! The time with even shares is an estimate. It is the predicted time with even shares, corrected by the error of the
//! forecast in that iteration: predicted over measured speed of the slowest worker, which determines this time. The
//! shares of the prediction are not used, because an allocation that arrives late is used in later iterations. Waits for
//! data are unchanged. Reports do not contain the time of the communication and the optimizer, so the gain does not
//! either.

use evenstep_protocol::{GainView, HistoryView, SavedView};
use serde::{Deserialize, Serialize};

/// Minimum number of iterations for an estimate of the gain.
const ITERATIONS_MIN: u64 = 32;
/// Maximum number of blocks of the jackknife. Successive iterations are alike, so blocks, not iterations, are left out.
const BLOCKS_MAX: usize = 32;
/// The 0.95 quantile of Student's t distribution with 15 degrees of freedom, the fewest for 16 to 32 blocks.
const T_QUANTILE: f64 = 1.753;

/// Measured times of an iteration, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct IterationTimes {
    /// The step time.
    pub took_s: f64,
    /// Estimated step time with even shares; `None` without a forecast.
    pub even_s: Option<f64>,
    /// Mean barrier wait of the workers; `None` if no worker reported it.
    pub waited_s: Option<f64>,
}

/// One worker in an iteration, as far as known: compute time, barrier wait, actual and predicted speed.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerTimes {
    /// Compute time, in seconds.
    pub compute_time_s: Option<f64>,
    /// Barrier wait, in seconds.
    pub barrier_wait_s: Option<f64>,
    /// Measured speed.
    pub actual: Option<f64>,
    /// Predicted speed.
    pub predicted: Option<f64>,
}

impl IterationTimes {
    /// The times of an iteration with this step time and predicted step time with even shares.
    pub fn of(
        took_s: f64,
        predicted_even_s: Option<f64>,
        workers: impl Iterator<Item = WorkerTimes>,
    ) -> Self {
        let (mut computed_s, mut waited_s, mut waits) = (0.0_f64, 0.0, 0_u64);
        let mut slowest: Option<(f64, f64)> = None;
        for worker in workers {
            computed_s = computed_s.max(worker.compute_time_s.unwrap_or(0.0));
            if let Some(wait_s) = worker.barrier_wait_s {
                (waited_s, waits) = (waited_s + wait_s, waits + 1);
            }
            if let Some((actual, predicted)) = worker.actual.zip(worker.predicted)
                && slowest.is_none_or(|(least, _)| actual < least)
            {
                slowest = Some((actual, predicted));
            }
        }
        let even_s =
            predicted_even_s.zip(slowest).filter(|(_, (actual, _))| computed_s > 0.0 && *actual > 0.0);
        Self {
            took_s,
            even_s: even_s
                .map(|(even_s, (actual, predicted))| took_s - computed_s + even_s * predicted / actual),
            waited_s: (waits > 0).then(|| waited_s / waits as f64),
        }
    }
}

/// Measured and estimated even time of iterations, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Block {
    took_s: f64,
    even_s: f64,
}

impl Block {
    fn add(&mut self, other: Self) {
        self.took_s += other.took_s;
        self.even_s += other.even_s;
    }

    fn without(self, other: Self) -> Self {
        Self { took_s: self.took_s - other.took_s, even_s: self.even_s - other.even_s }
    }

    fn ratio(self) -> f64 {
        self.even_s / self.took_s
    }
}

/// Number of iterations that a reported one stands for: those since the reported one before it, or `first` for the first one. Fast
/// jobs report only some iterations, with mean times.
pub fn stands_for(iteration: u64, before: Option<u64>, first: u64) -> u64 {
    before.map_or(first, |before| iteration.saturating_sub(before)).max(1)
}

/// The account of a job. Its memory is bounded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Whole blocks, oldest first.
    blocks: Vec<Block>,
    /// Number of iterations in a whole block.
    size: u64,
    /// The newest iterations, fewer than a whole block.
    open: Block,
    open_count: u64,
    /// Number of iterations with an estimate that were read.
    estimated: u64,
    trained_s: f64,
    waited_s: f64,
    /// Time of the iterations whose waits are known.
    known_s: f64,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            blocks: Vec::with_capacity(BLOCKS_MAX),
            size: 1,
            open: Block::default(),
            open_count: 0,
            estimated: 0,
            trained_s: 0.0,
            waited_s: 0.0,
            known_s: 0.0,
        }
    }
}

impl Account {
    /// The account of an evenly sampled history, before iteration `end` and after iteration `before`.
    pub fn of(history: &HistoryView, mut before: Option<u64>, end: u64) -> Self {
        let mut account = Self::default();
        let continues = before.is_some();
        for (at, iteration) in history.iterations.iter().enumerate() {
            if let Some(took_s) = history.step_time_s[at].filter(|_| *iteration < end) {
                let worker = |worker: &evenstep_protocol::WorkerHistory| WorkerTimes {
                    compute_time_s: worker.compute_time_s[at],
                    barrier_wait_s: worker.barrier_wait_s[at],
                    actual: worker.actual_samples_per_s[at],
                    predicted: worker.predicted_samples_per_s[at],
                };
                let times = IterationTimes::of(
                    took_s,
                    history.even_step_time_s[at],
                    history.workers.iter().map(worker),
                );
                // The first one stands for as many iterations as the last one lacks, unless it is known what was before it.
                let is_last = history.iterations.get(at + 1).is_none_or(|next| *next >= end);
                let after = if continues && is_last { history.every - 1 } else { 0 };
                let last = iteration.saturating_add(after).min(end - 1);
                account.add(times, stands_for(last, before.replace(*iteration), history.every));
            }
        }
        account
    }

    /// Adds an iteration that stands for this number of iterations.
    pub fn add(&mut self, times: IterationTimes, count: u64) {
        let weight = count as f64;
        if !(times.took_s > 0.0 && times.took_s.is_finite()) {
            return;
        }
        self.trained_s += weight * times.took_s;
        if let Some(waited_s) = times.waited_s {
            self.waited_s += weight * waited_s;
            self.known_s += weight * times.took_s;
        }
        let Some(even_s) = times.even_s.filter(|even_s| even_s.is_finite()) else { return };
        self.estimated += 1;
        self.push(Block { took_s: weight * times.took_s, even_s: weight * even_s }, count);
    }

    /// Whether this account, which was stored, can be continued.
    pub fn is_valid(&self) -> bool {
        self.blocks.len() < BLOCKS_MAX && self.size > 0 && self.open_count < self.size
    }

    /// Number of iterations with an estimate that were read.
    pub fn estimated(&self) -> u64 {
        self.estimated
    }

    /// Adds a block of this number of iterations.
    fn push(&mut self, block: Block, count: u64) {
        self.open.add(block);
        self.open_count += count;
        if self.open_count < self.size {
            return;
        }
        self.blocks.push(std::mem::take(&mut self.open));
        self.open_count = 0;
        if self.blocks.len() == BLOCKS_MAX {
            let pair = |pair: &[Block]| {
                pair.iter().fold(Block::default(), |mut sum, block| {
                    sum.add(*block);
                    sum
                })
            };
            self.blocks = self.blocks.chunks(2).map(pair).collect();
            self.size *= 2;
        }
    }

    /// Adds what happened after this account.
    pub fn append(&mut self, later: &Self) {
        let whole = later.blocks.iter().map(|block| (*block, later.size));
        for (block, count) in whole.chain((later.open_count > 0).then_some((later.open, later.open_count))) {
            self.push(block, count);
        }
        self.estimated += later.estimated;
        self.trained_s += later.trained_s;
        self.waited_s += later.waited_s;
        self.known_s += later.known_s;
    }

    fn all(&self) -> Block {
        self.blocks.iter().fold(self.open, |mut sum, block| {
            sum.add(*block);
            sum
        })
    }

    /// Estimated time with even shares over the measured time; `None` with fewer than 32 iterations.
    pub fn gain(&self) -> Option<GainView> {
        if self.estimated < ITERATIONS_MIN {
            return None;
        }
        let all = self.all();
        let open = (self.open_count > 0).then_some(&self.open);
        let left_out: Vec<f64> =
            self.blocks.iter().chain(open).map(|block| all.without(*block).ratio()).collect();
        let blocks = left_out.len() as f64;
        let mean = left_out.iter().sum::<f64>() / blocks;
        let squares: f64 = left_out.iter().map(|value| (value - mean).powi(2)).sum();
        let half_width = T_QUANTILE * (squares * (blocks - 1.0) / blocks).sqrt();
        let ratio = all.ratio();
        let is_known = ratio.is_finite() && half_width.is_finite();
        let (lower, upper) = (ratio - half_width, ratio + half_width);
        is_known.then_some(GainView { ratio, lower, upper, iterations: self.estimated })
    }

    /// Time saved compared with even shares; `None` without an estimate of the gain.
    pub fn saved(&self) -> Option<SavedView> {
        let gain = self.gain()?;
        let all = self.all();
        let seconds = |ratio: f64| (ratio - 1.0) * all.took_s;
        Some(SavedView {
            seconds: seconds(gain.ratio),
            lower_s: seconds(gain.lower),
            upper_s: seconds(gain.upper),
            share: 1.0 - all.took_s / all.even_s,
        })
    }

    /// Time of all steps, in seconds; `None` before the first.
    pub fn trained_s(&self) -> Option<f64> {
        (self.trained_s > 0.0).then_some(self.trained_s)
    }

    /// Time lost waiting, in seconds; `None` if no worker reported its waits.
    pub fn lost_s(&self) -> Option<f64> {
        (self.known_s > 0.0).then_some(self.waited_s)
    }

    /// Share of the time lost waiting.
    pub fn lost_share(&self) -> Option<f64> {
        (self.known_s > 0.0).then(|| self.waited_s / self.known_s)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn account(times: &[(f64, f64)]) -> Account {
        let mut account = Account::default();
        for (took_s, even_s) in times {
            account.add(IterationTimes { took_s: *took_s, even_s: Some(*even_s), waited_s: Some(0.1) }, 1);
        }
        account
    }

    proptest! {
        /// The estimate is the ratio of the sums for any number of iterations, and its memory is bounded.
        #[test]
        fn the_gain_is_the_ratio_of_the_sums(times in prop::collection::vec((0.5f64..2.0, 0.5f64..4.0), 32..700)) {
            let account = account(&times);
            let sum = times.iter().fold((0.0, 0.0), |sum, times| (sum.0 + times.0, sum.1 + times.1));
            let gain = account.gain().unwrap();
            prop_assert!((gain.ratio - sum.1 / sum.0).abs() < 1e-9);
            prop_assert!(gain.lower <= gain.ratio && gain.ratio <= gain.upper);
            prop_assert!(account.blocks.len() < BLOCKS_MAX);
            let saved = account.saved().unwrap();
            prop_assert!((saved.seconds - (sum.1 - sum.0)).abs() < 1e-6);
            prop_assert!((saved.share - (1.0 - sum.0 / sum.1)).abs() < 1e-9);
            prop_assert!((account.lost_s().unwrap() - 0.1 * times.len() as f64).abs() < 1e-6);
        }

        /// A restart in between does not change the totals.
        #[test]
        fn accounts_can_be_appended(times in prop::collection::vec((0.5f64..2.0, 0.5f64..4.0), 40..300), at in 0usize..300) {
            let at = at % times.len();
            let mut first = account(&times[..at]);
            first.append(&account(&times[at..]));
            let whole = account(&times);
            prop_assert!((first.gain().unwrap().ratio - whole.gain().unwrap().ratio).abs() < 1e-9);
            prop_assert_eq!(first.estimated, whole.estimated);
            prop_assert!((first.trained_s - whole.trained_s).abs() < 1e-6);
            prop_assert!((first.waited_s - whole.waited_s).abs() < 1e-6);
        }
    }

    #[test]
    fn few_iterations_give_no_estimate() {
        assert_eq!(account(&[(1.0, 2.0); 31]).gain(), None);
        assert!(account(&[(1.0, 2.0); 32]).gain().is_some());
        assert_eq!(Account::default().lost_s(), None);
    }
}
