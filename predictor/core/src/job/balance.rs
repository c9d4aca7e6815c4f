//! The balance of planned shares against even ones, and of tails against steps without one: plans must do no harm.
//!
//! Every iteration is compared with the same iteration under the other choice: planned shares with even ones, and, while even
//! shares are held, even shares with those that were planned. The time under the other choice follows from the measured
//! times and the curves, as in `even_time`. So forecasts that come too late and noise that plans follow count as they
//! occurred, whatever the models expected. In the first iterations after even ones, the times with planned shares are also
//! compared with the measured ones. Curves cannot tell some costs of sizes that a worker never computed, for example of
//! compiling them.
//!
//! Gains and losses are counted in iterations. Planned shares may lose [`LOSS_FIRST`] on balance, and more the longer the
//! last loss is ago: where times are noisy, losses by chance must not take the gain of a long run. Then even shares are held until planned
//! ones would have gained `needed`, which grows with every further loss and falls with gains.
//! The choice is part of the models, so a restart keeps it.

use serde::{Deserialize, Serialize};

/// Loss of planned shares, in iterations, above which even shares are held: at first and after each loss, and at most.
const LOSS_FIRST: f64 = 0.25;
const LOSS_MAX: f64 = 4.0;
/// Its growth in an iteration, also while even shares are held.
const LOSS_GROWTH: f64 = 0.0045;
/// Gain that later losses are set against, in iterations: at least and at most, by the gain of the first iterations.
const GAIN_LEAST: f64 = 1.0;
const GAIN_MOST: f64 = 3.0;
/// Maximum gain or loss of one iteration, in iterations: a single pause proves nothing.
const ONE_MAX: f64 = 0.5;
/// The same of a report, which may stand for several iterations.
const REPORT_MAX: f64 = 1.0;
/// Gain that planned shares need after their first loss, and at most, in iterations.
const NEEDED_FIRST: f64 = 2.0;
const NEEDED_MAX: f64 = 64.0;
/// Factor by which every further loss raises it.
const NEEDED_GROWTH: f64 = 4.0;
/// Gain of planned shares, in iterations, that lowers it by a factor of e.
const NEEDED_FALLS: f64 = 1.5;
/// Maximum change of the work of all workers that a trial takes into account, as a factor.
const WORK_MAX: f64 = 2.0;
/// Factor on the mean time above which an iteration was a pause.
const PAUSE: f64 = 2.0;
/// Number of iterations after even ones in which planned shares are compared with them. Later, conditions may have changed.
const TRIAL: u32 = 8;
/// Maximum number of iterations that one stands for.
pub const ITERATIONS_MAX: f64 = 64.0;
/// Loss of tails, in iterations, above which they are paused: their costs are learned in the first ones.
const TAIL_LOSS_MAX: f64 = 1.0;
/// First and longest pause of tails that were slower, in iterations: without a tail it is not known what it would gain.
const PAUSE_FIRST: u32 = 128;
const PAUSE_MAX: u32 = 4096;
/// Weight of an iteration in means: a worker that just became slow counts.
const WEIGHT: f64 = 0.3;

/// The shares of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Used {
    /// Even ones.
    Even,
    /// Planned ones.
    Planned,
    /// Others.
    Neither,
}

/// Times of an iteration, in seconds, at which its slowest worker finishes with either choice of shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// Time with planned shares.
    pub planned_s: f64,
    /// Time with even shares.
    pub even_s: f64,
    /// Time of the fastest worker with even shares.
    pub least_s: f64,
    /// The choice whose time was measured.
    pub used: Used,
    /// Number of samples and of workers. Only iterations of equal size are compared with each other.
    pub size: (u64, u64),
    /// Measured time with the tail, and time without it; `None` without a tail.
    pub tail: Option<(f64, f64)>,
    /// Number of iterations that it stands for.
    pub iterations: f64,
    /// Whether even shares were held.
    pub is_held: bool,
}

/// The balance of planned shares against even ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Balance {
    /// Mean time with even shares, in seconds; 0 before the first comparison.
    even_s: f64,
    /// Gain of planned shares on balance since the last change of the choice, in iterations.
    gained: f64,
    /// Mean gain of planned shares, in iterations.
    mean: f64,
    trial: Trial,
    /// Gain that ends the next hold, in iterations, after division by [`NEEDED_GROWTH`].
    needed: f64,
    /// Loss, in iterations, above which even shares are held.
    allowed: f64,
    /// Loss as a share of the step, for which even shares are held; `None` while planned shares are used.
    held: Option<f64>,
}

