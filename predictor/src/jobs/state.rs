//! What is known of a job: its wishes, its workers and their models. Read from the store, then kept up to date.

use std::collections::BTreeMap;

use evenstep_core::learning_rate::Controller;
use evenstep_core::membership::{FLAP_DEPARTURES, Member, Members, State};
use evenstep_core::plan::InForce;
use evenstep_core::plan::profile::{STEPS_MAX, profile};
use evenstep_protocol::{
    AllocateAnswer, Decision, JobId, JobSpec, JoinRequest, LearningRateRule, WorkerId, WorkerOverride,
    WorkerReport,
};
use evenstep_store::{Store, StoreError, StoredWorker};

use super::hedge::LastTail;
use super::models::{Circumstances, FORMAT, Models};
use super::optimizer;
use super::worker_model::ProfilePart;

/// Iterations whose reports are replayed through the models when a job is read from the store. Without stored models this is
/// all they learn from: at a forgetting factor of .9985 what is older would have a fifth of the weight of the newest, or less.
pub const HISTORY_ITERATIONS: u64 = 1024;

/// The hot state of a job.
#[derive(Debug)]
pub struct JobState {
    pub spec: JobSpec,
    /// Iterations before it are gone, and never planned again.
    pub kept_from: u64,
    pub members: Members<WorkerId>,
    pub workers: BTreeMap<WorkerId, WorkerState>,
    pub models: Models,
    /// The plan in force and the workers, in rank order, it was made for.
    pub in_force: Option<(Vec<WorkerId>, InForce)>,
    /// The first iteration that nobody has asked for yet.
    pub next_iteration: u64,
    pub last_decision: Option<Decision>,
    /// What the latest answer left to a tail.
    pub last_tail: LastTail,
    pub learning_rate: Controller,
    /// The global batch with which the state of the learning-rate rule was stored last.
    stored_global_batch: Option<u64>,
}

/// What is known of a worker.
#[derive(Debug)]
pub struct WorkerState {
    pub request: JoinRequest,
    /// The most it gets at once since it ran out of memory.
    pub oom_cap: Option<u64>,
    /// What an operator wants of it.
    pub operator_override: Option<WorkerOverride>,
}

impl WorkerState {
    /// A worker that joined and has reported nothing.
    pub fn new(request: JoinRequest) -> Self {
        Self { request, oom_cap: None, operator_override: None }
    }
}

