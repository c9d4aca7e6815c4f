//! Instructions by the client's iterations. The state can be stored, and repeated requests do not change it.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use evenstep_protocol::Ramp;
use evenstep_rules::learning_rate::{Change, Rule};
use serde::{Deserialize, Serialize};

use super::adascale::{Averages, GradientNorms};
use super::error::{KEPT_INSTRUCTIONS_MAX, LearningRateError};

/// Multipliers in a stored state.
const MULTIPLIERS: RangeInclusive<f64> = 1e-60..=1e60;

/// The instruction of a client for one iteration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Instruction {
    /// Factor for the schedule's learning rate.
    pub lr_multiplier: f64,
    /// Factor for the momentum buffer before the update, if the learning rate is inside the buffer
    /// (`v <- mu v + eta g; w <- w - v`): the multiplier over the previous iteration's multiplier. With PyTorch's form
    /// (`v <- mu v + g; w <- w - eta v`), the buffer is left unchanged.
    pub momentum_buffer_scale: f64,
    /// The iteration of the schedule whose learning rate is multiplied. It is the iteration itself, except
    /// with AdaScale: there each step counts as its gain.
    pub schedule_iteration: u64,
    /// The ramp in progress, which a client can finish without the predictor. `None` if the multiplier is
    /// constant.
    pub ramp: Option<Ramp>,
}

/// The learning rate of a job.
///
/// Iterations are requested in ascending order, and some may be skipped. During skipped iterations, clients
/// follow the last instruction. Requesting an iteration again returns the same instruction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Controller {
    rule: Rule,
    base_global_batch: u64,
    /// Kept instructions, oldest first; never empty after the first request.
    given: VecDeque<Given>,
    averages: Averages,
}

/// An instruction, and the state that determines the next one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Given {
    iteration: u64,
    global_batch: u64,
    /// Number of samples processed before it.
    samples: u64,
    /// The multipliers from here on; with AdaScale, a constant multiplier equal to the gain.
    course: Ramp,
    /// Number of iterations of the schedule done before it.
    progress: f64,
    instruction: Instruction,
}

impl Given {
    fn is_valid(&self) -> bool {
        let is_multiplier = |multiplier: f64| MULTIPLIERS.contains(&multiplier);
        let Instruction { lr_multiplier, momentum_buffer_scale, ramp, .. } = self.instruction;
        let ramps = [Some(self.course), ramp].into_iter().flatten();
        self.global_batch > 0
            && (0.0..=*MULTIPLIERS.end()).contains(&self.progress)
            && [lr_multiplier, momentum_buffer_scale].into_iter().all(is_multiplier)
            && ramps.flat_map(|ramp| [ramp.from, ramp.to]).all(is_multiplier)
    }
}

/// An instruction that is not in force yet. [`Controller::preview`] creates it, [`Controller::accept`]
/// applies it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PendingInstruction {
    /// The number of remembered instructions before it.
    kept: usize,
    next: Given,
    changes_state: bool,
}

impl PendingInstruction {
    /// Returns the instruction.
    pub fn instruction(&self) -> &Instruction {
        &self.next.instruction
    }

    /// Whether a controller without this instruction would give other instructions later: it must then be stored again.
    pub fn changes_state(&self) -> bool {
        self.changes_state
    }
}

impl Controller {
    /// Creates a controller for a schedule that was made for this global batch.
    ///
    /// # Errors
    /// [`LearningRateError`] if the batch has no samples or a setting of the rule is out of range.
    pub fn new(rule: Rule, base_global_batch: u64) -> Result<Self, LearningRateError> {
        rule.check()?;
        if base_global_batch == 0 {
            return Err(LearningRateError::NoSamples { which: "base global batch" });
        }
        let averages = Averages::default();
        Ok(Self { rule, base_global_batch, given: VecDeque::new(), averages })
    }

    /// Whether a stored controller is usable: its instructions are in order, and every number is in its range.
    pub(crate) fn is_valid(&self) -> bool {
        let iterations: Vec<u64> = self.given.iter().map(|given| given.iteration).collect();
        self.rule.is_valid()
            && self.base_global_batch > 0
            && self.given.len() <= KEPT_INSTRUCTIONS_MAX
            && iterations.is_sorted_by(|before, after| before < after)
            && self.given.iter().all(Given::is_valid)
            && self.averages.is_valid()
    }

    /// Returns the rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Returns the instruction of an iteration without changing the state, as if this and later iterations had
    /// not been requested. [`Self::accept`] makes it the newest. The short batch at the end of an epoch is not a
    /// change; preview such an iteration with the usual batch.
    ///
    /// # Errors
    /// [`LearningRateError::NoSamples`] if the global batch is 0.
    pub fn preview(
        &self,
        iteration: u64,
        global_batch: u64,
    ) -> Result<PendingInstruction, LearningRateError> {
        if global_batch == 0 {
            return Err(LearningRateError::NoSamples { which: "global batch" });
        }
        let kept = self.given.partition_point(|given| given.iteration < iteration);
        let newest = kept.checked_sub(1).and_then(|newest| self.given.get(newest));
        let next = self.next(newest, iteration, global_batch);
        let continues = newest.is_some_and(|newest| self.implies(newest, &next));
        Ok(PendingInstruction { kept, next, changes_state: kept < self.given.len() || !continues })
    }

