//! Changes of a whole job: its options, and its deletion.

use evenstep_core::job::{controller, rule};
use evenstep_protocol::{JobSpec, JobView};
use evenstep_store::Change;
use evenstep_store::access::{AccessChange, AuditEntry};

use super::allocate::learning_rate_change;
use super::error::JobError;
use super::job::Job;
use super::responses::Published;
use super::watch::view;

impl Job {
    /// Changes the job options, from the next iteration that was not requested yet.
    pub(super) async fn put(&self, spec: JobSpec) -> Result<JobView, JobError> {
        let mut guard = self.lock().await?;
        let state = guard.state();
        if state.next_iteration > 0 && rule(&spec) != rule(&state.spec) {
            return Err(JobError::Conflict(format!(
                "rule: job {} has allocations by {:?} with its settings; take a new job ID",
                self.id(),
                state.spec.rule
            )));
        }
        if spec != state.spec {
            state.check_spec(&spec)?;
            let begins = controller(&spec).map_err(|error| JobError::Invalid(error.to_string()))?;
            let now_unix_ms = guard.now_unix_ms;
            let held = guard.change();
            let mut changes = vec![Change::PutJob { job_id: self.id().clone(), spec: spec.clone().into() }];
            // Before the first iteration is planned, the rule and its base batch may still change.
            let begins = Some(begins).filter(|_| held.state.next_iteration == 0);
            if let Some(begins) = &begins {
                changes.push(learning_rate_change(self.id(), begins)?);
            }
            self.store().write(changes, now_unix_ms).await?;
            held.state.spec = spec;
            if let Some(begins) = begins {
                held.state.learning_rate = begins;
            }
            guard.settle();
            self.live().options(now_unix_ms);
            self.live().members(guard.state());
        }
        Ok(view::job(guard.state(), self.id(), self.live(), guard.now_unix_ms))
    }

    /// Deletes the job. If this is interrupted, none of its iterations is planned again, and the next request
    /// continues the deletion.
    pub(super) async fn delete(&self, entry: AuditEntry) -> Result<(), JobError> {
        let mut guard = self.lock().await?;
        let now_unix_ms = guard.now_unix_ms;
        // Never settled, so that the next request finds no job.
        guard.change();
        let trim = || vec![Change::TrimJob { job_id: self.id().clone() }];
        while self.store().write(trim(), now_unix_ms).await? > 0 {}
        let delete = Change::DeleteJob { job_id: self.id().clone() };
        let record = Change::Access(AccessChange::Audit(entry));
        self.store().write(vec![delete, record], now_unix_ms).await?;
        self.publish(|published| *published = Published::default());
        self.set_deleted();
        Ok(())
    }

    /// Removes workers whose lease expired. Does not wait for a request that uses the state: each request checks the
    /// leases first.
    pub(super) async fn expire_leases(&self) -> Result<(), JobError> {
        if self.held().try_lock().is_err() {
            return Ok(());
        }
        if self.is_loaded() || self.is_lease_over() {
            self.lock().await?;
        }
        Ok(())
    }
}