/// The first iterations with planned shares, compared with measured even ones.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct Trial {
    /// Mean measured time of iterations with even shares, in seconds; 0 before the first.
    even_s: f64,
    /// The latest of them.
    latest_s: f64,
    /// Mean time of the fastest worker in them, in seconds.
    least_s: f64,
    /// Their size.
    size: (u64, u64),
    /// Number of compared iterations with planned shares, and of those that they stand for.
    count: u32,
    iterations: f64,
    /// Their gain on balance, in iterations.
    gained: f64,
}

impl Trial {
    fn observe(&mut self, compared: &Compared) {
        let is_same = self.size == compared.size && self.even_s > 0.0;
        if compared.used == Used::Even {
            let weight = if is_same { WEIGHT } else { 1.0 };
            let even_s = self.even_s + weight * (compared.even_s - self.even_s);
            let least_s = self.least_s + weight * (compared.least_s - self.least_s);
            *self =
                Self { even_s, latest_s: compared.even_s, least_s, size: compared.size, ..Self::default() };
        } else if is_same && self.count < TRIAL && compared.used == Used::Planned {
            self.count += 1;
            self.iterations += compared.iterations;
            // A worker that just became slow is in the latest even iteration, but hardly in the mean.
            // If even the fastest worker takes longer, work has grown for all.
            let work = (compared.least_s / self.least_s).clamp(1.0 / WORK_MAX, WORK_MAX);
            // An infinite time would have no gain.
            let even_s = (work * self.even_s.max(self.latest_s)).min(f64::MAX);
            self.gained += compared.weigh(gain(compared.planned_s, even_s, even_s));
        }
    }

    fn restart(&mut self) {
        *self = Self { count: 0, iterations: 0.0, gained: 0.0, ..*self };
    }

    /// Loss per iteration, if it is too large.
    fn loss(&self) -> Option<f64> {
        (self.gained < -LOSS_FIRST).then(|| -self.gained / self.iterations.max(1.0))
    }
}

impl Compared {
    /// Returns the gain of all iterations that this one stands for, from the gain of one of them.
    fn weigh(&self, gain: f64) -> f64 {
        (self.iterations * gain).clamp(-REPORT_MAX, REPORT_MAX)
    }
}

/// Gain over even shares, in iterations that take `one_s` seconds.
fn gain(planned_s: f64, even_s: f64, one_s: f64) -> f64 {
    ((even_s - planned_s) / one_s).clamp(-ONE_MAX, ONE_MAX)
}

impl Default for Balance {
    fn default() -> Self {
        let needed = NEEDED_FIRST / NEEDED_GROWTH;
        Self {
            even_s: 0.0,
            gained: 0.0,
            mean: 0.0,
            trial: Trial::default(),
            needed,
            allowed: LOSS_FIRST,
            held: None,
        }
    }
}

impl Balance {
    /// Whether a stored value is usable.
    pub fn is_valid(&self) -> bool {
        let Self { even_s, gained, mean, trial, needed, allowed, held } = self;
        [*even_s, trial.even_s, trial.latest_s, trial.least_s]
            .iter()
            .all(|seconds| seconds.is_finite() && *seconds >= 0.0)
            && gained.abs() <= NEEDED_MAX + ITERATIONS_MAX
            && mean.abs() <= ONE_MAX
            && (0.0..=f64::from(TRIAL) * ITERATIONS_MAX).contains(&trial.iterations)
            // Sums are rounded.
            && trial.gained.abs() <= ONE_MAX * trial.iterations + ONE_MAX
            && (NEEDED_FIRST / NEEDED_GROWTH..=NEEDED_MAX).contains(needed)
            && (LOSS_FIRST..=LOSS_MAX).contains(allowed)
            && held.is_none_or(|loss| (0.0..=1.0).contains(&loss))
    }

    /// Returns the loss of planned shares, as a share of the step, for which even shares are held; `None` while planned
    /// ones are used.
    pub fn held(&self) -> Option<f64> {
        self.held
    }

    /// Returns the gain of planned shares on balance, in iterations.
    pub fn gained(&self) -> f64 {
        self.gained
    }

