//! Changes of workers: join, leave, out of memory, and overrides by an operator.

use evenstep_core::job::WorkerState;
use evenstep_protocol::{JoinRequest, JoinResponse, OomReport, OomResponse, WorkerId, WorkerOverride};
use evenstep_store::access::AuditEntry;
use evenstep_store::{MemberEvent, MemberEventKind, StoreError};

use super::error::JobError;
use super::job::{Job, StateGuard};
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
    pub async fn join(&self, request: JoinRequest) -> Result<JoinResponse, JobError> {
        match self.try_join(request.clone()).await {
            Err(JobError::Store(StoreError::Superseded)) => self.try_join(request).await,
            outcome => outcome,
        }
    }

    async fn try_join(&self, request: JoinRequest) -> Result<JoinResponse, JobError> {
        let mut guard = self.lock().await?;
        let (worker, now_unix_ms) = (request.worker.clone(), guard.now_unix_ms);
        let state = guard.state();
        if !state.members.knows(&worker) && state.workers.len() >= WORKERS_MAX {
            return Err(JobError::Conflict(format!(
                "job {} has {WORKERS_MAX} workers, the limit, including departed ones; take a new job ID",
                self.id()
            )));
        }
        state.check_join(&request)?;
        compute(true, || state.admit(&request))?;
        let joined = match guard.change().state.members.join(&worker, now_unix_ms) {
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
            self.write_membership(&guard, events, joined, None).await?;
        }
        let state = &mut guard.change().state;
        state.note_join(&worker);
        let known = state.workers.entry(worker.clone()).or_insert_with(|| WorkerState::new(request.clone()));
        known.request = request;
        known.oom_cap = known.oom_cap.filter(|_| !lifts_cap);
        if joined {
            known.join(state.members.generation());
        }
        if let Err(error) = warm_start(self.store(), state, &worker).await {
            // The join is durable.
            tracing::warn!(job_id = %self.id(), %worker, %error, "a worker starts without the models of its device");
        }
        guard.settle();
        if is_changed {
            self.live().joined(guard.state(), &worker);
            self.publish_generation(guard.state());
        }
        Ok(self.membership(&guard, worker))
    }

    /// Whether a worker is live.
    ///
    /// # Errors
    /// An error of the store.
    pub async fn has_live(&self, worker: &WorkerId) -> Result<bool, JobError> {
        Ok(self.lock().await?.state().members.is_live(worker))
    }

    /// Removes a worker from the next iteration on, and adds `entry` to the audit log if the worker was live.
    ///
    /// # Errors
    /// [`JobError::UnknownWorker`], or an error of the store.
    pub async fn leave(
        &self,
        worker: &WorkerId,
        entry: Option<&AuditEntry>,
    ) -> Result<JoinResponse, JobError> {
        match self.try_leave(worker, entry).await {
            Err(JobError::Store(StoreError::Superseded)) => self.try_leave(worker, entry).await,
            outcome => outcome,
        }
    }

    async fn try_leave(
        &self,
        worker: &WorkerId,
        entry: Option<&AuditEntry>,
    ) -> Result<JoinResponse, JobError> {
        let mut guard = self.lock_with(worker).await?;
        let now_unix_ms = guard.now_unix_ms;
        if guard.change().state.members.leave(worker, now_unix_ms) {
            let event = MemberEvent { worker: worker.clone(), kind: MemberEventKind::Left };
            self.write_membership(&guard, vec![event], true, entry).await?;
        }
        guard.settle();
        self.publish_members(guard.state());
        Ok(self.membership(&guard, worker.clone()))
    }

    /// Caps a worker that ran out of memory below the failed batch, and begins a new generation in which
    /// iterations are planned again. A repeated report has no effect.
    ///
    /// # Errors
    /// - [`JobError::UnknownWorker`].
    /// - [`JobError::Invalid`] if the iteration has no allocation.
    /// - An error of the store.
    pub async fn out_of_memory(
        &self,
        worker: &WorkerId,
        report: &OomReport,
    ) -> Result<OomResponse, JobError> {
        match self.try_out_of_memory(worker, report).await {
            Err(JobError::Store(StoreError::Superseded)) => self.try_out_of_memory(worker, report).await,
            outcome => outcome,
        }
    }

    async fn try_out_of_memory(
        &self,
        worker: &WorkerId,
        report: &OomReport,
    ) -> Result<OomResponse, JobError> {
        let mut guard = self.lock_with(worker).await?;
        let next = guard.state().next_iteration;
        if report.iteration >= next {
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
                self.write_membership(&guard, vec![event], true, None).await?;
                if let Some(known) = guard.change().state.workers.get_mut(worker) {
                    known.oom_cap = Some(cap);
                }
                guard.settle();
                tracing::warn!(job_id = %self.id(), %worker, failed = report.local_batch, cap, "out of memory");
                cap
            }
        };
        self.publish_members(guard.state());
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
        &self,
        worker: &WorkerId,
        wanted: Option<WorkerOverride>,
        entry: &AuditEntry,
    ) -> Result<(), JobError> {
        let mut guard = self.lock_with(worker).await?;
        if let Some(wanted) = &wanted {
            guard.state().check_override(worker, wanted)?;
            compute(true, || guard.state().admit_override(worker, wanted))?;
        }
        guard.change();
        let event = MemberEvent { worker: worker.clone(), kind: MemberEventKind::Override(wanted.clone()) };
        self.write_membership(&guard, vec![event], false, Some(entry)).await?;
        if let Some(known) = guard.change().state.workers.get_mut(worker) {
            known.operator_override = wanted;
        }
        guard.settle();
        self.live().members(guard.state());
        Ok(())
    }

    /// Locks the state to change a worker that once joined.
    async fn lock_with(&self, worker: &WorkerId) -> Result<StateGuard<'_>, JobError> {
        let guard = self.lock().await?;
        if !guard.state().members.knows(worker) {
            return Err(JobError::UnknownWorker { job_id: self.id().clone(), worker: worker.to_string() });
        }
        Ok(guard)
    }

    /// Returns the response to a join or a departure.
    fn membership(&self, guard: &StateGuard<'_>, worker: WorkerId) -> JoinResponse {
        let state = guard.state();
        JoinResponse {
            job_id: self.id().clone(),
            worker,
            generation: state.members.generation(),
            live_workers: state.members.live().count() as u64,
            workers: state.members.live().take(JoinResponse::WORKERS_MAX).cloned().collect(),
            next_iteration: state.next_iteration,
        }
    }
}
