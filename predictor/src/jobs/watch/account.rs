//! The account of a job: time saved compared with even shares, and time lost waiting, over all its iterations.
//!
//! The time of an iteration with even shares is an estimate from its own measurements; see
//! [`EvenTime`](evenstep_core::job::EvenTime). The rest of the step (waits for data, communication, optimizer) is the same
//! with even shares. Iterations are weighed by their samples.

use evenstep_core::attempts::Attempts;
use evenstep_core::ratio::{NORMAL_QUANTILE, half_width};
use evenstep_protocol::{GainView, SavedView};
use serde::{Deserialize, Serialize};

/// Minimum number of iterations for an estimate of the gain.
pub const ITERATIONS_MIN: u64 = 8;
/// Maximum number of blocks of the jackknife. Successive iterations are alike, so blocks, not iterations, are left out.
const BLOCKS_MAX: usize = 32;

/// Estimated step time with even shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvenStep {
    /// The estimate, in seconds.
    pub even_s: f64,
    /// Its standard deviation in seconds, because batch curves are not known exactly. The error is the same in all iterations.
    pub doubt_s: f64,
}

/// Measured times of an iteration, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct IterationTimes {
    /// The step time.
    pub took_s: f64,
    /// Mean barrier wait of the workers; `None` if no worker reported it.
    pub waited_s: Option<f64>,
    /// Estimated step time with even shares; `None` if it is not known.
    pub even: Option<EvenStep>,
    /// Number of iterations of its size that the iteration stands for; `None` if no worker reported it.
    pub iterations: Option<f64>,
}

impl IterationTimes {
    /// Number of iterations of its size that the iteration stands for; `counted` are those since the one before.
    pub fn weight(&self, counted: u64) -> f64 {
        self.iterations.unwrap_or(counted as f64)
    }
}

/// Measured and estimated even time of iterations, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Block {
    took_s: f64,
    even_s: f64,
    doubt_s: f64,
}

impl Block {
    fn add(&mut self, other: Self) {
        self.took_s += other.took_s;
        self.even_s += other.even_s;
        self.doubt_s += other.doubt_s;
    }

    fn ratio(self) -> f64 {
        self.even_s / self.took_s
    }
}

/// Number of iterations that a reported one stands for: those since the reported one before it, or since a return of the run, which
/// skips positions. Fast jobs report only some iterations, with mean times.
pub fn stands_for(attempts: &Attempts, position: u64, before: u64) -> u64 {
    let returned = attempts.first(position).saturating_sub(1);
    position.saturating_sub(before.max(returned)).max(1)
}

