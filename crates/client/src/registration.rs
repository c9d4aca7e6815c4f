//! The job and the workers of a run: registration, and delivery of reports after the predictor was unreachable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenstep_protocol::{AllocateRequest, JobSpec, JoinRequest, JoinResponse, WorkerId, WorkerReport};

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

/// Start of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunStart {
    /// The first iteration.
    pub iteration: u64,
    /// Whether the run continues an earlier one. A resumed run may request iterations that were carried out before: its first
    /// request, which must carry no reports, begins another attempt of the run.
    pub resumed: bool,
    /// Whether a launcher restarted the processes of this run. It may then have no checkpoint to resume from, and the
    /// job may list workers that have died.
    pub restarted: bool,
}

impl Registration {
    /// Creates the registration of a run from iteration 0 with these workers, in rank order.
    pub fn new(client: Client, spec: JobSpec, joins: Vec<JoinRequest>) -> Self {
        let workers = joins.iter().map(|join| join.worker.clone()).collect();
        let (former, superseded, start) = Default::default();
        Self { client, spec, joins, workers, former, superseded, start }
    }

    /// Sets the start of the run.
    #[must_use]
    pub fn starting_at(mut self, start: RunStart) -> Self {
        self.start = start;
        self
    }

    /// Sets the workers that ever took part in this run. Former workers are removed from the job.
    #[must_use]
    pub fn with_former_workers(mut self, former: BTreeSet<WorkerId>) -> Self {
        self.former = former;
        self
    }

    /// Returns the flag by which the owner of a run revokes this registration. When it is true, no worker
    /// joins any more.
    pub fn superseded(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.superseded)
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the job options.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Returns the workers in rank order.
    pub fn workers(&self) -> &[WorkerId] {
        &self.workers
    }

    /// Returns the workers' own caps of their local batches in rank order. With accumulation, they bound a micro-batch
    /// instead, so the result has no caps.
    pub(crate) fn caps(&self) -> Vec<Option<u64>> {
        self.joins.iter().map(|join| join.max_local_batch.filter(|_| !self.spec.accumulation)).collect()
    }

    /// Returns the number of samples in a full iteration.
    pub fn whole_batch(&self) -> u64 {
        let each = self.spec.per_worker_batch;
        each.map_or(self.spec.global_batch, |each| each.saturating_mul(self.workers.len() as u64))
    }

    /// Registers a run that the predictor has not accepted yet. The job is read first, so that a run under the id of another
    /// one changes nothing. Workers that joined before the predictor rejected the run leave again.
    ///
    /// # Errors
    /// As [`register`](Self::register), or the job has an allocation past the iteration that this run starts with.
    pub fn begin(&self) -> Result<JoinResponse, Error> {
        let mut live = Vec::new();
        if let Some(known) = self.client.job()? {
            self.check_first(known.next_iteration)?;
            if known.live_workers > 0 {
                live = self.client.live_workers()?;
                self.check_others(live.iter().filter(|worker| !self.former.contains(worker)))?;
            }
        }
        let mut count = 0;
        let begun = self.join_all(&mut count);
        if begun.as_ref().is_err_and(|error| error.kind.is_permanent()) {
            // The job has no room for all workers, or another run began at the same moment.
            for worker in self.workers[..count].iter().filter(|worker| !live.contains(worker)) {
                // Its lease expires otherwise.
                let _ = self.client.leave(worker);
            }
        }
        let joined = begun?;
        // If another run of these workers was faster, they are its workers, and stay.
        self.check_first(joined.next_iteration)?;
        Ok(joined)
    }

    /// Registers the job and joins every worker in rank order. May be repeated.
    ///
    /// # Errors
    /// The predictor does not respond or rejects the request, or the job has a live worker of another run.
    pub fn register(&self) -> Result<JoinResponse, Error> {
        self.join_all(&mut 0)
    }

    /// Registers the job and joins every worker. Counts those that joined.
    fn join_all(&self, count: &mut usize) -> Result<JoinResponse, Error> {
        let failed =
            |kind: ErrorKind| kind.in_operation(Operation::RegisterJob(self.client.job_id().clone()));
        if self.superseded.load(Ordering::Relaxed) {
            return Err(failed(ErrorKind::Superseded));
        }
        self.client.register_job(&self.spec)?;
        let mut latest = None;
        for join in &self.joins {
            latest = Some(self.client.join(join)?);
            *count += 1;
        }
        let mut joined =
            latest.ok_or_else(|| failed(ErrorKind::Rejected("the run has no workers to join".into())))?;
        let (former, others): (Vec<WorkerId>, Vec<WorkerId>) =
            self.others(&joined)?.into_iter().partition(|worker| self.former.contains(worker));
        for gone in &former {
            joined = self.client.leave(gone)?;
        }
        self.check_others(others.iter())?;
        Ok(joined)
    }