    /// Learns from an iteration.
    pub fn observe(&mut self, compared: &Compared) {
        let Compared { planned_s, even_s, iterations, .. } = *compared;
        let is_known = |seconds: f64| seconds.is_finite() && seconds > 0.0;
        if !(is_known(planned_s)
            && is_known(even_s)
            && is_known(compared.least_s)
            && (0.0..=ITERATIONS_MAX).contains(&iterations))
        {
            return;
        }
        let weight = if self.even_s > 0.0 { WEIGHT } else { 1.0 };
        let most_s = if self.even_s > 0.0 { PAUSE * self.even_s } else { f64::INFINITY };
        self.even_s += weight * (even_s.min(most_s) - self.even_s);
        let gain = gain(planned_s, even_s, self.even_s);
        self.mean += WEIGHT * (gain - self.mean);
        self.trial.observe(compared);
        // Iterations of a hold that were reported after its end say nothing about the use of planned shares.
        if compared.is_held && self.held.is_none() {
            return;
        }
        self.gained += compared.weigh(gain);
        self.allowed = (self.allowed + LOSS_GROWTH * iterations).min(LOSS_MAX);
        if self.held.is_some() {
            self.gained = self.gained.max(0.0);
            if self.gained >= self.needed {
                (self.held, self.gained) = (None, 0.0);
                self.trial.restart();
            }
            return;
        }
        self.gained = self.gained.min(self.trial.gained.clamp(GAIN_LEAST, GAIN_MOST));
        let falls = (-compared.weigh(gain.max(0.0)) / NEEDED_FALLS).exp();
        self.needed = (self.needed * falls).max(NEEDED_FIRST / NEEDED_GROWTH);
        let loss = (self.gained < -self.allowed).then_some(-self.mean);
        if let Some(loss) = self.trial.loss().or(loss) {
            self.held = Some(loss.clamp(0.0, 1.0));
            (self.gained, self.allowed) = (0.0, LOSS_FIRST);
            self.trial.restart();
            self.needed = (NEEDED_GROWTH * self.needed).min(NEEDED_MAX);
        }
    }
}

/// The balance of shared tails against the same iterations without them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TailBalance {
    /// Gain of tails on balance since the last pause, in iterations.
    gained: f64,
    /// Iterations that are left of a pause.
    paused: u32,
    /// Length of the next pause.
    pause: u32,
}

impl Default for TailBalance {
    fn default() -> Self {
        Self { gained: 0.0, paused: 0, pause: PAUSE_FIRST }
    }
}

impl TailBalance {
    /// Whether a stored value is usable.
    pub fn is_valid(&self) -> bool {
        let lengths = PAUSE_FIRST..=PAUSE_MAX;
        self.gained.abs() <= GAIN_MOST && self.paused <= PAUSE_MAX && lengths.contains(&self.pause)
    }

    /// Whether tails are paused because they were slower.
    pub fn is_paused(&self) -> bool {
        self.paused > 0
    }

