//! Who takes part in a job, how it may be used, and what becomes durable of it.

use evenstep_protocol::{JoinAnswer, JoinRequest, OomAnswer, OomReport, WorkerId, WorkerOverride};
use evenstep_store::{Change, MemberEvent, MemberEventKind, StoreError};

use super::job::{Job, Taken};
use super::state::WorkerState;
use super::{JobError, WORKERS_MAX};

impl Job {
    /// A worker takes part from the next unanswered iteration on; joining again renews its lease.
    ///
    /// # Errors
    /// Where the job is full, the worker has to wait because it flaps, or the store says no.
    pub async fn join(&self, request: JoinRequest) -> Result<JoinAnswer, JobError> {
        match self.try_join(request.clone()).await {
            Err(JobError::Store(StoreError::Taken)) => self.try_join(request).await,
            outcome => outcome,
        }
    }

    async fn try_join(&self, request: JoinRequest) -> Result<JoinAnswer, JobError> {
        let mut taken = self.take().await?;
        let worker = request.worker.clone();
        if !taken.state.members.knows(&worker) && taken.state.workers.len() >= WORKERS_MAX {
            taken.put_back();
            return Err(JobError::Conflict(format!(
                "job {} has {WORKERS_MAX} workers, the most there can be",
                self.id()
            )));
        }
        let cooldown_ms = (taken.state.spec.flap_cooldown_s * 1e3) as i64;
        let joined = match taken.state.members.join(&worker, taken.now_unix_ms, cooldown_ms) {
            Ok(joined) => joined,
            Err(source) => {
                taken.put_back();
                return Err(JobError::Cooling { job_id: self.id().clone(), worker, source });
            }
        };
        let before = taken.state.workers.get(&worker).map(|worker| &worker.request);
        let event = match (joined, before == Some(&request)) {
            (true, _) => Some(MemberEventKind::Joined(request.clone())),
            (false, false) => Some(MemberEventKind::Rejoined(request.clone())),
            (false, true) => None,
        };
        if let Some(kind) = event {
            self.write_membership(&taken, vec![MemberEvent { worker: worker.clone(), kind }], joined).await?;
        }
        if joined {
            taken.state.models.age(&worker);
        }
        let known =
            taken.state.workers.entry(worker.clone()).or_insert_with(|| WorkerState::new(request.clone()));
        known.request = request;
        taken.state.lend(self.store(), &worker).await?;
        Ok(self.membership_changed(taken, worker))
    }

    /// A worker leaves, from the next iteration on.
    ///
    /// # Errors
    /// [`JobError::UnknownWorker`], or what the store says.
    pub async fn leave(&self, worker: &WorkerId) -> Result<JoinAnswer, JobError> {
        match self.try_leave(worker).await {
            Err(JobError::Store(StoreError::Taken)) => self.try_leave(worker).await,
            outcome => outcome,
        }
    }

    async fn try_leave(&self, worker: &WorkerId) -> Result<JoinAnswer, JobError> {
        let mut taken = self.take_with(worker).await?;
        if taken.state.members.leave(worker, taken.now_unix_ms) {
            let event = MemberEvent { worker: worker.clone(), kind: MemberEventKind::Left };
            self.write_membership(&taken, vec![event], true).await?;
        }
        Ok(self.membership_changed(taken, worker.clone()))
    }

    /// A worker ran out of memory: it is capped below that, and what was answered is planned again in a new generation.
    /// Reporting the same again changes nothing.
    ///
    /// # Errors
    /// [`JobError::UnknownWorker`], [`JobError::Invalid`] where the iteration was never answered, or what the store says.
    pub async fn out_of_memory(&self, worker: &WorkerId, report: &OomReport) -> Result<OomAnswer, JobError> {
        match self.try_out_of_memory(worker, report).await {
            Err(JobError::Store(StoreError::Taken)) => self.try_out_of_memory(worker, report).await,
            outcome => outcome,
        }
    }

