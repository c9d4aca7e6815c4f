//! Instructions by the client's iterations: state that survives restarts, and nothing that depends on how often it is asked.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::adascale::{Averages, GradientNorms};
use super::error::{LearningRateError, REMEMBERED_MAX};
use super::ramp::Ramp;
use super::rule::{Change, Rule};

/// What a client does in an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Instruction {
    /// Multiply the schedule's learning rate by this.
    pub lr_multiplier: f64,
    /// Before the update, multiply the momentum buffer by this, where the learning rate is inside it
    /// ([`MomentumForm::Inside`]): the multiplier over that of the iteration before. Where it is not, leave the buffer alone.
    pub momentum_buffer_scale: f64,
    /// The iteration of the schedule whose learning rate is multiplied: the iteration itself, but under AdaScale, where a
    /// step counts as many as it gained.
    pub schedule_iteration: u64,
    /// The ramp under way, which a client can finish alone. `None`: the multiplier stays.
    pub ramp: Option<Ramp>,
}

/// How an optimizer keeps its momentum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MomentumForm {
    /// `v <- mu v + g; w <- w - eta v`, as PyTorch does.
    Outside,
    /// `v <- mu v + eta g; w <- w - v`: the buffer holds learning rates of the past, which must be made those of now.
    Inside,
}

impl Instruction {
    /// What an optimizer of this form multiplies its buffer by before the update.
    pub fn buffer_scale(&self, form: MomentumForm) -> f64 {
        match form {
            MomentumForm::Outside => 1.0,
            MomentumForm::Inside => self.momentum_buffer_scale,
        }
    }
}

/// The learning rate of a job.
///
/// Iterations are asked for in rising order, some may be left out: what happened in between follows from the last
/// instruction, which is all that a client had. An iteration that was asked for gets the same instruction again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Controller {
    rule: Rule,
    base_global_batch: u64,
    /// The oldest first; never empty once something was asked.
    given: VecDeque<Given>,
    averages: Averages,
}

/// An instruction, and what the next one follows from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Given {
    iteration: u64,
    global_batch: u64,
    /// Samples seen before it.
    samples: u64,
    /// Where the multiplier goes; under AdaScale it stays where the gain put it.
    course: Ramp,
    /// Iterations of the schedule done before it.
    progress: f64,
    instruction: Instruction,
}

/// An instruction that is not in force yet: [`Controller::preview`] makes it, [`Controller::accept`] takes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Upcoming {
    /// The number of remembered instructions before it.
    kept: usize,
    next: Given,
    changes_state: bool,
}

impl Upcoming {
    /// The instruction.
    pub fn instruction(&self) -> &Instruction {
        &self.next.instruction
    }

    /// Whether a controller without this instruction would give other instructions later: it must then be stored again.
    pub fn changes_state(&self) -> bool {
        self.changes_state
    }
}

impl Controller {
    /// A controller for a schedule that was made for this global batch.
    ///
    /// # Errors
    /// [`LearningRateError`] where the batch holds no sample or a setting of the rule is out of range.
    pub fn new(rule: Rule, base_global_batch: u64) -> Result<Self, LearningRateError> {
        rule.check()?;
        if base_global_batch == 0 {
            return Err(LearningRateError::NoSamples { which: "base global batch" });
        }
        let averages = Averages::default();
        Ok(Self { rule, base_global_batch, given: VecDeque::new(), averages })
    }

    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Returns the instruction of an iteration without changing the state. Instructions of this and later iterations do not
    /// count. [`Self::accept`] makes it the newest.
    ///
    /// # Errors
    /// [`LearningRateError::NoSamples`] if the global batch is 0.
    pub fn preview(&self, iteration: u64, global_batch: u64) -> Result<Upcoming, LearningRateError> {
        if global_batch == 0 {
            return Err(LearningRateError::NoSamples { which: "global batch" });
        }
        let kept = self.given.partition_point(|given| given.iteration < iteration);
        let newest = kept.checked_sub(1).and_then(|newest| self.given.get(newest));
        let next = self.next(newest, iteration, global_batch);
        let continues = newest.is_some_and(|newest| self.implies(newest, &next));
        Ok(Upcoming { kept, next, changes_state: kept < self.given.len() || !continues })
    }