/// The account of a job. Its memory is bounded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Whole blocks, oldest first.
    blocks: Vec<Block>,
    /// Number of estimates in a whole block.
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
    /// The account of sampled iterations, by position, every `every`-th, before position `end` and after position `before`.
    pub fn of(
        iterations: impl Iterator<Item = (u64, IterationTimes)>,
        attempts: &Attempts,
        every: u64,
        mut before: Option<u64>,
        end: u64,
    ) -> Self {
        let mut account = Self::default();
        let continues = before.is_some();
        let mut iterations = iterations.filter(|(iteration, _)| *iteration < end).peekable();
        while let Some((iteration, times)) = iterations.next() {
            // The first one stands for as many iterations as the last one lacks, unless it is known what was before it.
            let after = if continues && iterations.peek().is_none() { every - 1 } else { 0 };
            let last = iteration.saturating_add(after).min(end - 1);
            let counted = match before.replace(iteration) {
                None => every,
                Some(before) if every == 1 => stands_for(attempts, last, before),
                // A return skips few of the positions between two that were read.
                Some(before) => last.saturating_sub(before).max(1),
            };
            // An iteration that was read stands for those that were not, too.
            account.add(times, if every > 1 { counted as f64 } else { times.weight(counted) });
        }
        account
    }

    /// Adds an iteration that stands for this number of iterations of its size.
    pub fn add(&mut self, times: IterationTimes, weight: f64) {
        if !(times.took_s > 0.0 && (weight * times.took_s).is_finite()) {
            return;
        }
        self.trained_s += weight * times.took_s;
        if let Some(waited_s) = times.waited_s {
            self.waited_s += weight * waited_s;
            self.known_s += weight * times.took_s;
        }
        if let Some(even) = times.even {
            self.add_even(times.took_s, even, weight);
        }
    }

    /// Adds the estimate of an iteration that was added without one.
    pub fn add_even(&mut self, took_s: f64, EvenStep { even_s, doubt_s }: EvenStep, weight: f64) {
        let block = Block { took_s: weight * took_s, even_s: weight * even_s, doubt_s: weight * doubt_s };
        if block.took_s > 0.0 && [block.took_s, block.even_s, block.doubt_s].iter().all(|sum| sum.is_finite())
        {
            self.estimated += 1;
            self.push(block, 1);
        }
    }

    /// Whether this account, which was stored, can be continued.
    pub fn is_valid(&self) -> bool {
        self.blocks.len() < BLOCKS_MAX && self.size > 0 && self.open_count < self.size
    }

    /// Number of iterations with an estimate that were read.
    pub fn estimated(&self) -> u64 {
        self.estimated
    }

    /// Adds a block of this number of estimates.
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

    /// Estimated time with even shares over the measured time; `None` with fewer than 8 estimates.
    ///
    /// The interval has two parts: how the ratio varies between blocks of iterations (jackknife), and the doubt about the
    /// batch curves.
    pub fn gain(&self) -> Option<GainView> {
        if self.estimated < ITERATIONS_MIN {
            return None;
        }
        let all = self.all();
        let open = (self.open_count > 0).then_some(&self.open);
        let blocks: Vec<(f64, f64)> =
            self.blocks.iter().chain(open).map(|block| (block.even_s, block.took_s)).collect();
        let varies = half_width(&blocks);
        let half_width = varies.hypot(NORMAL_QUANTILE * all.doubt_s / all.took_s);
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
            let even = EvenStep { even_s: *even_s, doubt_s: 0.0 };
            account.add(
                IterationTimes { took_s: *took_s, even: Some(even), waited_s: Some(0.1), iterations: None },
                1.0,
            );
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
        fn accounts_can_be_appended(times in prop::collection::vec((0.5f64..2.0, 0.5f64..4.0), 16..300), at in 0usize..300) {
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

    /// Of a long history, every tenth iteration is read. A report stands for the iterations since the one before it.
    #[test]
    fn iterations_that_are_not_read_count() {
        let times = IterationTimes { took_s: 0.5, iterations: Some(1.0), ..IterationTimes::default() };
        let attempts = Attempts::default();
        let sampled = Account::of((0..8).map(|at| (10 * at, times)), &attempts, 10, None, 80);
        assert!((sampled.trained_s - 40.0).abs() < 1e-9);
        let short = IterationTimes { iterations: Some(13.0), ..times };
        let all = Account::of([(0, times), (4, short)].into_iter(), &attempts, 1, None, 5);
        assert!((all.trained_s - 7.0).abs() < 1e-9);
    }

    /// Iterations 3 and 4 were planned ahead, and the run returned to iteration 1, at position 5. Its first report is of the second
    /// iteration since then.
    #[test]
    fn a_return_of_the_run_counts_no_iterations() {
        let mut attempts = Attempts::default();
        attempts.push(attempts.next(1, 5, true));
        let times = IterationTimes { took_s: 1.0, ..IterationTimes::default() };
        let of = |positions: &[u64], before| {
            let positions = positions.iter().map(|position| (*position, times));
            Account::of(positions, &attempts, 1, before, 9).trained_s
        };
        assert_eq!(of(&[0, 1, 2, 6, 8], None), 7.0);
        assert_eq!(of(&[6, 8], Some(2)), 4.0, "continued after a restart of the predictor");
        assert_eq!(of(&[8], Some(6)), 2.0);
    }

    #[test]
    fn few_iterations_give_no_estimate() {
        assert_eq!(account(&[(1.0, 2.0); 7]).gain(), None);
        assert!(account(&[(1.0, 2.0); 8]).gain().is_some());
        assert_eq!(Account::default().lost_s(), None);
    }
}
