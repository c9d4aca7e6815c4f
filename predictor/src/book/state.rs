//! What is known of a job: its wishes, its workers and their models. Read from the store, then kept up to date.

use std::collections::BTreeMap;

use evenstep_core::forecast::WorkerForecaster;
use evenstep_core::membership::{Member, Members, State};
use evenstep_core::plan::InForce;
use evenstep_core::series::{Drivers, Observation};
use evenstep_protocol::{AllocateAnswer, Decision, JobId, JobSpec, JoinRequest, WorkerId, WorkerReport};

use crate::store::{Store, StoreError, StoredWorker};

/// Iterations whose reports are replayed through the models when a job is read from the store: the models forget at
/// .9985 an iteration, so that what is older weighs next to nothing.
const HISTORY_ITERATIONS: u64 = 1024;

/// The hot state of a job.
#[derive(Debug)]
pub struct JobState {
    pub spec: JobSpec,
    pub members: Members<WorkerId>,
    pub workers: BTreeMap<WorkerId, WorkerState>,
    /// The plan in force and the workers, in rank order, it was made for.
    pub in_force: Option<(Vec<WorkerId>, InForce)>,
    /// The first iteration that nobody has asked for yet.
    pub next_iteration: u64,
    pub last_decision: Option<Decision>,
}

/// What is known of a worker.
#[derive(Debug)]
pub struct WorkerState {
    pub request: JoinRequest,
    /// Reports taken.
    pub reports: u64,
    pub forecaster: Option<WorkerForecaster>,
    /// The newest iteration that its models have seen.
    newest: Option<u64>,
    /// How often each driver was missing.
    pub missing: BTreeMap<&'static str, u64>,
}

impl WorkerState {
    /// A worker that joined and has reported nothing.
    pub fn new(request: JoinRequest) -> Self {
        Self { request, reports: 0, forecaster: None, newest: None, missing: BTreeMap::new() }
    }

    /// Takes a new report: counts it, and lets the models learn from it.
    ///
    /// The first report of all is left out: a first iteration allocates, compiles and warms caches. So is one older
    /// than what the models have seen, which comes late, after an outage: it is history, not news.
    pub fn learn(&mut self, report: &WorkerReport) {
        self.reports += 1;
        let drivers =
            Drivers::from_readings(report.drivers.iter().map(|(name, value)| (name.as_str(), *value)));
        for name in drivers.missing() {
            *self.missing.entry(name).or_default() += 1;
        }
        let news = self.newest.is_none_or(|newest| report.iteration > newest);
        if self.reports == 1 || !news {
            return;
        }
        self.newest = Some(report.iteration);
        let Some(observation) = Observation::new(report.local_batch, report.compute_time_s, drivers) else {
            return;
        };
        match &mut self.forecaster {
            Some(forecaster) => forecaster.observe(&observation),
            None => self.forecaster = Some(WorkerForecaster::new(&observation)),
        }
    }
}

/// The shares in force as the latest answer has them. Speeds that were held then are lost: those forecast for it stand in.
fn in_force(answer: &AllocateAnswer, global_batch: u64) -> Option<(Vec<WorkerId>, InForce)> {
    if answer.global_batch != global_batch {
        return None;
    }
    let workers = answer.allocations.iter().map(|share| share.worker.clone()).collect();
    let batches = answer.allocations.iter().map(|share| share.local_batch).collect();
    let speeds = answer.allocations.iter().map(|share| share.predicted_speed_samples_per_s).collect();
    Some((workers, InForce { batches, speeds }))
}

impl JobState {
    /// Reads a job from the store and replays its recent history; `None` where it is gone. `saw` is told every report
    /// that is known to be stored.
    pub async fn load(
        store: &Store,
        job_id: &JobId,
        now_unix_ms: i64,
        mut saw: impl FnMut(&WorkerReport),
    ) -> Result<Option<Self>, StoreError> {
        let Some(stored) = store.job(job_id).await? else { return Ok(None) };
        let reports = store.recent_reports(job_id, HISTORY_ITERATIONS).await?;
        let last_answer = match stored.last_iteration {
            Some(last) => store.answer(job_id, last).await?.map(|last| last.parse()).transpose()?,
            None => None,
        };
        let member = |worker: &StoredWorker| {
            let state = match worker.state.as_str() {
                "live" => State::Live,
                "left" => State::Left,
                _ => State::Expired,
            };
            // Nobody could renew a lease while the service was away: every live worker gets a whole one.
            let last_seen_ms = if state == State::Live { now_unix_ms } else { worker.last_seen_unix_ms };
            Member { id: worker.request.worker.clone(), state, last_seen_ms }
        };
        let members = stored.workers.iter().map(member).collect();
        let mut workers: BTreeMap<WorkerId, WorkerState> = stored
            .workers
            .into_iter()
            .map(|worker| (worker.request.worker.clone(), (worker.reports, WorkerState::new(worker.request))))
            .map(|(id, (stored, state))| (id, WorkerState { reports: stored, ..state }))
            .collect();
        // Replaying counts each report again.
        for report in &reports {
            if let Some(worker) = workers.get_mut(&report.worker) {
                worker.reports -= 1;
            }
        }
        for report in &reports {
            saw(report);
            if let Some(worker) = workers.get_mut(&report.worker) {
                worker.learn(report);
            }
        }
        let global_batch = stored.spec.global_batch;
        Ok(Some(Self {
            spec: stored.spec,
            members: Members::restore(stored.generation, stored.departed_generation, members),
            workers,
            in_force: last_answer.as_ref().and_then(|last| in_force(last, global_batch)),
            next_iteration: stored.last_iteration.map_or(0, |last| last + 1),
            last_decision: last_answer.map(|last| last.decision),
        }))
    }

    /// Live workers in rank order.
    pub fn live(&self) -> Vec<WorkerId> {
        self.members.live().cloned().collect()
    }

    /// The lease in milliseconds.
    pub fn lease_ms(&self) -> i64 {
        (self.spec.lease_s * 1e3) as i64
    }
}