    /// Makes an instruction the newest; those of its iteration and of later ones are forgotten.
    pub fn accept(&mut self, upcoming: Upcoming) {
        self.given.truncate(upcoming.kept);
        self.give(upcoming.next);
    }

    /// The instruction of an iteration with this global batch. The short batch at the end of an epoch is no change: such an
    /// iteration is asked for with the batch of the others.
    ///
    /// # Errors
    /// [`LearningRateError`] where the batch holds no sample or is not the one that the iteration was asked for with
    /// before, and where the iteration lies before another that was asked for.
    pub fn instruct(&mut self, iteration: u64, global_batch: u64) -> Result<Instruction, LearningRateError> {
        if global_batch == 0 {
            return Err(LearningRateError::NoSamples { which: "global batch" });
        }
        let newest = self.given.back();
        if let Some(newest) = newest.filter(|newest| iteration <= newest.iteration) {
            let newest = newest.iteration;
            let again = self.given.iter().find(|given| given.iteration == iteration);
            let again = again.ok_or(LearningRateError::Backwards { iteration, newest })?;
            let before = again.global_batch;
            return if before == global_batch {
                Ok(again.instruction)
            } else {
                Err(LearningRateError::BatchChanged { iteration, before, now: global_batch })
            };
        }
        let next = self.next(newest, iteration, global_batch);
        self.give(next);
        Ok(next.instruction)
    }

    /// Appends an instruction. If [`REMEMBERED_MAX`] are remembered, the one that is least needed is removed. The first always
    /// stays, so a job can return to any iteration.
    fn give(&mut self, next: Given) {
        if self.given.len() == REMEMBERED_MAX {
            let implied =
                (1..self.given.len()).find(|&index| self.implies(&self.given[index - 1], &self.given[index]));
            self.given.remove(implied.unwrap_or_else(|| self.most_crowded()));
        }
        self.given.push_back(next);
    }

    /// Whether an instruction follows from the one before it, so that it need not be remembered. Under AdaScale it also
    /// depends on the gradients.
    fn implies(&self, before: &Given, next: &Given) -> bool {
        self.rule != Rule::AdaScale && before.global_batch == next.global_batch
    }

    /// The index of the instruction whose removal leaves the smallest gap, relative to its age. What remains becomes sparser
    /// with age. Never the first.
    fn most_crowded(&self) -> usize {
        let iteration = |index: usize| self.given[index].iteration;
        let newest = iteration(self.given.len() - 1);
        let gap = |index: usize| {
            (iteration(index + 1) - iteration(index - 1)) as f64 / (newest + 1 - iteration(index - 1)) as f64
        };
        (1..self.given.len() - 1).min_by(|&a, &b| gap(a).total_cmp(&gap(b))).unwrap_or(1)
    }

    /// Learns from the gradients of an iteration: AdaScale's gain follows them from the next instruction on.
    ///
    /// # Errors
    /// [`LearningRateError`] where the rule takes no gradients, those of this iteration or a later one were taken
    /// already, or they say nothing.
    pub fn gradients(&mut self, iteration: u64, norms: &GradientNorms) -> Result<(), LearningRateError> {
        if self.rule != Rule::AdaScale {
            return Err(LearningRateError::NoGradientsTaken);
        }
        if let Some(newest) = self.averages.newest.filter(|newest| iteration <= *newest) {
            return Err(LearningRateError::GradientsBackwards { iteration, newest });
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
        // At the first iteration that is asked for the job may have a past that nobody told of: at the base batch.
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
                // Before the first the buffer is empty, or was filled at the rate of now.
                momentum_buffer_scale: before
                    .map_or(1.0, |before| lr_multiplier / before.course.multiplier(iteration - 1)),
                schedule_iteration: if self.rule == Rule::AdaScale { progress as u64 } else { iteration },
                ramp: course.is_under_way(iteration).then_some(course),
            },
        }
    }
}

#[cfg(test)]
mod tests;
