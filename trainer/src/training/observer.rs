//! Hooks for experiments: what observes a run, and what slows it down.

use std::time::Instant;

use anyhow::Result;
use evenstep_protocol::{JobId, WorkerId};

use crate::model::Pace;
use crate::plan::{Policy, Share};
use crate::progress::{EndLine, IterationLine, Output, RegroupLine};

/// The run as rank 0 knows it when it starts or takes over the progress log.
#[derive(Debug)]
pub struct RunInfo<'a> {
    /// The job, if the predictor is asked.
    pub job_id: Option<&'a JobId>,
    /// The workers in rank order.
    pub workers: &'a [WorkerId],
    /// The model and its element type.
    pub model: String,
    /// The data set.
    pub data: String,
    /// Iterations of each policy, with the number of workers that the run started with.
    pub steps: u64,
    /// Time 0 of the run.
    pub started: Instant,
    /// Whether another worker was rank 0 before.
    pub taken_over: bool,
}

/// The iteration that an event belongs to.
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
    /// Whatever ends the run.
    fn run_started(&mut self, _run: &RunInfo<'_>, _output: &Output) -> Result<()> {
        Ok(())
    }

    /// An elastic run continues with the group of this round.
    fn round_started(&mut self, _round: u64) {}

    /// The plan of an iteration that began at `began` is known. Background work may delay it by `budget_s` seconds.
    fn compute_started(&mut self, _began: Instant, _budget_s: f64) {}

    /// This worker computed the samples of a share, which have these indices.
    fn share_computed(&mut self, _share: Share, _indices: &[i64]) {}

    /// This worker has the answer to a claim.
    fn claim_answered(&mut self) {}

    /// The all-reduce begins.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn all_reduce_started(&mut self, _at: At) -> Result<()> {
        Ok(())
    }

    /// The all-reduce is done.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn all_reduce_finished(&mut self, _at: At) -> Result<()> {
        Ok(())
    }

    /// The optimizer step is done.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn step_finished(&mut self, _at: At) -> Result<()> {
        Ok(())
    }

    /// On rank 0: how the iteration went.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn iteration_logged(&mut self, _line: IterationLine) -> Result<()> {
        Ok(())
    }

    /// On rank 0: an elastic run went on with other workers.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn regrouped(&mut self, _line: RegroupLine) -> Result<()> {
        Ok(())
    }

    /// On rank 0: how the training of a policy ended.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn policy_finished(&mut self, _line: EndLine) -> Result<()> {
        Ok(())
    }

    /// Before a checkpoint, and whenever another worker may become rank 0: what was observed must be on disk.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// This worker's run is over.
    ///
    /// # Errors
    /// Whatever makes the run a failure.
    fn run_finished(&mut self) -> Result<()> {
        Ok(())
    }
}

/// No observer.
impl Observer for () {}

/// What an experiment adds to a worker.
pub struct Hooks {
    /// Observes its iterations.
    pub observer: Box<dyn Observer>,
    /// Slows it down.
    pub pace: Option<Box<dyn Pace>>,
}

impl Default for Hooks {
    fn default() -> Self {
        Self { observer: Box::new(()), pace: None }
    }
}