/// The shares in force as the latest answer has them; a tail is a layer on top. Speeds that were held then are lost, and how long they were: those
/// forecast for it stand in, and they count from it.
fn in_force(answer: &AllocateAnswer, global_batch: u64) -> Option<(Vec<WorkerId>, InForce)> {
    if answer.global_batch != global_batch {
        return None;
    }
    let workers = answer.allocations.iter().map(|share| share.worker.clone()).collect();
    let batches =
        answer.allocations.iter().map(|share| share.planned_batch.unwrap_or(share.local_batch)).collect();
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
            let departures = worker.departures_unix_ms.iter().rev().take(FLAP_DEPARTURES).rev();
            // By a clock that was set back since, a departure may lie ahead: nobody is to wait for that.
            let departures_ms = departures.map(|at_unix_ms| now_unix_ms.min(*at_unix_ms)).collect();
            Member { id: worker.request.worker.clone(), state, last_seen_ms, departures_ms }
        };
        let members = stored.workers.iter().map(member).collect();
        let workers = stored
            .workers
            .into_iter()
            .map(|worker| {
                let state = WorkerState {
                    oom_cap: worker.oom_cap,
                    operator_override: worker.operator_override,
                    request: worker.request,
                };
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
        let learning_rate = match &stored.learning_rate {
            Some(state) => serde_json::from_str(state)
                .map_err(|source| StoreError::Corrupt { what: "learning rate", source })?,
            // What http let through makes a rule; a database that somebody else wrote may not.
            None => optimizer::controller(&stored.spec).map_err(|error| StoreError::Corrupt {
                what: "learning-rate rule",
                source: <serde_json::Error as serde::de::Error>::custom(error),
            })?,
        };
        let kept_from = store.kept_from(job_id).await?;
        let mut state = Self {
            learning_rate,
            stored_global_batch: None,
            spec: stored.spec,
            kept_from,
            members: Members::restore(stored.generation, stored.departed_generation, members),
            workers,
            models,
            in_force: None,
            // Where a deletion was cut off no answer may be left, and what was let go is not planned again.
            next_iteration: stored.last_iteration.map_or(0, |last| last + 1).max(kept_from),
            last_tail: last_answer.as_ref().map(LastTail::of).unwrap_or_default(),
            last_decision: last_answer.as_ref().map(|last| last.decision.clone()),
        };
        let global_batch = state.global_batch();
        state.in_force = last_answer.as_ref().and_then(|last| in_force(last, global_batch));
        for worker in state.workers.keys().cloned().collect::<Vec<_>>() {
            state.lend(store, &worker).await?;
        }
        state.learn_models(&reports);
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

    /// Lets the models learn from new reports.
    pub fn learn(&mut self, reports: &[WorkerReport]) {
        self.learn_models(reports);
        if self.spec.rule == LearningRateRule::Adascale {
            self.learn_gradients(reports);
        }
    }

    fn learn_models(&mut self, reports: &[WorkerReport]) {
        let micro_batches: BTreeMap<WorkerId, u64> =
            self.workers.keys().filter_map(|id| Some((id.clone(), self.bounds(id).micro_batch?))).collect();
        let earliest = reports.iter().map(|report| report.iteration).min().unwrap_or(u64::MAX);
        let profile_steps = self.profile(&self.live(), earliest).len() as u64;
        self.models.learn(reports, |report| Circumstances {
            micro_batch: micro_batches.get(&report.worker).copied(),
            profile: match profile_steps.checked_sub(report.iteration) {
                None | Some(0) => ProfilePart::Outside,
                Some(1) => ProfilePart::Last,
                Some(_) => ProfilePart::Within,
            },
        });
    }

    /// The batches by rank of the first iterations, where the job asked for a profile and `from` may be one of them.
    pub fn profile(&self, live: &[WorkerId], from: u64) -> Vec<Vec<u64>> {
        if !self.spec.profile || !self.spec.allowed_sizes.is_empty() || from >= STEPS_MAX as u64 {
            return Vec::new();
        }
        let bounds = |id: &WorkerId| {
            let bounds = self.bounds(id);
            (bounds.floor, bounds.cap)
        };
        let bounds: Vec<(u64, Option<u64>)> = live.iter().map(bounds).collect();
        profile(&bounds, self.global_batch(), self.spec.quantum)
    }

    /// Lets AdaScale learn. Reports that come late, or say nothing of gradients, teach nothing.
    fn learn_gradients(&mut self, reports: &[WorkerReport]) {
        let mut iterations: BTreeMap<u64, Vec<&WorkerReport>> = BTreeMap::new();
        for report in reports {
            iterations.entry(report.iteration).or_default().push(report);
        }
        for (iteration, reports) in iterations {
            let Some(norms) = optimizer::norms(reports) else { continue };
            if let Err(error) = self.learning_rate.gradients(iteration, &norms) {
                tracing::debug!(%error, "gradients that teach nothing");
            }
        }
    }

    /// The state of the learning-rate rule, where it is not the one that is stored: where an iteration was `decided` with a new
    /// global batch, and always under AdaScale. What comes in between follows from it.
    pub fn learning_rate_to_store(&mut self, decided: bool) -> Result<Option<String>, StoreError> {
        let global_batch = self.global_batch();
        let is_new = decided && self.stored_global_batch != Some(global_batch);
        if !is_new && self.spec.rule != LearningRateRule::Adascale {
            return Ok(None);
        }
        if decided {
            self.stored_global_batch = Some(global_batch);
        }
        let state = serde_json::to_string(&self.learning_rate);
        state.map(Some).map_err(|source| StoreError::Corrupt { what: "learning rate", source })
    }

    /// Samples of a whole iteration: as asked for, or so many for each live worker.
    pub fn global_batch(&self) -> u64 {
        match self.spec.per_worker_batch {
            Some(each) => each.saturating_mul(self.members.live().count().max(1) as u64),
            None => self.spec.global_batch,
        }
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
