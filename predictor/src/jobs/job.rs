//! One job: who may change it, when, and what becomes visible after.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use evenstep_core::plan::Unplannable;
use evenstep_protocol::{AllocateAnswer, AllocateRequest, JobId, JobSpec, JobView, WorkerId, WorkerReport};
use evenstep_store::{Change, MemberEvent, MemberEventKind, RollUp, Store, StoreError};
use tokio::sync::{Mutex, MutexGuard};

use super::answers::{Answer, Published};
use super::decide::{Undecided, decide};
use super::live::Live;
use super::optimizer;
use super::refit::RefitRecord;
use super::state::JobState;
use super::{JobError, LOOK_AHEAD_MAX};
use crate::clock::Clock;

/// A job.
#[derive(Debug)]
pub struct Job {
    id: JobId,
    /// The registration of this predictor in which it owns the job.
    registration: u64,
    store: Store,
    clock: Clock,
    published: RwLock<Published>,
    /// Empty until somebody needs it, and after a change that did not become durable.
    state: Mutex<Option<JobState>>,
    refits: RefitRecord,
    live: Live,
}

/// What became of a request for an allocation.
#[derive(Debug)]
pub struct Allocated {
    /// The answer.
    pub answer: Answer,
    /// Whether it was planned for this request; else somebody had asked before.
    pub is_new: bool,
}

/// The state of a job, taken out to be changed. Dropped without [`Taken::put_back`], it is read from the store again.
pub(super) struct Taken<'a> {
    slot: MutexGuard<'a, Option<JobState>>,
    pub state: JobState,
    pub now_unix_ms: i64,
}

impl Taken<'_> {
    pub fn put_back(mut self) {
        *self.slot = Some(self.state);
    }
}

impl Job {
    /// A job of which nothing is in memory yet.
    pub(super) fn new(id: JobId, registration: u64, store: Store, clock: Clock) -> Self {
        Self {
            id,
            registration,
            store,
            clock,
            published: RwLock::default(),
            state: Mutex::new(None),
            refits: RefitRecord::default(),
            live: Live::new(),
        }
    }

    /// Its name.
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// The registration of this predictor in which it owns the job.
    pub(super) fn registration(&self) -> u64 {
        self.registration
    }

    /// How its fits went.
    pub(super) fn refits(&self) -> &RefitRecord {
        &self.refits
    }

    /// What is seen of it while it runs.
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// Whether it is in memory.
    pub(super) fn is_loaded(&self) -> bool {
        self.published().loaded
    }

    /// The time by the service's clock.
    pub(super) fn now_unix_ms(&self) -> i64 {
        self.clock.now_unix_ms()
    }

    /// The store it is kept in.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Answers an iteration: as it was answered before, or newly planned and durable.
    ///
    /// # Errors
    /// Any [`JobError`]; then nothing was taken of the request.
    #[tracing::instrument(name = "jobs.allocate", level = "debug", skip_all, fields(job_id = %self.id, iteration = request.iteration))]
    pub async fn allocate(&self, request: &AllocateRequest) -> Result<Allocated, JobError> {
        if let Some(answer) = self.published().answer(request) {
            return answer.map(|answer| Allocated { answer, is_new: false });
        }
        match self.plan(request).await {
            // An earlier request went away while its answer was being written: now it is there to be read.
            Err(JobError::Store(StoreError::Taken)) => self.plan(request).await,
            outcome => outcome,
        }
    }