    /// Appends an instruction. Earlier instructions for its iteration and for later ones are discarded.
    pub fn accept(&mut self, upcoming: PendingInstruction) {
        self.given.truncate(upcoming.kept);
        self.give(upcoming.next);
    }

    /// Appends an instruction. If [`KEPT_INSTRUCTIONS_MAX`] are remembered, the least needed one is removed. The
    /// first always stays, so that a job can return to any iteration.
    fn give(&mut self, next: Given) {
        if self.given.len() == KEPT_INSTRUCTIONS_MAX {
            let implied =
                (1..self.given.len()).find(|&index| self.implies(&self.given[index - 1], &self.given[index]));
            self.given.remove(implied.unwrap_or_else(|| self.most_crowded()));
        }
        self.given.push_back(next);
    }

    /// Whether an instruction follows from the one before it and need not be remembered. Under AdaScale it also
    /// depends on the gradients.
    fn implies(&self, before: &Given, next: &Given) -> bool {
        self.rule != Rule::AdaScale && before.global_batch == next.global_batch
    }

    /// Returns the index of the instruction whose removal leaves the smallest gap relative to its age, so that
    /// the remaining ones become sparser with age. Never returns the first.
    fn most_crowded(&self) -> usize {
        let iteration = |index: usize| self.given[index].iteration;
        let newest = iteration(self.given.len() - 1);
        let gap = |index: usize| {
            (iteration(index + 1) - iteration(index - 1)) as f64 / (newest + 1 - iteration(index - 1)) as f64
        };
        (1..self.given.len() - 1).min_by(|&a, &b| gap(a).total_cmp(&gap(b))).unwrap_or(1)
    }

    /// Learns from the gradients of an iteration. They change AdaScale's gain from the next instruction on.
    ///
    /// # Errors
    /// [`LearningRateError`] in these cases:
    ///
    /// - the rule does not use gradients
    /// - gradients of this or a later iteration were already processed
    /// - the gradients allow no estimate
    pub fn gradients(&mut self, iteration: u64, norms: &GradientNorms) -> Result<(), LearningRateError> {
        if self.rule != Rule::AdaScale {
            return Err(LearningRateError::GradientsNotUsed);
        }
        if let Some(newest) = self.averages.newest.filter(|newest| iteration <= *newest) {
            return Err(LearningRateError::GradientsOutOfOrder { iteration, newest });
        }
        let estimate = norms.estimate()?;
        let samples = norms.locals.iter().fold(0u64, |sum, local| sum.saturating_add(local.local_batch));
        self.averages.take(iteration, estimate, self.base_global_batch, self.scale(samples));
        Ok(())
    }

    fn scale(&self, global_batch: u64) -> f64 {
        global_batch as f64 / self.base_global_batch as f64
    }

    fn next(&self, before: Option<&Given>, iteration: u64, global_batch: u64) -> Given {
        let gone = |before: &Given| iteration - before.iteration;
        // Before the first requested iteration, the job may have run at the base batch without the predictor.
        let samples = before.map_or(iteration.saturating_mul(self.base_global_batch), |before| {
            before.samples.saturating_add(gone(before).saturating_mul(before.global_batch))
        });
        let course = match before {
            Some(before) if before.global_batch == global_batch => before.course,
            _ => self.rule.course(&Change {
                iteration,
                multiplier: before.map(|before| before.course.multiplier(iteration)),
                global_batch,
                base_global_batch: self.base_global_batch,
                samples,
            }),
        };
        let course = match self.rule {
            Rule::AdaScale => Ramp::at_once(self.averages.gain(self.scale(global_batch)), iteration),
            _ => course,
        };
        let progress = before.map_or(iteration as f64, |before| {
            before.progress + before.instruction.lr_multiplier * gone(before) as f64
        });
        let lr_multiplier = course.multiplier(iteration);
        Given {
            iteration,
            global_batch,
            samples,
            course,
            progress,
            instruction: Instruction {
                lr_multiplier,
                // Before the first instruction, the buffer is empty or was filled at the current learning
                // rate.
                momentum_buffer_scale: before
                    .map_or(1.0, |before| lr_multiplier / before.course.multiplier(iteration - 1)),
                schedule_iteration: if self.rule == Rule::AdaScale { progress as u64 } else { iteration },
                ramp: course.is_active(iteration).then_some(course),
            },
        }
    }
}

#[cfg(test)]
mod tests;
