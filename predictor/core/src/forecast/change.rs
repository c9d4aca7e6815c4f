//! A level that starts again when the speed changes at once: an average cannot follow a jump, and the last value does not average.
//!
//! A residual beyond five deviations is a jump, and the new value becomes the level. The level before remains known: a speed
//! that returns to it finds it unchanged. Slow-downs that were over after one iteration are counted. A worker whose slow-downs
//! mostly are, as with a checkpoint, keeps its level until a second value confirms the jump.

use serde::{Deserialize, Serialize};

use crate::series::LOG_SPEED_MAX;

/// Number of deviations beyond which a residual is a jump.
const JUMP: f64 = 5.0;
/// Number of deviations at which residuals are clipped when the deviation is updated.
const CLIP: f64 = 3.0;
/// Initial and smallest deviation, in log speed, and the smallest weight of an iteration in its square.
const DEVIATION_FIRST: f64 = 0.2;
const DEVIATION_MIN: f64 = 0.01;
const DEVIATION_WEIGHT: f64 = 0.03;
/// Weight of an iteration in the deviation above which the deviation is not known: in the first eight iterations nothing is a jump.
const WEIGHT_KNOWN: f64 = 0.1;
/// Smallest weight of a value in the level. The first values of a level are averaged.
const ALPHA: f64 = 0.2;
/// Number of values of a level that is worth remembering.
const KNOWN_AGE: u32 = 3;
/// Age from which on values have the smallest weight.
const AGE_MAX: u32 = 5;
/// Loss by a slow-down that lasts and was not followed, over the loss by one that was followed and did not last.
const LASTING_LOSS: f64 = 2.0;
/// Decay of the counts of slow-downs at each of them.
const COUNT_DECAY: f64 = 0.9;

/// A level of log speed and the number of its values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Level {
    mean: f64,
    age: u32,
}

/// Relation of a value to the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// A value of the level.
    Stays,
    /// A value far from all known levels: it starts a new one.
    Leaves,
    /// A value of the level before the latest jump.
    Returns,
}

/// Forecasts of a level that can jump.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangePoint {
    level: Level,
    /// The level before the latest jump.
    before: Option<Level>,
    variance: f64,
    /// Weight of the next iteration in the variance.
    weight: f64,
    /// Decayed numbers of slow-downs that were over after one iteration, and of others.
    passed: f64,
    lasted: f64,
}

impl ChangePoint {
    /// Starts with the first log speed.
    pub fn new(first: f64) -> Self {
        let variance = DEVIATION_FIRST * DEVIATION_FIRST;
        Self {
            level: Level { mean: first, age: 1 },
            before: None,
            variance,
            weight: 0.5,
            passed: 0.0,
            lasted: 0.0,
        }
    }

    /// Whether a stored level is usable.
    pub(super) fn is_valid(&self) -> bool {
        let is_level = |level: &Level| level.mean.abs() <= LOG_SPEED_MAX && level.age <= AGE_MAX;
        let is_count = |count: &f64| (0.0..=1.0 / (1.0 - COUNT_DECAY) + 1.0).contains(count);
        [Some(self.level), self.before].iter().flatten().all(is_level)
            && (DEVIATION_MIN.powi(2)..=LOG_SPEED_MAX.powi(2)).contains(&self.variance)
            && (0.0..=1.0).contains(&self.weight)
            && [self.passed, self.lasted].iter().all(is_count)
    }

    /// Returns the forecast of the next log speed.
    pub fn level(&self) -> f64 {
        match self.before {
            Some(before) if self.is_doubtful(&before) => before.mean,
            _ => self.level.mean,
        }
    }

    /// Whether the latest value was a slow-down that will probably be over in the next iteration.
    fn is_doubtful(&self, before: &Level) -> bool {
        let lasting = LASTING_LOSS * (1.0 + self.lasted);
        self.level.age == 1 && self.level.mean < before.mean && lasting < 1.0 + self.passed
    }

    /// Returns the usual size of a residual.
    pub fn deviation(&self) -> f64 {
        self.variance.sqrt()
    }

