//! Changes of workers: join, leave, out of memory, and overrides by an operator.

use std::sync::Arc;

use evenstep_core::job::WorkerState;
use evenstep_protocol::{JoinRequest, JoinResponse, OomReport, OomResponse, WorkerId, WorkerOverride};
use evenstep_store::access::AuditEntry;
use evenstep_store::{MemberEvent, MemberEventKind};

use super::error::JobError;
use super::held::StateGuard;
use super::job::Job;
use super::load::warm_start;
use crate::long::compute;

/// Limit of workers in one job, including departed ones.
pub const WORKERS_MAX: usize = 65_536;

impl Job {
    /// Adds a worker from the next iteration that was not requested yet. Joining again renews its lease.
    ///
    /// # Errors
    /// - [`JobError::Invalid`] if the bounds leave the worker no local batch.
    /// - [`JobError::Conflict`] if the job is full, or could not be planned with the worker.
    /// - An error if the worker must wait because it joined and left too often, or if the
    ///   store fails.
    pub async fn join(self: &Arc<Self>, request: JoinRequest) -> Result<JoinResponse, JobError> {
        let job = self.clone();
        self.work(|guard| async move { job.add(guard, request).await }).await
    }

    async fn add(&self, mut guard: StateGuard, request: JoinRequest) -> Result<JoinResponse, JobError> {
        let (worker, now_ms) = (request.worker.clone(), guard.now.steady_ms);
        let state = guard.state();
        if !state.members.knows(&worker) && state.workers.len() >= WORKERS_MAX {
            return Err(JobError::Conflict(format!(
                "job {} has {WORKERS_MAX} workers, the limit, including departed ones; take a new job ID",
                self.id()
            )));
        }
        state.check_join(&request)?;
        compute(true, || state.admit(&request))?;
        let joined = match guard.change().state.members.join(&worker, now_ms) {
            Ok(joined) => joined,
            Err(source) => {
                // Nothing has changed.
                guard.settle();
                return Err(JobError::Cooling { job_id: self.id().clone(), worker, source });
            }
        };
        let before = guard.state().workers.get(&worker);
        let lifts_cap =
            before.is_some_and(|before| before.oom_cap.is_some() && before.changes_memory(&request));
        let kind = match (joined, before.is_some_and(|before| before.request == request)) {
            (true, _) => Some(MemberEventKind::Joined(request.clone())),
            (false, false) => Some(MemberEventKind::Rejoined(request.clone())),
            (false, true) => None,
        };
        let kinds = kind.into_iter().chain(lifts_cap.then_some(MemberEventKind::MemoryChanged));
        let events: Vec<_> = kinds.map(|kind| MemberEvent { worker: worker.clone(), kind }).collect();
        let is_changed = !events.is_empty();
        if is_changed {
            self.write_membership(&mut guard, events, joined, None).await?;
        } else if let Some(regrouped) = self.regroup(&mut guard) {
            self.store().write(vec![regrouped], guard.now.unix_ms).await?;
        }
        let state = &mut guard.change().state;
        state.note_join(&worker);
        let known = state.workers.entry(worker.clone()).or_insert_with(|| WorkerState::new(request.clone()));
        let is_other = std::mem::replace(&mut known.request, request) != known.request;
        known.oom_cap = known.oom_cap.filter(|_| !lifts_cap);
        if joined {
            known.join(state.members.generation());
        }
        if is_other {
            // Open iterations were learned with the device before.
            state.models_mut();
        }
        if let Err(error) = warm_start(self.store(), state, &worker).await {
            // The join is durable.
            tracing::warn!(job_id = %self.id(), %worker, %error, "a worker starts without the models of its device");
        }
        guard.settle();
        if is_changed {
            self.live().joined(guard.state(), &worker, guard.now);
        }
        self.publish_generation(guard.state());
        Ok(self.membership(&guard, worker))
    }

    /// Whether a worker is live.
    ///
    /// # Errors
    /// [`JobError::Loading`], or an error of the store.
    pub async fn has_live(self: &Arc<Self>, worker: &WorkerId) -> Result<bool, JobError> {
        Ok(self.lock_in_time().await?.state().members.is_live(worker))
    }

    /// Removes a worker from the next iteration on, and adds `entry` to the audit log if the worker was live.
    ///
    /// # Errors
    /// [`JobError::UnknownWorker`], or an error of the store.
    pub async fn leave(
        self: &Arc<Self>,
        worker: WorkerId,
        entry: Option<AuditEntry>,
    ) -> Result<JoinResponse, JobError> {
        let job = self.clone();
        let leave = |mut guard: StateGuard| async move {
            job.check_worker(&guard, &worker)?;
            let now_ms = guard.now.steady_ms;
            if guard.change().state.members.leave(&worker, now_ms) {
                let event = MemberEvent { worker: worker.clone(), kind: MemberEventKind::Left };
                job.write_membership(&mut guard, vec![event], true, entry.as_ref()).await?;
            }
            guard.settle();
            job.publish_members(guard.state(), guard.now);
            Ok(job.membership(&guard, worker))
        };
        self.work(leave).await
    }