    async fn plan(&self, request: &AllocateRequest) -> Result<Allocated, JobError> {
        let mut taken = self.take().await?;
        if let Err(error) = self.check(&taken.state, request) {
            taken.put_back();
            return Err(error);
        }
        let known = self.known_answer(&taken.state, request.iteration).await?;
        let reports = self.news(&request.reports, taken.state.kept_from);

        let mut changes = Vec::with_capacity(3);
        for report in &request.reports {
            taken.state.members.renew(&report.worker, taken.now_unix_ms);
        }
        taken.state.learn(&reports);
        if !reports.is_empty() {
            changes.push(Change::Reports { job_id: self.id.clone(), reports: reports.as_slice().into() });
        }
        let is_new = known.is_none();
        let (answer, planned) = match known {
            Some(answer) => (answer, None),
            None => {
                let (answer, planned) = self.answer(&mut taken.state, request)?;
                changes.push(Change::Allocation {
                    job_id: self.id.clone(),
                    iteration: request.iteration,
                    generation: answer.generation,
                    answer: answer.bytes.clone(),
                });
                (answer, Some(Arc::new(planned)))
            }
        };
        // Gradients may come with the reports of an iteration that was answered before.
        if !changes.is_empty()
            && let Some(state) = taken.state.learning_rate_to_store(is_new)?
        {
            changes.push(Change::LearningRate { job_id: self.id.clone(), state });
        }
        if !changes.is_empty() {
            self.store.write(changes, taken.now_unix_ms).await?;
        }
        let mut published = self.published_mut();
        for report in &reports {
            published.see(&report.worker, report.iteration);
        }
        published.keep(request.iteration, answer.clone());
        drop(published);
        self.live.asked(&self.id, planned, &reports, taken.now_unix_ms);
        taken.put_back();
        Ok(Allocated { answer, is_new })
    }

    /// Refuses what cannot be answered, before anything is changed.
    fn check(&self, state: &JobState, request: &AllocateRequest) -> Result<(), JobError> {
        let current = state.members.generation();
        if request.generation != current {
            return Err(JobError::StaleGeneration {
                job_id: self.id.clone(),
                asked: request.generation,
                current,
            });
        }
        let (live, needed) = (state.members.live().count() as u64, state.spec.min_workers.max(1));
        if live < needed {
            return Err(JobError::Paused { job_id: self.id.clone(), live, needed });
        }
        let global_batch = state.global_batch();
        // A job that grows and shrinks says how much is left of the epoch: its global batch may have changed meanwhile.
        let too_many = request.global_batch.filter(|samples| *samples > global_batch);
        if let Some(samples) = too_many.filter(|_| state.spec.per_worker_batch.is_none()) {
            return Err(JobError::Invalid(format!(
                "global_batch: {samples} is more than the job's {global_batch}; only the ragged end of an epoch asks for another"
            )));
        }
        check_costs(state, request)?;
        if let Some(report) = request.reports.iter().find(|report| !state.members.knows(&report.worker)) {
            let worker = report.worker.to_string();
            return Err(JobError::UnknownWorker { job_id: self.id.clone(), worker });
        }
        let reported = request.reports.iter().map(|report| report.iteration + 1).max().unwrap_or(0);
        let newest = state.next_iteration.max(reported);
        if state.next_iteration > 0 && request.iteration > newest + LOOK_AHEAD_MAX {
            return Err(JobError::Invalid(format!(
                "iteration: {} is more than {LOOK_AHEAD_MAX} ahead of {newest}, the first that was neither answered nor reported",
                request.iteration
            )));
        }
        Ok(())
    }

    /// The answer that an iteration has already, in memory or in the store. One whose workers have since departed is
    /// void: nobody can have carried it out, and the iteration is planned again.
    async fn known_answer(&self, state: &JobState, iteration: u64) -> Result<Option<Answer>, JobError> {
        if let Some(answer) = self.published().valid(iteration) {
            return Ok(Some(answer.clone()));
        }
        if iteration >= state.next_iteration {
            return Ok(None);
        }
        let Some(stored) = self.store.answer(&self.id, iteration).await? else {
            self.check_kept(iteration).await?;
            return Ok(None);
        };
        let stored = Some(stored).filter(|stored| stored.generation >= state.members.departed_generation());
        Ok(stored.map(|stored| Answer { generation: stored.generation, bytes: stored.answer }))
    }

    /// Refuses an iteration whose answer may have been let go by age. Looked up after the answer was not found, so that nothing
    /// goes in between.
    async fn check_kept(&self, iteration: u64) -> Result<(), JobError> {
        let kept_from = self.store.kept_from(&self.id).await?;
        if iteration < kept_from {
            return Err(JobError::Gone { job_id: self.id.clone(), iteration, kept_from });
        }
        Ok(())
    }

