//! The rules, their settings, and where each sends the multiplier.

use serde::{Deserialize, Serialize};

use super::error::LearningRateError;
use super::ramp::Ramp;

/// How the learning rate follows the global batch. Settings are checked where a [`super::Controller`] is made of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// It does not.
    None,
    /// `k`, at once.
    Linear,
    /// `sqrt(k)`, at once.
    Sqrt,
    /// To `k`: in a ramp where that is more than it is, at once where it is less. A change during a ramp starts another
    /// one from where the multiplier is.
    DynamicSgd {
        /// How long a ramp takes.
        ramp: RampLength,
    },
    /// `sqrt(k)`, reached in a straight line over a warm-up of `warmup_epochs k` epochs since the beginning of training.
    Legw {
        /// Epochs of warm-up at the base batch; finite, not negative.
        warmup_epochs: f64,
        /// Samples of an epoch; at least 1.
        dataset_samples: u64,
    },
    /// The gain that gradients show.
    #[serde(rename = "adascale")]
    AdaScale,
}

/// How many iterations a ramp takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RampLength {
    /// So many times the growth of the multiplier, rounded up; finite, not negative.
    PerGrowth(f64),
    /// So many, whatever the growth; 0: at once.
    Iterations(u64),
}

impl Default for RampLength {
    /// Eight for each time that the batch grows by: what implementations of Dynamic SGD use. With momentum .9 it keeps the
    /// noise of an update within 4 % of where it ends (see [`super::noise`]).
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

/// LEGW in closed form: `sqrt(scale) min(1, progress / (warmup_epochs scale dataset / batch))`, with `progress` in iterations
/// of `batch` samples, the base batch.
pub fn legw_multiplier(
    scale: f64,
    progress: f64,
    warmup_epochs: f64,
    dataset_samples: f64,
    batch: f64,
) -> f64 {
    let warmup = warmup_epochs * scale * dataset_samples / batch;
    let share = if warmup > 0.0 { (progress / warmup).min(1.0) } else { 1.0 };
    scale.sqrt() * share
}

/// Where a change of the batch takes place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The iteration that has the new batch.
    pub iteration: u64,
    /// The multiplier that it would have had; `None` at the beginning.
    pub multiplier: Option<f64>,
    /// The new batch in samples.
    pub global_batch: u64,
    /// The base batch in samples.
    pub base_global_batch: u64,
    /// Samples seen before it.
    pub samples: u64,
}

impl Rule {
    /// # Errors
    /// [`LearningRateError::Setting`] where one is out of range.
    pub(super) fn check(&self) -> Result<(), LearningRateError> {
        let not_negative = |name, value: f64| match value >= 0.0 && value.is_finite() {
            true => Ok(()),
            false => Err(LearningRateError::Setting { name, value, range: "finite and not negative" }),
        };
        match *self {
            Self::DynamicSgd { ramp: RampLength::PerGrowth(each) } => {
                not_negative("iterations of a ramp for each time of growth", each)
            }
            Self::Legw { warmup_epochs, dataset_samples } => {
                if dataset_samples == 0 {
                    return Err(LearningRateError::NoSamples { which: "dataset" });
                }
                not_negative("epochs of warm-up", warmup_epochs)
            }
            _ => Ok(()),
        }
    }

    /// The course of the multiplier from a change of the batch on, where no gradients are needed to tell. A client that has no
    /// instruction for a changed batch follows this. The settings of the rule must be in range, and no batch 0.
    pub fn course(&self, change: &Change) -> Ramp {
        let scale = change.global_batch as f64 / change.base_global_batch as f64;
        match *self {
            Self::None | Self::AdaScale => Ramp::at_once(1.0, change.iteration),
            Self::Linear => Ramp::at_once(scale, change.iteration),
            Self::Sqrt => Ramp::at_once(scale.sqrt(), change.iteration),
            // At the beginning there is no momentum that could hold noise, so there is nothing to ramp from but 1, the
            // multiplier of the batch that the schedule was made for.
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

/// An iteration counts itself as progress, so that the first has no learning rate of 0. The warm-up ends at a whole
/// iteration, so that a client can finish it alone.
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