    /// Returns the live workers of the job that do not take part in this run. A response lists only the first live
    /// workers, so if it lacks some, all workers are read.
    fn others(&self, joined: &JoinResponse) -> Result<Vec<WorkerId>, Error> {
        let own: BTreeSet<&WorkerId> = self.workers.iter().collect();
        let live = joined.live_workers.max(joined.workers.len() as u64);
        let live = match live {
            live if live == joined.workers.len() as u64 => joined.workers.clone(),
            live if live == own.len() as u64 => return Ok(Vec::new()),
            _ => self.client.live_workers()?,
        };
        Ok(live.into_iter().filter(|worker| !own.contains(worker)).collect())
    }

    /// Checks that all live workers of the job belong to this run.
    fn check_others<'a>(&self, mut live: impl Iterator<Item = &'a WorkerId>) -> Result<(), Error> {
        let Some(other) = live.find(|worker| !self.workers.contains(worker)) else { return Ok(()) };
        let kind = if self.start.restarted {
            let why = "from before the restart, until its lease expires";
            ErrorKind::FormerWorker(format!("the job still has worker {other} {why}"))
        } else {
            let why = "use a new job id, or wait until its lease expires";
            ErrorKind::JobInUse(format!("the job has another live worker, {other}; {why}"))
        };
        Err(kind.in_operation(Operation::RegisterJob(self.client.job_id().clone())))
    }

    /// Checks that the job id belongs to this run: the job has no allocation past the iteration that this run starts with.
    fn check_first(&self, next_iteration: u64) -> Result<(), Error> {
        let RunStart { iteration, resumed, restarted } = self.start;
        if resumed || restarted || next_iteration <= iteration {
            return Ok(());
        }
        let kind = ErrorKind::JobInUse(format!(
            "the job already has allocations up to iteration {}, but this run starts with {iteration}: a job id identifies \
             one run; resume that run, or use a new job id",
            next_iteration.saturating_sub(1),
        ));
        Err(kind.in_operation(Operation::RegisterJob(self.client.job_id().clone())))
    }

    /// Requests the first iteration of a run that continues or repeats an earlier one, without reports. Only so the predictor
    /// knows which attempt of the run later reports belong to.
    ///
    /// # Errors
    /// The predictor does not respond.
    pub fn begin_attempt(&self, generation: u64) -> Result<(), Error> {
        if !self.start.resumed && !self.start.restarted {
            return Ok(());
        }
        match self.client.allocate(&self.request(generation, self.start.iteration, None, &[])) {
            Ok(_) | Err(Error { kind: ErrorKind::Infeasible(_) | ErrorKind::Rejected(_), .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Delivers the reports in the backlog, except for the reports that the next request will carry. It
    /// repeats requests for finished iterations: their allocations are no longer needed, but the predictor
    /// accepts the reports in the requests.
    ///
    /// # Errors
    /// The predictor does not respond. Undelivered reports stay in the backlog.
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
                // A worker that died during an outage may never have been registered: its reports cannot be delivered.
                Err(Error { kind: ErrorKind::Unknown(_), .. })
                    if request.reports.iter().any(|report| !self.workers.contains(&report.worker)) =>
                {
                    let mut kept = taken;
                    for iteration in &mut kept {
                        iteration.retain(|report| self.workers.contains(&report.worker));
                    }
                    kept.retain(|iteration| !iteration.is_empty());
                    let left: usize = kept.iter().map(Vec::len).sum();
                    backlog.count_lost(request.reports.len() - left);
                    backlog.put_back(kept);
                }
                Err(error) => {
                    backlog.put_back(taken);
                    return Err(error);
                }
            }
        }
    }

    /// Removes every worker from the job. A failure does not keep the others from leaving.
    ///
    /// # Errors
    /// The first failure: the predictor does not respond or rejects the request.
    pub fn leave(&self) -> Result<(), Error> {
        let left: Vec<Result<(), Error>> =
            self.workers.iter().map(|worker| self.client.leave(worker).map(drop)).collect();
        left.into_iter().collect()
    }

    /// Returns the request for an iteration. `global_batch` is sent only if it differs from a full iteration.
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

    /// Sets the time limits of the end of a run.
    pub(crate) fn at_end_of_run(&mut self) {
        self.client = self.client.clone().at_end_of_run();
    }
}