    async fn try_out_of_memory(&self, worker: &WorkerId, report: &OomReport) -> Result<OomAnswer, JobError> {
        let mut taken = self.take_with(worker).await?;
        let next = taken.state.next_iteration;
        if report.iteration >= next {
            taken.put_back();
            return Err(JobError::Invalid(format!(
                "iteration: {} of job {} was not answered yet; {next} comes next",
                report.iteration,
                self.id()
            )));
        }
        let known = taken.state.workers.get(worker).and_then(|known| known.oom_cap);
        let cap = match known.filter(|cap| *cap < report.local_batch) {
            Some(cap) => cap,
            None => {
                let quantum = if taken.state.spec.accumulation { 1 } else { taken.state.spec.quantum };
                let memory = taken.state.models.worker(worker).map(|known| known.memory.clone());
                let cap = memory.unwrap_or_default().after_failure(report.local_batch, quantum);
                taken.state.members.void();
                let event = MemberEvent { worker: worker.clone(), kind: MemberEventKind::OutOfMemory(cap) };
                self.write_membership(&taken, vec![event], true).await?;
                if let Some(known) = taken.state.workers.get_mut(worker) {
                    known.oom_cap = Some(cap);
                }
                tracing::warn!(job_id = %self.id(), %worker, failed = report.local_batch, cap, "out of memory");
                cap
            }
        };
        self.publish_members(&taken.state);
        let answer = OomAnswer {
            job_id: self.id().clone(),
            worker: worker.clone(),
            max_local_batch: cap,
            generation: taken.state.members.generation(),
        };
        taken.put_back();
        Ok(answer)
    }

    /// What an operator wants of a worker from the next unanswered iteration on; `None` lifts it.
    ///
    /// # Errors
    /// [`JobError::UnknownWorker`], [`JobError::Invalid`] where a pin is no size of the job, or what the store says.
    pub async fn set_override(
        &self,
        worker: &WorkerId,
        wanted: Option<WorkerOverride>,
    ) -> Result<(), JobError> {
        let mut taken = self.take_with(worker).await?;
        let spec = &taken.state.spec;
        let pinned = wanted.as_ref().and_then(|wanted| wanted.pinned_local_batch);
        let is_size = |pinned: &u64| {
            if spec.allowed_sizes.is_empty() {
                pinned.is_multiple_of(spec.quantum)
            } else {
                spec.allowed_sizes.contains(pinned)
            }
        };
        if let Some(pinned) = pinned.filter(|pinned| !is_size(pinned)) {
            let rule = if spec.allowed_sizes.is_empty() {
                format!("must be a multiple of quantum, {}", spec.quantum)
            } else {
                format!("must be one of allowed_sizes, {:?}", spec.allowed_sizes)
            };
            taken.put_back();
            return Err(JobError::Invalid(format!("pinned_local_batch: {pinned} {rule}")));
        }
        let event = MemberEvent { worker: worker.clone(), kind: MemberEventKind::Override(wanted.clone()) };
        self.write_membership(&taken, vec![event], false).await?;
        if let Some(known) = taken.state.workers.get_mut(worker) {
            known.operator_override = wanted;
        }
        self.live().members(&taken.state);
        taken.put_back();
        Ok(())
    }

    /// Takes the state out to change something about a worker that once joined.
    async fn take_with(&self, worker: &WorkerId) -> Result<Taken<'_>, JobError> {
        let taken = self.take().await?;
        if !taken.state.members.knows(worker) {
            taken.put_back();
            return Err(JobError::UnknownWorker { job_id: self.id().clone(), worker: worker.to_string() });
        }
        Ok(taken)
    }

    /// Makes events durable; `rose` where they brought a new generation.
    pub(super) async fn write_membership(
        &self,
        taken: &Taken<'_>,
        events: Vec<MemberEvent>,
        rose: bool,
    ) -> Result<(), JobError> {
        let generation = taken.state.members.generation();
        let change = Change::Membership {
            job_id: self.id().clone(),
            replaces: generation - u64::from(rose),
            generation,
            departed_generation: taken.state.members.departed_generation(),
            events: events.clone(),
        };
        self.store().write(vec![change], taken.now_unix_ms).await?;
        events.iter().for_each(|event| self.live().member(taken.now_unix_ms, event));
        Ok(())
    }

    fn membership_changed(&self, taken: Taken<'_>, worker: WorkerId) -> JoinAnswer {
        self.publish_members(&taken.state);
        let answer = JoinAnswer {
            job_id: self.id().clone(),
            worker,
            generation: taken.state.members.generation(),
            workers: taken.state.live(),
            next_iteration: taken.state.next_iteration,
        };
        taken.put_back();
        answer
    }
}