    /// Learns from an iteration: its measured time and its time without the tail, if it had one.
    pub fn observe(&mut self, tail: Option<(f64, f64)>, iterations: f64) {
        let Some((took_s, without_s)) = tail else {
            self.paused = self.paused.saturating_sub(iterations.ceil() as u32);
            return;
        };
        // With a tail, a report has the times of one iteration, not of several.
        let gain = gain(took_s, without_s, without_s);
        if self.paused > 0 || gain.is_nan() {
            return;
        }
        self.gained = (self.gained + gain).min(TAIL_LOSS_MAX);
        if self.gained >= TAIL_LOSS_MAX {
            self.pause = (self.pause - self.pause / 16).max(PAUSE_FIRST);
        }
        if self.gained < -TAIL_LOSS_MAX {
            (self.paused, self.gained) = (self.pause, 0.0);
            self.pause = self.pause.saturating_mul(2).min(PAUSE_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compared(gain: f64, is_even: bool) -> Compared {
        let used = if is_even { Used::Even } else { Used::Planned };
        Compared {
            planned_s: 1.0 - gain,
            even_s: 1.0,
            least_s: 1.0,
            used,
            size: (8, 2),
            tail: None,
            iterations: 1.0,
            is_held: is_even,
        }
    }

    /// Returns the loss against even shares in these iterations, each with the gain that planned shares have.
    fn loss(balance: &mut Balance, iterations: usize, mut gain: impl FnMut(bool) -> f64) -> f64 {
        let mut loss = 0.0;
        for _ in 0..iterations {
            let is_even = balance.held().is_some();
            let gain = gain(is_even);
            balance.observe(&compared(gain, is_even));
            loss -= if is_even { 0.0 } else { gain };
        }
        loss
    }

    /// A second, and what reports may contain at the least and at the most.
    fn unit_s() -> impl Strategy<Value = f64> {
        prop_oneof![4 => Just(1.0), 1 => Just(f64::MIN_POSITIVE), 1 => Just(f64::MAX)]
    }

    proptest! {
        /// An adversary that knows the choice: planned shares gain while even ones are held, and lose while they are used.
        #[test]
        fn planned_shares_that_lose_whenever_they_are_used_lose_little(gain in 0.001f64..0.5, loses in 0.001f64..0.5) {
            for iterations in [200, 2000] {
                let lost =
                    loss(&mut Balance::default(), iterations, |is_even| if is_even { gain } else { -loses });
                prop_assert!(lost <= 0.01 * iterations as f64, "{lost} of {iterations}");
            }
        }

        #[test]
        fn stored_values_are_valid(
            steps in prop::collection::vec((-2.0f64..0.9, 1.0f64..70.0, unit_s(), unit_s(), any::<bool>()), 0..300)
        ) {
            let (mut balance, mut tails) = (Balance::default(), TailBalance::default());
            for (gain, iterations, unit_s, least_s, is_even) in steps {
                let (planned_s, even_s) = (unit_s * (1.0 - gain), unit_s);
                let is_held = balance.held().is_some();
                balance.observe(&Compared {
                    planned_s, even_s, least_s, iterations, is_held, ..compared(gain, is_even)
                });
                tails.observe((!tails.is_paused()).then_some((planned_s, even_s)), iterations);
                prop_assert!(balance.is_valid() && tails.is_valid(), "{balance:?} {tails:?}");
            }
        }
    }

    #[test]
    fn planned_shares_that_gain_are_used() {
        let mut balance = Balance::default();
        assert!(loss(&mut balance, 100, |_| 0.3) < -29.0);
        // A pause of the fastest worker is no reason.
        balance.observe(&compared(-3.0, false));
        assert_eq!(balance.held(), None);
        loss(&mut balance, 11, |_| -0.3);
        assert!(
            balance.held().is_some_and(|loss| loss > 0.0),
            "the gain of 8 iterations and what they may lose"
        );
        loss(&mut balance, 7, |_| 0.3);
        assert_eq!(balance.held(), None, "as soon as they would have gained 2 iterations");
    }

    /// Compared by curves, planned shares lose nothing, but an iteration with them takes twice as long as an even one.
    #[test]
    fn costs_that_curves_do_not_know_count() {
        let mut balance = Balance::default();
        balance.observe(&compared(0.0, true));
        balance.observe(&Compared { planned_s: 2.0, even_s: 2.0, ..compared(0.0, false) });
        assert!(balance.held().is_some_and(|loss| loss == 0.5), "{balance:?}");
        // A worker that just became slow is no such cost.
        let mut balance = Balance::default();
        balance.observe(&compared(0.0, true));
        balance.observe(&Compared { planned_s: 3.0, even_s: 3.0, ..compared(0.0, true) });
        balance.observe(&Compared { planned_s: 2.0, even_s: 3.0, ..compared(0.0, false) });
        assert_eq!(balance.held(), None);
        // With fewer workers, iterations take longer; then the measured times are of another job.
        let mut balance = Balance::default();
        balance.observe(&compared(0.0, true));
        balance.observe(&Compared { planned_s: 2.0, even_s: 2.0, size: (8, 1), ..compared(0.0, false) });
        assert_eq!(balance.held(), None);
    }

    #[test]
    fn iterations_without_times_change_nothing() {
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut balance = Balance::default();
            balance.observe(&Compared { planned_s: seconds, ..compared(0.1, true) });
            balance.observe(&Compared { even_s: seconds, ..compared(0.1, true) });
            assert_eq!(balance, Balance::default());
        }
    }

    /// A tail that loses is paused, for longer every time; one that gains is not.
    #[test]
    fn tails_that_lose_are_paused() {
        let mut balance = TailBalance::default();
        let mut used = 0;
        for _ in 0..1000 {
            used += u32::from(!balance.is_paused());
            balance.observe((!balance.is_paused()).then_some((1.1, 1.0)), 1.0);
            assert!(balance.is_valid());
        }
        assert_eq!(used, 40, "ten losses in each of four tries");
        let mut balance = TailBalance::default();
        (0..1000).for_each(|at| balance.observe(Some((if at % 4 == 0 { 1.2 } else { 0.9 }, 1.0)), 1.0));
        assert!(!balance.is_paused());
    }
}
