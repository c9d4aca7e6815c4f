//! What is known of a job: its wishes, its workers and their models. Read from the store, then kept up to date.

use std::collections::BTreeMap;

use evenstep_core::membership::{Member, Members, State};
use evenstep_core::plan::InForce;
use evenstep_protocol::{AllocateAnswer, Decision, JobId, JobSpec, JoinRequest, WorkerId, WorkerReport};

use super::models::{FORMAT, Models};
use crate::store::{Store, StoreError, StoredWorker};

/// Iterations whose reports are replayed through the models when a job is read from the store. Without stored models this is
/// all they learn from: at a forgetting factor of .9985 what is older would have a fifth of the weight of the newest, or less.
const HISTORY_ITERATIONS: u64 = 1024;

/// The hot state of a job.
#[derive(Debug)]
pub struct JobState {
    pub spec: JobSpec,
    pub members: Members<WorkerId>,
    pub workers: BTreeMap<WorkerId, WorkerState>,
    pub models: Models,
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
}

impl WorkerState {
    /// A worker that joined and has reported nothing.
    pub fn new(request: JoinRequest) -> Self {
        Self { request, reports: 0 }
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
        let workers = stored
            .workers
            .into_iter()
            .map(|worker| {
                let state = WorkerState { reports: worker.reports, ..WorkerState::new(worker.request) };
                (state.request.worker.clone(), state)
            })
            .collect();
        reports.iter().for_each(&mut saw);
        let models = match store.models(job_id, FORMAT).await? {
            // Learned again where it cannot be read: from the recent reports, which come next in any case.
            Some(state) => postcard::from_bytes(&state).unwrap_or_else(|error| {
                tracing::warn!(%job_id, %error, "stored models cannot be read: they learn again");
                Models::new()
            }),
            None => Models::new(),
        };
        let global_batch = stored.spec.global_batch;
        let mut state = Self {
            spec: stored.spec,
            members: Members::restore(stored.generation, stored.departed_generation, members),
            workers,
            models,
            in_force: last_answer.as_ref().and_then(|last| in_force(last, global_batch)),
            next_iteration: stored.last_iteration.map_or(0, |last| last + 1),
            last_decision: last_answer.map(|last| last.decision),
        };
        for worker in state.workers.keys().cloned().collect::<Vec<_>>() {
            state.lend(store, &worker).await?;
        }
        state.models.learn(&reports);
        Ok(Some(state))
    }

    /// Lets a worker of which nothing is known start from what was learned on a device like its own.
    pub async fn lend(&mut self, store: &Store, worker: &WorkerId) -> Result<(), StoreError> {
        let device = self.workers.get(worker).and_then(|known| known.request.device.as_ref());
        let Some(device) = device.filter(|_| !self.models.knows(worker)) else { return Ok(()) };
        let learned = store.device_model(device, FORMAT).await?;
        // What cannot be read is as good as none: the worker starts cold.
        if let Some(earlier) = learned.and_then(|state| postcard::from_bytes(&state).ok()) {
            self.models.warm_start(worker, earlier);
        }
        Ok(())
    }

    /// The workers of each kind of device.
    pub fn devices(&self) -> BTreeMap<String, Vec<WorkerId>> {
        let mut devices: BTreeMap<String, Vec<WorkerId>> = BTreeMap::new();
        for (worker, known) in &self.workers {
            if let Some(device) = &known.request.device {
                devices.entry(device.clone()).or_default().push(worker.clone());
            }
        }
        devices
    }

    /// Takes new reports: counts them, and lets the models learn.
    pub fn learn(&mut self, reports: &[WorkerReport]) {
        for report in reports {
            if let Some(worker) = self.workers.get_mut(&report.worker) {
                worker.reports += 1;
            }
        }
        self.models.learn(reports);
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