    /// Reports that were not taken before, each once. Whether one of an iteration that is gone was, nobody knows any more.
    fn news(&self, reports: &[WorkerReport], kept_from: u64) -> Vec<WorkerReport> {
        let published = self.published();
        let mut once = BTreeSet::new();
        reports
            .iter()
            .filter(|report| report.iteration >= kept_from)
            .filter(|report| !published.has_seen(report) && once.insert((&report.worker, report.iteration)))
            .cloned()
            .collect()
    }

    /// Decides an iteration: the answer as bytes, and as what they say.
    #[tracing::instrument(name = "core.plan", level = "debug", skip_all)]
    fn answer(
        &self,
        state: &mut JobState,
        request: &AllocateRequest,
    ) -> Result<(Answer, AllocateAnswer), JobError> {
        let planned = decide(state, &self.id, request).map_err(|undecided| match undecided {
            Undecided::Unplannable(Unplannable::Infeasible(source)) => {
                JobError::Infeasible { job_id: self.id.clone(), source }
            }
            Undecided::Unplannable(Unplannable::Sizes(error)) => {
                JobError::Invalid(format!("allowed_sizes of job {}: {error}", self.id))
            }
            Undecided::LearningRate(error) => JobError::Invalid(error.to_string()),
        })?;
        state.next_iteration = state.next_iteration.max(request.iteration + 1);
        let bytes =
            serde_json::to_vec(&planned).map_err(|source| StoreError::Corrupt { what: "answer", source })?;
        Ok((Answer { generation: planned.generation, bytes: bytes.into() }, planned))
    }

    /// The answer that an iteration has, for the other ranks; never plans.
    ///
    /// # Errors
    /// [`JobError::NotAnswered`], or what the store says.
    pub async fn answered(&self, iteration: u64) -> Result<Answer, JobError> {
        if let Some(answer) = self.published().latest(iteration) {
            return Ok(answer.clone());
        }
        let Some(stored) = self.store.answer(&self.id, iteration).await? else {
            self.check_kept(iteration).await?;
            return Err(JobError::NotAnswered { job_id: self.id.clone(), iteration });
        };
        Ok(Answer { generation: stored.generation, bytes: stored.answer })
    }

    /// Lets the oldest iterations go. The state is out meanwhile, as for every change: whoever asks next knows what is gone, or
    /// reads it from the store.
    pub(super) async fn roll_up(&self, roll_up: &RollUp) -> Result<(), JobError> {
        let mut slot = self.state.lock().await;
        let state = slot.take();
        let change = Change::RollUp(Arc::new(roll_up.clone()));
        self.store.write(vec![change], self.clock.now_unix_ms()).await?;
        if let (Some(mut state), RollUp::Iterations { keep_from, .. }) = (state, roll_up) {
            state.kept_from = *keep_from;
            *slot = Some(state);
        }
        Ok(())
    }

    /// Changes the job's wishes, from the next unanswered iteration on.
    pub(super) async fn put(&self, spec: JobSpec) -> Result<JobView, JobError> {
        let mut taken = self.take().await?;
        let rule_changes = optimizer::rule(&spec) != optimizer::rule(&taken.state.spec);
        if taken.state.next_iteration > 0 && rule_changes {
            let error = JobError::Conflict(format!(
                "rule: job {} was answered by {:?} with its settings already; take a new job id",
                self.id, taken.state.spec.rule
            ));
            taken.put_back();
            return Err(error);
        }
        if spec != taken.state.spec {
            let begins = match optimizer::controller(&spec) {
                Ok(begins) => begins,
                Err(error) => {
                    taken.put_back();
                    return Err(JobError::Invalid(error.to_string()));
                }
            };
            let change = Change::PutJob { job_id: self.id.clone(), spec: spec.clone().into() };
            self.store.write(vec![change], taken.now_unix_ms).await?;
            taken.state.spec = spec;
            self.live.wishes(taken.now_unix_ms);
            self.live.members(&taken.state);
            if taken.state.next_iteration == 0 {
                // Nothing was answered: what the job begins with is still open.
                taken.state.learning_rate = begins;
            }
        }
        let view = taken.state.view(&self.id);
        taken.put_back();
        Ok(view)
    }

