//! Hooks for experiments: observe a run, or slow its workers down.

use std::time::Instant;

use anyhow::Result;
use evenstep_protocol::{JobId, WorkerId};

use crate::model::Pace;
use crate::plan::Policy;
use crate::progress::{EndLine, IterationLine, Output, RegroupLine};

/// The run as rank 0 knows it when it starts or takes over the progress log.
#[derive(Debug)]
pub struct RunInfo<'a> {
    /// The job, if the predictor is used.
    pub job_id: Option<&'a JobId>,
    /// The workers in rank order.
    pub workers: &'a [WorkerId],
    /// The model and its element type.
    pub model: String,
    /// The data set.
    pub data: String,
    /// Iterations of each policy, for the number of workers at the start.
    pub steps: u64,
    /// Start of the run.
    pub started: Instant,
    /// Whether this worker replaced an earlier rank 0.
    pub taken_over: bool,
}

/// Policy, iteration and epoch of an event.
#[derive(Debug, Clone, Copy)]
pub struct At {
    /// The policy.
    pub policy: Policy,
    /// The iteration, from 0.
    pub iteration: u64,
    /// The epoch, from 0.
    pub epoch: u64,
}

/// Observes the iterations of one worker. Every method does nothing by default.
pub trait Observer {
    /// Rank 0 opens its progress log.
    ///
    /// # Errors
    /// An error ends the run.
    fn run_started(&mut self, _run: &RunInfo<'_>, _output: &Output) -> Result<()> {
        Ok(())
    }

    /// An elastic run continues with the group of this round.
    fn round_started(&mut self, _round: u64) {}

    /// The plan of an iteration is known. Background work may delay the iteration by `budget_s` seconds.
    fn compute_started(&mut self, _budget_s: f64) {}

    /// This worker computed the samples with these numbers: its share, or a claimed chunk.
    fn samples_computed(&mut self, _indices: &[i64]) {}

    /// The all-reduce begins.
    ///
    /// # Errors
    /// An error ends the run.
    fn all_reduce_started(&mut self, _at: At) -> Result<()> {
        Ok(())
    }

    /// The all-reduce is done.
    fn all_reduce_finished(&mut self) {}

    /// The optimizer step is done.
    ///
    /// # Errors
    /// An error ends the run.
    fn step_finished(&mut self, _at: At) -> Result<()> {
        Ok(())
    }

    /// On rank 0: an iteration is done.
    ///
    /// # Errors
    /// An error ends the run.
    fn iteration_logged(&mut self, _line: IterationLine) -> Result<()> {
        Ok(())
    }

    /// On rank 0: an elastic run continued with other workers.
    ///
    /// # Errors
    /// An error ends the run.
    fn regrouped(&mut self, _line: RegroupLine) -> Result<()> {
        Ok(())
    }

    /// On rank 0: the training of a policy is done.
    ///
    /// # Errors
    /// An error ends the run.
    fn policy_finished(&mut self, _line: EndLine) -> Result<()> {
        Ok(())
    }

    /// Writes all observations to disk. Called before a checkpoint, and whenever another worker may become
    /// rank 0.
    ///
    /// # Errors
    /// An error ends the run.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// This worker's run is over.
    ///
    /// # Errors
    /// An error makes the run a failure.
    fn run_finished(&mut self) -> Result<()> {
        Ok(())
    }
}

/// No observer.
impl Observer for () {}

/// Extensions of a worker for an experiment.
pub struct Hooks {
    /// Observer of its iterations.
    pub observer: Box<dyn Observer>,
    /// Imposed pace that slows it down.
    pub pace: Option<Box<dyn Pace>>,
}

impl Default for Hooks {
    fn default() -> Self {
        Self { observer: Box::new(()), pace: None }
    }
}
