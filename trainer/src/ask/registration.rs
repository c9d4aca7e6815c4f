//! How a run makes itself known to the predictor, and catches up after silence.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenstep_protocol::{AllocateRequest, Hedge, JobSpec, JoinAnswer, JoinRequest, WorkerId, WorkerReport};

use super::backlog::Backlog;
use super::client::{AskError, Client};

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
    /// Workers that took part in this run once: where the predictor still counts on one that is not among `workers`, it is
    /// told that it left.
    pub former: BTreeSet<WorkerId>,
    /// Set once others take part than these: nobody joins them again.
    pub outdated: Arc<AtomicBool>,
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

impl Registration {
    /// Puts the job and joins every worker in rank order. All of it may be repeated.
    ///
    /// # Errors
    /// No answer, a refusal, or a job that is not ours alone.
    pub fn register(&self) -> Result<JoinAnswer, AskError> {
        if self.outdated.load(Ordering::Relaxed) {
            return Err(AskError::Silent("others take part now".into()));
        }
        self.client.put_job(&self.spec)?;
        let mut latest = None;
        for (worker, device) in self.workers.iter().zip(&self.devices) {
            let request = JoinRequest {
                device: Some(device.clone()),
                claims: self.spec.hedge == Hedge::Auto,
                ..JoinRequest::new(worker.clone())
            };
            latest = Some(self.client.join(&request)?);
        }
        let mut joined = latest.ok_or_else(|| AskError::Unusable("there are no workers to join".into()))?;
        let stays = |worker: &WorkerId| self.workers.contains(worker) || !self.former.contains(worker);
        for gone in joined.workers.clone().iter().filter(|worker| !stays(worker)) {
            joined = self.client.leave(gone)?;
        }
        if let Some(other) = joined.workers.iter().find(|worker| !self.workers.contains(worker)) {
            let job = self.client.job_id();
            return Err(AskError::Refused(format!(
                "job {job} has another live worker, {other}: take a new job id, or wait until its lease runs out"
            )));
        }
        Ok(joined)
    }

    /// Whether the job's past is ours: a job id is one run.
    ///
    /// # Errors
    /// The job has been answered past the iteration this run began with.
    pub fn check_first(&self, joined: &JoinAnswer) -> Result<(), AskError> {
        if self.begin.resumed || joined.next_iteration <= self.begin.iteration {
            return Ok(());
        }
        Err(AskError::Refused(format!(
            "job {} has been answered up to iteration {} already, and this run begins with {}: a job id is one run; \
             go on with --resume, or take a new --job",
            self.client.job_id(),
            joined.next_iteration.saturating_sub(1),
            self.begin.iteration
        )))
    }

    /// Delivers the reports that wait, but for those that the next request for a plan will carry: in requests for
    /// iterations that are done, whose plans are of no more use, but which the predictor takes reports with.
    ///
    /// # Errors
    /// No answer; what was not delivered waits on.
    pub fn catch_up(&self, generation: u64, backlog: &Backlog) -> Result<(), AskError> {
        loop {
            let taken = backlog.take(backlog.done().saturating_sub(1));
            let Some(newest) = taken.iter().flatten().map(|report| report.iteration).max() else {
                return Ok(());
            };
            let request = self.request(generation, newest + 1, None, &taken);
            match self.client.allocate(&request) {
                Ok(_) => {}
                Err(AskError::Refused(_)) => backlog.count_lost(request.reports.len()),
                Err(error) => {
                    backlog.put_back(taken);
                    return Err(error);
                }
            }
        }
    }

    /// Samples of a whole iteration.
    pub fn whole_batch(&self) -> u64 {
        let each = self.spec.per_worker_batch;
        each.map_or(self.spec.global_batch, |each| each.saturating_mul(self.workers.len() as u64))
    }

    /// A request for an iteration; `global_batch` where it is not a whole one.
    pub fn request(
        &self,
        generation: u64,
        iteration: u64,
        global_batch: Option<u64>,
        reports: &[Vec<WorkerReport>],
    ) -> AllocateRequest {
        AllocateRequest {
            global_batch: global_batch.filter(|&size| size != self.whole_batch()),
            reports: reports.iter().flatten().cloned().collect(),
            ..AllocateRequest::new(self.client.job_id().clone(), generation, iteration)
        }
    }
}
