//! How the learning rate follows the global batch: rules, and what a client is told to do.

use serde::{Deserialize, Serialize};

/// Rules by which the learning rate follows the global batch. With `k` the global batch over the one that the job began with:
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LearningRateRule {
    /// The learning rate never changes.
    None,
    /// Times `k`, at once.
    Linear,
    /// Times the root of `k`, at once (for Adam).
    Sqrt,
    /// Dynamic Mini-batch SGD (arXiv 1904.12043): times `k`, ramped up, snapped down.
    #[default]
    DynamicSgd,
    /// LEGW (arXiv 1901.08256): times the root of `k`, after a warm-up whose epochs grow with `k`.
    Legw,
    /// AdaScale SGD (arXiv 2007.05105): by the gain that the gradients' noise allows; reports must carry their norms.
    Adascale,
}

/// Settings of the rules.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LearningRateSettings {
    /// `dynamic_sgd`: iterations of a ramp; 0 jumps. Default 8 max(1, k).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp_iterations: Option<u64>,
    /// `legw`: epochs of warm-up at the base batch. Needed by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_epochs: Option<f64>,
    /// `legw`: samples of an epoch. Needed by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_samples: Option<u64>,
}

/// What the learning rate does in this iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OptimizerInstruction {
    /// The job's rule.
    pub rule: LearningRateRule,
    /// Multiply the schedule's learning rate by this.
    pub lr_multiplier: f64,
    /// For optimizers that keep the learning rate inside the momentum buffer (`v = mu v + eta g`): multiply the buffer by this
    /// before the step. Others (PyTorch's form) leave theirs alone.
    pub momentum_buffer_scale: f64,
    /// The ramp under way, so that a client can finish it alone.
    pub ramp: Option<Ramp>,
    /// `adascale`: how far the schedule has come, in iterations of the base batch: read the schedule's learning rate there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_iteration: Option<f64>,
}

/// A linear ramp of the multiplier over iterations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ramp {
    /// Multiplier at its start.
    pub from: f64,
    /// Multiplier at its end.
    pub to: f64,
    /// Iteration it starts at.
    pub start_iteration: u64,
    /// How many iterations it takes.
    pub iterations: u64,
}
