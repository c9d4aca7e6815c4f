//! Learning-rate rules for a changing global batch, and the instruction to the client.

use serde::{Deserialize, Serialize};

/// Rules by which the learning rate follows the global batch. `k` is the global batch over the first global
/// batch of the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LearningRateRule {
    /// The learning rate never changes.
    None,
    /// Multiplies the learning rate by `k`, at once.
    Linear,
    /// Multiplies the learning rate by the square root of `k`, at once (for Adam).
    Sqrt,
    /// Dynamic Mini-batch SGD (arXiv 1904.12043): multiplies by `k`; increases are ramped, decreases are
    /// immediate.
    #[default]
    DynamicSgd,
    /// LEGW (arXiv 1901.08256): multiplies by the square root of `k`, after a warm-up whose epochs grow with
    /// `k`.
    Legw,
    /// AdaScale SGD (arXiv 2007.05105): multiplies by the gain computed from the gradient noise. Reports must
    /// contain the gradient norms.
    Adascale,
}

/// Settings of the learning-rate rules.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LearningRateSettings {
    /// `dynamic_sgd`: number of iterations of a ramp; 0 changes the learning rate at once. Default 8 max(1,
    /// k).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp_iterations: Option<u64>,
    /// `legw`: number of warm-up epochs at the base batch. Required by `legw`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_epochs: Option<f64>,
    /// `legw`: number of samples in an epoch. Required by `legw`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_samples: Option<u64>,
}

/// Instruction for the learning rate in this iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OptimizerInstruction {
    /// The job's learning-rate rule.
    pub rule: LearningRateRule,
    /// Factor for the schedule's learning rate.
    pub lr_multiplier: f64,
    /// Factor for the momentum buffer, applied before the step, for optimizers that keep the learning rate
    /// inside the buffer (`v = mu v + eta g`). Other optimizers, such as PyTorch's, leave their buffers
    /// unchanged.
    pub momentum_buffer_scale: f64,
    /// The ramp in progress, so that a client can finish it without the predictor.
    pub ramp: Option<Ramp>,
    /// `adascale`: progress of the schedule in iterations of the base batch. Evaluate the schedule at this
    /// iteration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_iteration: Option<f64>,
}

/// A linear ramp of the multiplier over iterations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ramp {
    /// Multiplier at its start.
    pub from: f64,
    /// Multiplier at its end.
    pub to: f64,
    /// First iteration of the ramp, which still has `from`.
    pub start_iteration: u64,
    /// Number of iterations of the ramp; with 0, the multiplier is `to` from the start.
    pub iterations: u64,
}

impl Ramp {
    /// Returns a constant multiplier from an iteration on.
    pub fn at_once(multiplier: f64, start_iteration: u64) -> Self {
        Self { from: multiplier, to: multiplier, start_iteration, iterations: 0 }
    }

    /// Returns the multiplier of an iteration: `from + (to - from) min(1, (i - start_iteration) / iterations)`.
    /// Before the start it is `from`, or `to` if the ramp has no iterations.
    ///
    /// # Examples
    /// ```
    /// use evenstep_protocol::Ramp;
    ///
    /// let ramp = Ramp { from: 1.0, to: 4.0, start_iteration: 100, iterations: 32 };
    /// assert_eq!(ramp.multiplier(116), 2.5);
    /// assert_eq!(ramp.multiplier(132), 4.0);
    /// ```
    pub fn multiplier(&self, iteration: u64) -> f64 {
        let done = iteration.saturating_sub(self.start_iteration);
        if done >= self.iterations {
            return self.to;
        }
        self.from + (self.to - self.from) * (done as f64 / self.iterations as f64)
    }

    /// Whether iterations from this one on still change the multiplier.
    pub fn is_active(&self, iteration: u64) -> bool {
        iteration.saturating_sub(self.start_iteration) < self.iterations
    }
}
