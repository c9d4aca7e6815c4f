//! The state of a job in memory, and exclusive access to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenstep_core::job::JobState;
use evenstep_protocol::JobId;
use tokio::sync::{Mutex, OwnedMappedMutexGuard};

use super::job::Job;
use super::leases::Leases;
use crate::clock::Now;

/// Milliseconds by which the wall clock may be set back without an effect on the order in which a restart learns from the
/// reports before and after.
const SET_BACK_MAX_MS: i64 = 60_000;

/// The state of a job, if it is in memory. A task can own the lock.
pub(super) type Slot = Arc<Mutex<Option<LoadedState>>>;

/// The state of a job in memory.
#[derive(Debug)]
pub(super) struct LoadedState {
    pub state: JobState,
    /// Names of job options that this version does not know. It does not plan the job then.
    pub unknown_options: Vec<String>,
    /// A change of the state may not be durable: it was not settled.
    pub in_doubt: bool,
    /// Time of the latest [`Job::lock`], in milliseconds of the steady clock.
    pub locked_ms: i64,
    /// Time of storage of the latest reports and allocations.
    pub arrived_unix_ms: i64,
}

impl LoadedState {
    /// Returns the time at which to store new reports and an allocation. It rises with every call, because the order of these
    /// times is the order in which a restart learns and plans. It only falls if the clock was set back by more than a minute.
    pub fn arrival_unix_ms(&mut self, now_unix_ms: i64) -> i64 {
        let later = now_unix_ms.max(self.arrived_unix_ms.saturating_add(1));
        let is_set_back = later.saturating_sub(now_unix_ms) > SET_BACK_MAX_MS;
        self.arrived_unix_ms = if is_set_back { now_unix_ms } else { later };
        self.arrived_unix_ms
    }

    /// Gives every live worker a full lease if the state was not locked for more than half a lease. Workers
    /// could not renew their leases then, as during a restart: this process was stopped, its machine was
    /// suspended, or the store did not respond.
    pub fn resume(&mut self, job_id: &JobId, now_ms: i64) {
        let pause_ms = now_ms.saturating_sub(std::mem::replace(&mut self.locked_ms, now_ms));
        if pause_ms > self.state.lease_ms() / 2 {
            tracing::warn!(%job_id, pause_ms, "no lease could be renewed for a while; every live worker gets a full one");
            self.state.members.renew_all(now_ms);
        }
    }

    /// Whether the state is equal to the stored one.
    pub fn is_certain(&self) -> bool {
        !self.in_doubt
    }

    /// The leases of its workers.
    pub fn leases(&self) -> Leases {
        Leases::of(&self.state, self.locked_ms, self.in_doubt)
    }
}

/// Exclusive access to the state of a job.
pub(super) struct StateGuard {
    pub job: Arc<Job>,
    pub held: OwnedMappedMutexGuard<Option<LoadedState>, LoadedState>,
    pub now: Now,
}

/// The state is being read from the store, or its models are being stored before it is removed from memory.
pub(super) struct Reading<'a>(pub &'a AtomicBool);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Drop for StateGuard {
    fn drop(&mut self) {
        self.job.charge(&self.held.state);
    }
}

impl StateGuard {
    /// The state, for reading.
    pub fn state(&self) -> &JobState {
        &self.held.state
    }

    /// Whether the job has options that this version does not know.
    pub fn has_unknown_options(&self) -> bool {
        !self.held.unknown_options.is_empty()
    }

    /// The state, for a change. If the guard is dropped before [`Self::settle`], because a write failed, the next request
    /// reads the state from the store.
    pub fn change(&mut self) -> &mut LoadedState {
        self.held.in_doubt = true;
        &mut self.held
    }

    /// Marks the state as equal to the stored one: the change is durable, or only concerned values that are
    /// not stored.
    pub fn settle(&mut self) {
        self.held.in_doubt = false;
    }
}