    /// Whether a residual is a jump, after this change of the log batch. A part that a fixed time per iteration explains does not
    /// count: to follow it would make the batch smaller again and again. Right after a jump the batch changes because of it, and
    /// explains nothing: the speed can jump again.
    pub fn is_jump(&self, residual: f64, batch_change: f64) -> bool {
        let is_explained = residual * batch_change > 0.0 && self.level.age > 1;
        let explained = if is_explained { batch_change.abs() } else { 0.0 };
        self.weight < WEIGHT_KNOWN && residual.abs() - explained > JUMP * self.deviation()
    }

    /// Adds the next log speed, after this change of the log batch.
    pub fn update(&mut self, value: f64, batch_change: f64) -> Move {
        let residual = value - self.level.mean;
        let returns = |before: &Level| {
            let back = value - before.mean;
            back.abs() < residual.abs() && !self.is_jump(back, 0.0)
        };
        let moved = match self.before {
            _ if !self.is_jump(residual, batch_change) => Move::Stays,
            Some(before) if returns(&before) => Move::Returns,
            _ => Move::Leaves,
        };
        if let Some(before) =
            self.before.filter(|before| self.level.age == 1 && self.level.mean < before.mean)
        {
            let passes = f64::from(u8::from(moved == Move::Returns || value > before.mean));
            self.passed = COUNT_DECAY * self.passed + passes;
            self.lasted = COUNT_DECAY * self.lasted + 1.0 - passes;
        }
        match moved {
            Move::Stays => self.level.add(value),
            Move::Returns => {
                let left = self.level;
                self.level = self.before.unwrap_or(left);
                self.level.add(value);
                self.before = Some(left).filter(|left| left.age >= KNOWN_AGE);
            }
            Move::Leaves => {
                let left = std::mem::replace(&mut self.level, Level { mean: value, age: 1 });
                if left.age >= KNOWN_AGE || self.before.is_none() {
                    self.before = Some(left);
                }
            }
        }
        let usual = CLIP * self.deviation();
        let error = residual.clamp(-usual, usual);
        self.variance += self.weight * (error * error - self.variance);
        self.variance = self.variance.max(DEVIATION_MIN * DEVIATION_MIN);
        // A mean at first: 1/2, 1/3, and so on.
        self.weight = (self.weight / (1.0 + self.weight)).max(DEVIATION_WEIGHT);
        moved
    }
}

impl Level {
    fn add(&mut self, value: f64) {
        self.age = (self.age + 1).min(AGE_MAX);
        self.mean += (1.0 / f64::from(self.age)).max(ALPHA) * (value - self.mean);
    }
}

/// Share of the lead that returns to its prior in each iteration.
const LEAD_SHARE: f64 = 0.02;
/// Prior probability that the change point forecasts better than the mix.
const LEAD_PRIOR: f64 = 0.05;
/// Limit of the evidence of one iteration, in log likelihood.
const EVIDENCE_MAX: f64 = 8.0;

/// Probability that the change point forecasts better than a mix of averages: nearly 1 after a jump that the mix missed, until
/// the averages are as good again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Lead(f64);

impl Lead {
    pub fn new() -> Self {
        Self(LEAD_SHARE * LEAD_PRIOR)
    }

    /// Whether a stored lead is usable.
    pub fn is_valid(self) -> bool {
        self.0 > 0.0 && self.0 < 1.0
    }

    /// Whether the change point leads.
    pub fn leads(self) -> bool {
        self.0 > 0.5
    }

    /// Returns the weight of the change point. The smaller of the two probabilities has little weight, because an average can be
    /// off by many deviations.
    pub fn weight(self) -> f64 {
        let (own, other) = (self.0.powi(2), (1.0 - self.0).powi(2));
        own / (own + other)
    }

    /// Compares the residuals of the change point and of the mix, in deviations.
    pub fn compare(&mut self, own: f64, mix: f64) {
        let evidence = (0.5 * (mix * mix - own * own)).clamp(-EVIDENCE_MAX, EVIDENCE_MAX).exp();
        let odds = evidence * self.0 / (1.0 - self.0);
        self.share(odds / (1.0 + odds));
    }

    /// Gives the lead to the change point.
    pub fn take(&mut self) {
        self.share(1.0);
    }

    fn share(&mut self, probability: f64) {
        self.0 = (1.0 - LEAD_SHARE) * probability + LEAD_SHARE * LEAD_PRIOR;
    }
}
