//! Keeps the memory of jobs within its budget.

use std::sync::Arc;

use evenstep_protocol::JobId;

use super::job::Job;
use super::registry::Jobs;

impl Jobs {
    /// Frees memory as [`Self::make_room`] does, although the same use may have been accepted before.
    pub async fn review_room(&self) {
        self.memory().review_use();
        self.make_room().await;
    }

    /// Frees memory if more than the budget is used, the least recently used jobs first: all their responses but
    /// the newest, then their states. Active jobs, and the job that was used last, keep their states: two jobs whose states
    /// exceed the budget would else read them from the store at every request.
    pub async fn make_room(&self) {
        if !self.memory().is_full() {
            return;
        }
        // Later callers wait: they load states into the room that this one makes, usually enough for all.
        let _alone = self.making_room().lock().await;
        let mut jobs = self.all();
        // Cached, because other requests change these numbers meanwhile.
        jobs.sort_by_cached_key(|job| job.last_use());
        for job in &jobs {
            if !self.memory().is_full() {
                return;
            }
            job.trim_responses();
        }
        jobs.pop();
        let mut some_in_use = false;
        for job in jobs {
            if !self.memory().is_full() {
                return;
            }
            if job.pace().is_active(self.now().steady_ms) {
                continue;
            }
            // The models of a removed state are stored even if the caller stops waiting.
            match tokio::spawn(job.clone().remove_state()).await.unwrap_or(Removal::InUse) {
                Removal::Removed => {
                    self.memory().count_removed();
                    tracing::debug!(job_id = %job.id(), "removed the state from memory");
                }
                Removal::Absent => {}
                Removal::InUse => some_in_use = true,
            }
            let job_id = job.id().clone();
            drop(job);
            // The earlier summary of the job from the store may be old.
            self.retain_stored(|stored| *stored != job_id);
            self.forget(&job_id);
        }
        // States in use now can be removed soon.
        if !some_in_use {
            self.memory().accept_use();
        }
    }

    /// Removes a job that has nothing in memory. It must have no other user: one job never has two states.
    fn forget(&self, job_id: &JobId) {
        let mut jobs = self.write();
        if jobs.get(job_id).is_some_and(|job| Arc::strong_count(job) == 1 && job.is_empty()) {
            jobs.remove(job_id);
        }
    }
}

/// Result of removing a state from memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Removal {
    Removed,
    Absent,
    /// A request uses the state, or is about to read it from the store.
    InUse,
}

impl Job {
    /// Removes the state from memory, unless a request uses it. The next request loads it again.
    ///
    /// Models that are not stored are stored first. If that fails, they learn again from the stored reports.
    pub(super) async fn remove_state(self: Arc<Self>) -> Removal {
        let Ok(mut slot) = self.held().try_lock() else { return Removal::InUse };
        if slot.is_none() {
            return Removal::Absent;
        }
        // A state in doubt is read from the store anyway, which also decides on the leases.
        let Some(held) = slot.take_if(|held| held.is_certain()) else { return Removal::InUse };
        self.rest(held.leases());
        let _waits = self.keep_waiting();
        let models = (held.state.models.revision() != self.fits().stored_revision())
            .then(|| (held.state.models.clone(), held.state.devices()));
        // Freeing models of many workers takes more than a millisecond.
        drop(tokio::task::spawn_blocking(|| drop(held)).await);
        if let Some((models, devices)) = models
            && let Err(error) = self.keep(models, devices).await
        {
            tracing::warn!(job_id = %self.id(), %error, "cannot store models; they learn again from recent reports");
        }
        Removal::Removed
    }
}