    /// Removes workers whose lease ran out.
    pub(super) async fn expire_leases(&self) -> Result<(), JobError> {
        if !self.is_loaded() {
            return Ok(());
        }
        self.take().await?.put_back();
        Ok(())
    }

    /// Deletes the job: whoever asks next finds none. Where it is cut off halfway none of its iterations is planned again,
    /// and asking once more goes on.
    pub(super) async fn delete(&self) -> Result<(), JobError> {
        let taken = self.take().await?;
        let trim = || vec![Change::TrimJob { job_id: self.id.clone() }];
        while self.store.write(trim(), taken.now_unix_ms).await? > 0 {}
        self.store.write(vec![Change::DeleteJob { job_id: self.id.clone() }], taken.now_unix_ms).await?;
        *self.published_mut() = Published::default();
        Ok(())
    }

    /// Takes the state out: reads it from the store where it is not in memory, and removes workers whose lease ran out.
    pub(super) async fn take(&self) -> Result<Taken<'_>, JobError> {
        let mut slot = self.state.lock().await;
        let now_unix_ms = self.clock.now_unix_ms();
        let state = match slot.take() {
            Some(state) => state,
            None => self.load(now_unix_ms).await?,
        };
        let mut taken = Taken { slot, state, now_unix_ms };
        let lease_ms = taken.state.lease_ms();
        let expired = taken.state.members.expire(now_unix_ms, lease_ms);
        if !expired.is_empty() {
            let event =
                |worker: &WorkerId| MemberEvent { worker: worker.clone(), kind: MemberEventKind::Expired };
            self.write_membership(&taken, expired.iter().map(event).collect(), true).await?;
            tracing::info!(job_id = %self.id, workers = ?expired, generation = taken.state.members.generation(), "leases ran out");
            self.publish_members(&taken.state);
        }
        Ok(taken)
    }

    async fn load(&self, now_unix_ms: i64) -> Result<JobState, JobError> {
        // A request that went away may have left its write in the queue. An empty one behind it comes back when that
        // is done, so that all of it is read or none.
        self.store.write(Vec::new(), now_unix_ms).await?;
        let mut fresh = Published::default();
        let state = JobState::load(&self.store, &self.id, now_unix_ms, |report| {
            fresh.see(&report.worker, report.iteration);
        })
        .await?;
        let state = state.ok_or_else(|| JobError::UnknownJob(self.id.clone()))?;
        fresh.loaded = true;
        fresh.generation = state.members.generation();
        fresh.departed_generation = state.members.departed_generation();
        *self.published_mut() = fresh;
        self.live.members(&state);
        Ok(state)
    }

    /// Shows who takes part now, and in which generation.
    pub(super) fn publish_members(&self, state: &JobState) {
        self.live.members(state);
        let mut published = self.published_mut();
        published.generation = state.members.generation();
        published.departed_generation = state.members.departed_generation();
    }

    fn published(&self) -> RwLockReadGuard<'_, Published> {
        self.published.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn published_mut(&self) -> RwLockWriteGuard<'_, Published> {
        self.published.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses costs that do not go with the iteration, or are missing where the job counts by them.
fn check_costs(state: &JobState, request: &AllocateRequest) -> Result<(), JobError> {
    let costs = request.cost_per_sample.len() as u64;
    let whole = state.global_batch();
    let samples = request.global_batch.map_or(whole, |samples| samples.min(whole));
    if costs > 0 && costs != samples {
        return Err(JobError::Invalid(format!(
            "cost_per_sample: {costs} costs for the {samples} samples of the iteration; there must be one for each"
        )));
    }
    if costs == 0 && state.models.counts_cost() {
        return Err(JobError::Invalid(
            "cost_per_sample: the reports of this job carry cost, so each request must carry it too".into(),
        ));
    }
    Ok(())
}
