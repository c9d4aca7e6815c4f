//! The learning-rate rules, their settings, and the multipliers that they lead to.
//!
//! With `B_0` the global batch that the client's schedule was made for and `k = B / B_0` the scale:
//!
//! | rule | multiplier | from |
//! |---|---|---|
//! | [`Rule::None`] | 1 | |
//! | [`Rule::Linear`] | `k` at once | Goyal et al. 2017 |
//! | [`Rule::Sqrt`] | `sqrt(k)` at once (Adam) | Krizhevsky 2014 |
//! | [`Rule::DynamicSgd`] | increases linearly to `k`, decreases to `k` at once | Lin et al. 2019, arXiv 1904.12043 |
//! | [`Rule::Legw`] | `sqrt(k)`, after a warm-up of `k` times as many epochs | You et al. 2019 |
//! | [`Rule::AdaScale`] | the gain computed from the gradient noise, 1 to `k` | Johnson et al. 2020 |

use evenstep_protocol::Ramp;
use serde::{Deserialize, Serialize};

/// Maximum of a setting in a stored rule.
const SETTING_MAX: f64 = 1e9;

/// Rules by which the learning rate follows the global batch. [`Rule::check`] checks the settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The learning rate does not change.
    None,
    /// Multiplier `k`, at once.
    Linear,
    /// Multiplier `sqrt(k)`, at once.
    Sqrt,
    /// Multiplier `k`: increases are ramped, decreases take effect at once. A change during a ramp starts a
    /// new ramp from the current multiplier.
    DynamicSgd {
        /// Length of a ramp.
        ramp: RampLength,
    },
    /// Multiplier `sqrt(k)`, reached linearly over a warm-up of `warmup_epochs k` epochs from the start of
    /// training.
    Legw {
        /// Number of warm-up epochs at the base batch; finite, not negative.
        warmup_epochs: f64,
        /// Number of samples in an epoch; at least 1.
        dataset_samples: u64,
    },
    /// The gain computed from the gradient noise.
    #[serde(rename = "adascale")]
    AdaScale,
}

/// Length of a ramp.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RampLength {
    /// Number of iterations per growth factor of the multiplier, rounded up; finite, not negative.
    PerGrowth(f64),
    /// Fixed number of iterations; with 0 the change takes effect at once.
    Iterations(u64),
}

impl Default for RampLength {
    /// Eight iterations per growth factor of the batch, as in implementations of Dynamic SGD. With momentum
    /// 0.9, the noise of an update exceeds its final value by at most 4 % (see `learning_rate::noise` of the core).
    fn default() -> Self {
        Self::PerGrowth(8.0)
    }
}

impl RampLength {
    fn iterations(self, from: f64, to: f64) -> u64 {
        match self {
            Self::PerGrowth(each) => (each * (to / from).max(1.0)).ceil() as u64,
            Self::Iterations(iterations) => iterations,
        }
    }
}

/// A change of the batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The first iteration with the new batch.
    pub iteration: u64,
    /// Its multiplier without the change; `None` at the beginning.
    pub multiplier: Option<f64>,
    /// The new batch, in samples.
    pub global_batch: u64,
    /// The base batch, in samples.
    pub base_global_batch: u64,
    /// Number of samples processed before it.
    pub samples: u64,
}

/// A rule with a setting that is out of its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidRule {
    /// A data set without samples.
    #[error("dataset_samples is 0; it must be at least 1")]
    NoSamples,
    /// A negative setting, or one that is not finite.
    #[error("{name} {value} is out of range; it must be finite and not negative")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// Its value.
        value: f64,
    },
}

impl Rule {
    /// Whether a stored rule is usable.
    pub fn is_valid(&self) -> bool {
        let most = match *self {
            Self::DynamicSgd { ramp: RampLength::PerGrowth(each) } => each,
            Self::Legw { warmup_epochs, .. } => warmup_epochs,
            _ => 0.0,
        };
        self.check().is_ok() && most <= SETTING_MAX
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`InvalidRule`] if a setting is out of range or the data set has no samples.
    pub fn check(&self) -> Result<(), InvalidRule> {
        let not_negative = |name, value: f64| match value >= 0.0 && value.is_finite() {
            true => Ok(()),
            false => Err(InvalidRule::Setting { name, value }),
        };
        match *self {
            Self::DynamicSgd { ramp: RampLength::PerGrowth(each) } => {
                not_negative("ramp iterations per growth factor", each)
            }
            Self::Legw { warmup_epochs, dataset_samples } => {
                if dataset_samples == 0 {
                    return Err(InvalidRule::NoSamples);
                }
                not_negative("warmup_epochs", warmup_epochs)
            }
            _ => Ok(()),
        }
    }

    /// Returns the multipliers after a change of the batch, for rules that need no gradients. A client
    /// without an instruction for a changed batch can use this. The settings of the rule must be valid, and
    /// no batch may be 0.
    pub fn course(&self, change: &Change) -> Ramp {
        let scale = change.global_batch as f64 / change.base_global_batch as f64;
        match *self {
            Self::None | Self::AdaScale => Ramp::at_once(1.0, change.iteration),
            Self::Linear => Ramp::at_once(scale, change.iteration),
            Self::Sqrt => Ramp::at_once(scale.sqrt(), change.iteration),
            // At the beginning the momentum buffer contains no noise. The ramp starts at 1, the multiplier of
            // the batch that the schedule was made for.
            Self::DynamicSgd { ramp } => {
                ramp_up(change.multiplier.unwrap_or(1.0), scale, ramp, change.iteration)
            }
            Self::Legw { warmup_epochs, dataset_samples } => {
                warm_up(change, scale, warmup_epochs * dataset_samples as f64)
            }
        }
    }
}

fn ramp_up(from: f64, to: f64, length: RampLength, start_iteration: u64) -> Ramp {
    if to <= from {
        return Ramp::at_once(to, start_iteration);
    }
    match length.iterations(from, to) {
        0 => Ramp::at_once(to, start_iteration),
        iterations => Ramp { from, to, start_iteration, iterations },
    }
}

/// An iteration includes its own samples in the progress, so the first learning rate is not 0. The warm-up
/// ends at a whole iteration, so that a client can finish it without the predictor.
fn warm_up(change: &Change, scale: f64, base_warmup_samples: f64) -> Ramp {
    let batch = change.global_batch as f64;
    let warmup = base_warmup_samples * scale;
    let done = change.samples as f64 + batch;
    if done >= warmup {
        return Ramp::at_once(scale.sqrt(), change.iteration);
    }
    Ramp {
        from: scale.sqrt() * done / warmup,
        to: scale.sqrt(),
        start_iteration: change.iteration,
        iterations: ((warmup - done) / batch).ceil() as u64,
    }
}
