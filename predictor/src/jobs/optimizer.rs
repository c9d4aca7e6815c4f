//! The learning-rate instruction of an answer.

use evenstep_core::learning_rate::{
    Controller, GradientNorms, LearningRateError, LocalNorm, RampLength, Rule,
};
use evenstep_protocol::{JobSpec, LearningRateRule, OptimizerInstruction, Ramp, WorkerReport};

/// The rule that a job asks for.
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

/// The rule of a job at its beginning: the batch that it has then is its base.
///
/// # Errors
/// Where a setting of the rule is out of range.
pub fn controller(spec: &JobSpec) -> Result<Controller, LearningRateError> {
    Controller::new(rule(spec), spec.global_batch)
}

/// The instruction of an iteration. One that is planned again, or before others that were asked for, was followed by nobody, nor
/// were those after it: they are forgotten first.
///
/// # Errors
/// Where it lies so far back that what came before it is forgotten.
pub fn instruct(
    controller: &mut Controller,
    rule: LearningRateRule,
    iteration: u64,
    global_batch: u64,
) -> Result<OptimizerInstruction, LearningRateError> {
    controller.void_from(iteration)?;
    let instruction = controller.instruct(iteration, global_batch)?;
    Ok(OptimizerInstruction {
        rule,
        lr_multiplier: instruction.lr_multiplier,
        momentum_buffer_scale: instruction.momentum_buffer_scale,
        ramp: instruction.ramp.map(|ramp| Ramp {
            from: ramp.from,
            to: ramp.to,
            start_iteration: ramp.start_iteration,
            iterations: ramp.iterations,
        }),
        schedule_iteration: (rule == LearningRateRule::Adascale)
            .then_some(instruction.schedule_iteration as f64),
    })
}

/// What the reports of one iteration say of its gradients; `None` where they do not carry norms.
pub fn norms<'a>(reports: impl IntoIterator<Item = &'a WorkerReport>) -> Option<GradientNorms> {
    let mut locals = Vec::new();
    let mut global_squared = None;
    for report in reports.into_iter().filter(|report| report.local_batch > 0) {
        locals.push(LocalNorm { local_batch: report.local_batch, squared: report.gradient_sqr? });
        global_squared = report.global_gradient_sqr.or(global_squared);
    }
    Some(GradientNorms { locals, global_squared: global_squared? })
}
