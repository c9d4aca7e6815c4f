//! The learning-rate rule of a job, and the instruction of an iteration.

use evenstep_protocol::{JobSpec, LearningRateRule, OptimizerInstruction};
use evenstep_rules::learning_rate::{RampLength, Rule};

use crate::learning_rate::{Controller, Instruction, LearningRateError};

/// Returns the learning-rate rule in the job options.
pub fn rule(spec: &JobSpec) -> Rule {
    let settings = &spec.learning_rate;
    match spec.rule {
        LearningRateRule::None => Rule::None,
        LearningRateRule::Linear => Rule::Linear,
        LearningRateRule::Sqrt => Rule::Sqrt,
        LearningRateRule::DynamicSgd => Rule::DynamicSgd {
            ramp: settings.ramp_iterations.map_or_else(RampLength::default, RampLength::Iterations),
        },
        LearningRateRule::Legw => Rule::Legw {
            warmup_epochs: settings.warmup_epochs.unwrap_or_default(),
            dataset_samples: settings.dataset_samples.unwrap_or_default(),
        },
        LearningRateRule::Adascale => Rule::AdaScale,
    }
}

/// Creates the controller of a new job. The global batch in the job options is the base batch.
///
/// # Errors
/// [`LearningRateError`] if a setting of the rule is out of range.
pub fn controller(spec: &JobSpec) -> Result<Controller, LearningRateError> {
    Controller::new(rule(spec), spec.global_batch)
}

/// Converts an instruction to its wire type.
pub fn to_wire(rule: LearningRateRule, instruction: &Instruction) -> OptimizerInstruction {
    OptimizerInstruction {
        rule,
        lr_multiplier: instruction.lr_multiplier,
        momentum_buffer_scale: instruction.momentum_buffer_scale,
        ramp: instruction.ramp,
        schedule_iteration: (rule == LearningRateRule::Adascale)
            .then_some(instruction.schedule_iteration as f64),
    }
}