    /// Caps a worker that ran out of memory below the failed batch, and begins a new generation in which
    /// iterations are planned again. A repeated report has no effect.
    ///
    /// # Errors
    /// - [`JobError::UnknownWorker`].
    /// - [`JobError::Invalid`] if the iteration has no allocation.
    /// - An error of the store.
    pub async fn out_of_memory(
        self: &Arc<Self>,
        worker: WorkerId,
        report: OomReport,
    ) -> Result<OomResponse, JobError> {
        let job = self.clone();
        self.work(|guard| async move { job.cap(guard, &worker, &report).await }).await
    }

    async fn cap(
        &self,
        mut guard: StateGuard,
        worker: &WorkerId,
        report: &OomReport,
    ) -> Result<OomResponse, JobError> {
        self.check_worker(&guard, worker)?;
        let state = guard.state();
        if state.attempts.position(report.iteration) >= state.next_iteration {
            let next = state.attempts.at(state.next_iteration).iteration;
            return Err(JobError::Invalid(format!(
                "iteration: {} of job {} has no allocation yet; the next iteration is {next}",
                report.iteration,
                self.id()
            )));
        }
        let known = guard.state().workers.get(worker).and_then(|known| known.oom_cap);
        let cap = match known.filter(|cap| *cap < report.local_batch) {
            Some(cap) => cap,
            None => {
                let state = &mut guard.change().state;
                let quantum = if state.spec.accumulation { 1 } else { state.quantum() };
                let known = state.workers.get(worker).and_then(|known| state.memory(&known.request));
                let cap = known.cloned().unwrap_or_default().after_failure(report.local_batch, quantum);
                state.members.void();
                let event = MemberEvent { worker: worker.clone(), kind: MemberEventKind::OutOfMemory(cap) };
                self.write_membership(&mut guard, vec![event], true, None).await?;
                if let Some(known) = guard.change().state.workers.get_mut(worker) {
                    known.oom_cap = Some(cap);
                }
                guard.settle();
                tracing::warn!(job_id = %self.id(), %worker, failed = report.local_batch, cap, "out of memory");
                cap
            }
        };
        self.publish_members(guard.state(), guard.now);
        Ok(OomResponse {
            job_id: self.id().clone(),
            worker: worker.clone(),
            max_local_batch: cap,
            generation: guard.state().members.generation(),
        })
    }

    /// Sets an operator's override of a worker from the next iteration that was not requested yet. `None`
    /// removes it. Adds `entry` to the audit log.
    ///
    /// # Errors
    /// - [`JobError::UnknownWorker`].
    /// - [`JobError::Invalid`] if the bounds leave the worker no local batch.
    /// - [`JobError::Conflict`] if the job could not be planned any more.
    /// - An error of the store.
    pub async fn set_override(
        self: &Arc<Self>,
        worker: WorkerId,
        wanted: Option<WorkerOverride>,
        entry: AuditEntry,
    ) -> Result<(), JobError> {
        let job = self.clone();
        let set = |mut guard: StateGuard| async move {
            job.check_worker(&guard, &worker)?;
            if let Some(wanted) = &wanted {
                guard.state().check_override(&worker, wanted)?;
                compute(true, || guard.state().admit_override(&worker, wanted))?;
            }
            guard.change();
            let kind = MemberEventKind::Override(wanted.clone());
            let event = MemberEvent { worker: worker.clone(), kind };
            job.write_membership(&mut guard, vec![event], false, Some(&entry)).await?;
            if let Some(known) = guard.change().state.workers.get_mut(&worker) {
                known.operator_override = wanted;
            }
            guard.settle();
            job.live().members(guard.state(), guard.now);
            Ok(())
        };
        self.work(set).await
    }

    /// Rejects a worker that never joined.
    fn check_worker(&self, guard: &StateGuard, worker: &WorkerId) -> Result<(), JobError> {
        if guard.state().members.knows(worker) {
            return Ok(());
        }
        Err(JobError::UnknownWorker { job_id: self.id().clone(), worker: worker.to_string() })
    }

    /// Returns the response to a join or a departure.
    fn membership(&self, guard: &StateGuard, worker: WorkerId) -> JoinResponse {
        let state = guard.state();
        JoinResponse {
            job_id: self.id().clone(),
            worker,
            generation: state.members.generation(),
            live_workers: state.members.live().count() as u64,
            workers: state.members.live().take(JoinResponse::WORKERS_MAX).cloned().collect(),
            next_iteration: state.attempts.at(state.next_iteration).iteration,
        }
    }
}
