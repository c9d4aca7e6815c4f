//! The job and the workers of a run: registration, and delivery of reports after the predictor was unreachable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenstep_protocol::{AllocateRequest, JobSpec, JoinAnswer, JoinRequest, WorkerId, WorkerReport};

use crate::backlog::Backlog;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Operation};

/// The job and the workers of a run.
#[derive(Debug, Clone)]
pub struct Registration {
    client: Client,
    spec: JobSpec,
    joins: Vec<JoinRequest>,
    workers: Vec<WorkerId>,
    former: BTreeSet<WorkerId>,
    superseded: Arc<AtomicBool>,
    start: RunStart,
}

/// Where a run starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunStart {
    /// Its first iteration.
    pub iteration: u64,
    /// Whether the run continues an earlier one. Such a run may request iterations that have been allocated before: it gets
    /// the same allocations.
    pub resumed: bool,
}

impl Registration {
    /// A run from iteration 0 with these workers, in rank order.
    pub fn new(client: Client, spec: JobSpec, joins: Vec<JoinRequest>) -> Self {
        let workers = joins.iter().map(|join| join.worker.clone()).collect();
        let (former, superseded, start) = Default::default();
        Self { client, spec, joins, workers, former, superseded, start }
    }

    /// Sets where the run starts.
    #[must_use]
    pub fn starting_at(mut self, start: RunStart) -> Self {
        self.start = start;
        self
    }

    /// Sets the workers that took part in this run at some time. Those that do not any more are removed from the job.
    #[must_use]
    pub fn with_former_workers(mut self, former: BTreeSet<WorkerId>) -> Self {
        self.former = former;
        self
    }

    /// The flag by which the owner of a run revokes this registration: once it is true, no worker is joined any more.
    pub fn superseded(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.superseded)
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The job options.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// The workers in rank order.
    pub fn workers(&self) -> &[WorkerId] {
        &self.workers
    }

    /// The number of samples in a whole iteration.
    pub fn whole_batch(&self) -> u64 {
        let each = self.spec.per_worker_batch;
        each.map_or(self.spec.global_batch, |each| each.saturating_mul(self.workers.len() as u64))
    }

    /// Registers the job and joins every worker in rank order. May be repeated.
    ///
    /// # Errors
    /// No response, a rejection, or the job has a live worker of another run.
    pub fn register(&self) -> Result<JoinAnswer, Error> {
        let failed =
            |kind: ErrorKind| kind.in_operation(Operation::RegisterJob(self.client.job_id().clone()));
        if self.superseded.load(Ordering::Relaxed) {
            return Err(failed(ErrorKind::Superseded));
        }
        self.client.register_job(&self.spec)?;
        let mut latest = None;
        for join in &self.joins {
            latest = Some(self.client.join(join)?);
        }
        let mut joined =
            latest.ok_or_else(|| failed(ErrorKind::Rejected("the run has no workers to join".into())))?;
        let stays = |worker: &WorkerId| self.workers.contains(worker) || !self.former.contains(worker);
        for gone in joined.workers.clone().iter().filter(|worker| !stays(worker)) {
            joined = self.client.leave(gone)?;
        }
        if let Some(other) = joined.workers.iter().find(|worker| !self.workers.contains(worker)) {
            return Err(failed(ErrorKind::JobInUse(format!(
                "the job has another live worker, {other}; use a new job id, or wait until its lease expires"
            ))));
        }
        Ok(joined)
    }

    /// Checks that the job id belongs to this run.
    ///
    /// # Errors
    /// The job has an allocation past the iteration that this run starts with.
    pub fn check_first(&self, joined: &JoinAnswer) -> Result<(), Error> {
        if self.start.resumed || joined.next_iteration <= self.start.iteration {
            return Ok(());
        }
        let kind = ErrorKind::JobInUse(format!(
            "the job has allocations up to iteration {} already, and this run starts with {}; resume that run, or use a new \
             job id",
            joined.next_iteration.saturating_sub(1),
            self.start.iteration
        ));
        Err(kind.in_operation(Operation::RegisterJob(self.client.job_id().clone())))
    }

    /// Delivers the reports in the backlog except those that the next request will carry. It repeats requests for iterations
    /// that are done: their allocations are of no more use, but the predictor accepts the reports with them.
    ///
    /// # Errors
    /// No response. Reports that were not delivered stay in the backlog.
    pub fn deliver_late_reports(&self, generation: u64, backlog: &Backlog) -> Result<(), Error> {
        loop {
            let taken = backlog.take(backlog.done().saturating_sub(1));
            let Some(newest) = taken.iter().flatten().map(|report| report.iteration).max() else {
                return Ok(());
            };
            let request = self.request(generation, newest + 1, None, &taken);
            match self.client.allocate(&request) {
                Ok(_) | Err(Error { kind: ErrorKind::Infeasible(_), .. }) => {}
                Err(Error { kind: ErrorKind::Rejected(_), .. }) => backlog.count_lost(request.reports.len()),
                Err(error) => {
                    backlog.put_back(taken);
                    return Err(error);
                }
            }
        }
    }

    /// Removes every worker from the job.
    ///
    /// # Errors
    /// No response, or a rejection.
    pub fn leave(&self) -> Result<(), Error> {
        self.workers.iter().try_for_each(|worker| self.client.leave(worker).map(drop))
    }

    /// The request for an iteration. `global_batch` is sent only if it differs from that of a whole iteration.
    pub(crate) fn request(
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

    /// The same registration with the time limits of the end of a run.
    pub(crate) fn at_end_of_run(&mut self) {
        self.client = self.client.clone().at_end_of_run();
    }
}
