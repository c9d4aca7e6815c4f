//! How a run makes itself known to the predictor, and catches up after silence.

use evenstep_protocol::{AllocateRequest, JobSpec, JoinRequest, WorkerId};

use super::backlog::Backlog;
use super::client::{AskError, Client};

/// How far past the last iteration that was asked for one may ask when catching up; half of what the predictor allows.
const CATCH_UP_STRIDE: u64 = 32;

/// The job and the workers of this run.
#[derive(Debug, Clone)]
pub struct Registration {
    /// The predictor.
    pub client: Client,
    /// What the job wants.
    pub spec: JobSpec,
    /// The workers in rank order.
    pub workers: Vec<WorkerId>,
    /// What each computes on, in rank order.
    pub devices: Vec<String>,
    /// The iteration that this run began with, and whether it goes on from a checkpoint.
    pub begin: Begin,
}

/// Where a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Its first iteration.
    pub iteration: u64,
    /// A resumed run may ask again for what was answered before it stopped: the answers are the same.
    pub resumed: bool,
}

/// The state of a job after every worker joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    /// The generation to train in.
    pub generation: u64,
    /// The first iteration that nobody has asked for.
    pub next_iteration: u64,
}

impl Registration {
    /// Puts the job and joins every worker in rank order. All of it may be repeated.
    ///
    /// # Errors
    /// No answer, a refusal, or a job that is not ours alone.
    pub fn register(&self) -> Result<Registered, AskError> {
        self.client.put_job(&self.spec)?;
        let mut latest = None;
        for (worker, device) in self.workers.iter().zip(&self.devices) {
            let request = JoinRequest {
                worker: worker.clone(),
                device: Some(device.clone()),
                min_local_batch: None,
                max_local_batch: None,
            };
            latest = Some(self.client.join(&request)?);
        }
        let joined = latest.ok_or_else(|| AskError::Unusable("there are no workers to join".into()))?;
        if let Some(other) = joined.workers.iter().find(|worker| !self.workers.contains(worker)) {
            let job = self.client.job_id();
            return Err(AskError::Refused(format!(
                "job {job} has another live worker, {other}: take a new job id, or wait until its lease runs out"
            )));
        }
        Ok(Registered { generation: joined.generation, next_iteration: joined.next_iteration })
    }

    /// Whether the job's past is ours: a job id is one run.
    ///
    /// # Errors
    /// The job has been answered past the iteration this run began with.
    pub fn check_first(&self, registered: Registered) -> Result<(), AskError> {
        if self.begin.resumed || registered.next_iteration <= self.begin.iteration {
            return Ok(());
        }
        Err(AskError::Refused(format!(
            "job {} has been answered up to iteration {} already, and this run begins with {}: a job id is one run; \
             go on with --resume, or take a new --job",
            self.client.job_id(),
            registered.next_iteration.saturating_sub(1),
            self.begin.iteration
        )))
    }

    /// Delivers waiting reports and walks the job up to where training is, so that it can be asked for the next
    /// iteration. Only iterations that are done are asked for: what they would have been is of no use to anybody, but
    /// the predictor answers no iteration that is far ahead of the last.
    ///
    /// # Errors
    /// No answer; what was not delivered waits on.
    pub fn catch_up(&self, registered: Registered, backlog: &Backlog) -> Result<(), AskError> {
        let mut next = registered.next_iteration;
        while let Some(last_done) = backlog.done().checked_sub(1) {
            let taken = backlog.take();
            if taken.is_empty() && last_done < next + CATCH_UP_STRIDE {
                break;
            }
            let iteration = last_done.min(next + CATCH_UP_STRIDE);
            let request = AllocateRequest {
                job_id: self.client.job_id().clone(),
                generation: registered.generation,
                iteration,
                global_batch: None,
                reports: taken.iter().flatten().cloned().collect(),
            };
            match self.client.allocate(&request) {
                Ok(_) => next = next.max(iteration + 1),
                Err(AskError::Refused(_)) if !request.reports.is_empty() => {
                    backlog.count_lost(request.reports.len());
                }
                Err(error) => {
                    backlog.put_back(taken);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
