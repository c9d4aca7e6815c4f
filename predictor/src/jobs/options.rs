//! Changes of a whole job: its options, and its deletion.

use std::sync::Arc;

use evenstep_core::job::{controller, rule};
use evenstep_protocol::{JobSpec, JobView};
use evenstep_store::Change;
use evenstep_store::access::{AccessChange, AuditEntry};

use super::allocate::learning_rate_change;
use super::error::JobError;
use super::held::StateGuard;
use super::job::Job;
use super::responses::Published;
use super::watch::view;

impl Job {
    /// Changes the job options, from the next iteration that was not requested yet.
    pub(super) async fn put(self: &Arc<Self>, spec: JobSpec) -> Result<JobView, JobError> {
        let job = self.clone();
        self.work(|guard| async move { job.change(guard, spec).await }).await
    }

    async fn change(&self, mut guard: StateGuard, spec: JobSpec) -> Result<JobView, JobError> {
        let state = guard.state();
        if state.next_iteration > 0 && rule(&spec) != rule(&state.spec) {
            return Err(JobError::Conflict(format!(
                "rule: job {} has allocations by {:?} with its settings; take a new job ID",
                self.id(),
                state.spec.rule
            )));
        }
        if spec != state.spec || guard.has_unknown_options() {
            state.check_spec(&spec)?;
            let begins = controller(&spec).map_err(|error| JobError::Invalid(error.to_string()))?;
            let now_unix_ms = guard.now.unix_ms;
            let held = guard.change();
            let mut changes = vec![Change::PutJob { job_id: self.id().clone(), spec: spec.clone().into() }];
            // Before the first iteration is planned, the rule and its base batch may still change.
            let begins = Some(begins).filter(|_| held.state.next_iteration == 0);
            if let Some(begins) = &begins {
                changes.push(learning_rate_change(self.id(), begins)?);
            }
            self.store().write(changes, now_unix_ms).await?;
            held.state.spec = spec;
            held.unknown_options.clear();
            self.live().unreadable(None);
            if let Some(begins) = begins {
                held.state.learning_rate = begins;
            }
            guard.settle();
            self.live().options(now_unix_ms);
            self.live().members(guard.state(), guard.now);
        }
        Ok(view::job(guard.state(), self.id(), self.live(), guard.now))
    }

    /// Deletes the job, which need not be readable. If this is interrupted, none of its iterations is planned again, and
    /// the next request continues the deletion.
    pub(super) async fn delete(self: &Arc<Self>, entry: AuditEntry) -> Result<(), JobError> {
        let mut slot = self.held().lock().await;
        if self.is_deleted() {
            return Err(JobError::UnknownJob(self.id().clone()));
        }
        let now_unix_ms = self.now().unix_ms;
        // The next request reads the job from the store.
        if let Some(held) = slot.take() {
            self.rest(held.leases());
        }
        // A new job of this ID must not get the models that are being stored.
        let _storing = self.fits().storing().await;
        let trim = || vec![Change::TrimJob { job_id: self.id().clone() }];
        while self.store().write(trim(), now_unix_ms).await? > 0 {}
        let delete = Change::DeleteJob { job_id: self.id().clone() };
        let record = Change::Access(AccessChange::Audit(entry));
        self.store().write(vec![delete, record], now_unix_ms).await?;
        self.publish(|published| *published = Published::default());
        self.set_deleted();
        Ok(())
    }

    /// Begins to remove workers whose lease expired, in a task, because the state may have to be read first. Does nothing
    /// while a request uses the state: each request checks the leases first.
    pub(super) fn expire_leases(self: &Arc<Self>) {
        let Ok(slot) = self.held().try_lock() else { return };
        // An unreadable job has no leases until it can be read.
        let is_unreadable = slot.is_none() && self.live().facts().unreadable.is_some();
        drop(slot);
        if is_unreadable || !(self.is_loaded() || self.is_lease_over()) {
            return;
        }
        let job = self.clone();
        tokio::spawn(async move {
            if let Err(error) = job.lock().await {
                tracing::warn!(job_id = %job.id(), %error, "cannot check leases");
            }
        });
    }
}
