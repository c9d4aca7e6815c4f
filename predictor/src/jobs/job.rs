//! One job, and exclusive access to its state.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use evenstep_core::job::JobState;
use evenstep_protocol::{JobId, WorkerId};
use evenstep_store::{Change, MemberEvent, MemberEventKind, RollUp, Store};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use super::error::JobError;
use super::fits::FitRecord;
use super::live::Live;
use super::load;
use super::responses::Published;
use crate::clock::Clock;

/// A job.
#[derive(Debug)]
pub struct Job {
    id: JobId,
    /// Registration of this predictor in which it owns the job.
    registration: u64,
    store: Store,
    clock: Clock,
    published: RwLock<Published>,
    /// `None` until the first request that needs it.
    held: Mutex<Option<LoadedState>>,
    fits: FitRecord,
    live: Live,
}

/// The state of a job in memory.
#[derive(Debug)]
pub(super) struct LoadedState {
    pub state: JobState,
    /// A change of the state may not be durable: it was not settled.
    in_doubt: bool,
    /// Time of the latest [`Job::lock`].
    locked_unix_ms: i64,
    /// Time of storage of the latest reports.
    arrived_unix_ms: i64,
}

impl LoadedState {
    /// Returns the time at which to store new reports. It rises with every call, because the order of these times is the
    /// order in which a restart learns from the reports.
    pub fn arrival_unix_ms(&mut self, now_unix_ms: i64) -> i64 {
        self.arrived_unix_ms = now_unix_ms.max(self.arrived_unix_ms.saturating_add(1));
        self.arrived_unix_ms
    }

    /// Gives every live worker a full lease if the state was not locked for more than half a lease. Workers
    /// could not renew their leases then, as during a restart: this process was stopped, its machine was
    /// suspended, or the store did not respond.
    fn resume(&mut self, job_id: &JobId, now_unix_ms: i64) {
        let pause_ms = now_unix_ms.saturating_sub(std::mem::replace(&mut self.locked_unix_ms, now_unix_ms));
        if pause_ms > self.state.lease_ms() / 2 {
            tracing::warn!(%job_id, pause_ms, "no lease could be renewed for a while; every live worker gets a full one");
            self.state.members.renew_all(now_unix_ms);
        }
    }
}

/// Exclusive access to the state of a job.
pub(super) struct StateGuard<'a> {
    held: MappedMutexGuard<'a, LoadedState>,
    pub now_unix_ms: i64,
}

impl StateGuard<'_> {
    /// The state, for reading.
    pub fn state(&self) -> &JobState {
        &self.held.state
    }

    /// The state, for a change. If the guard is dropped before [`Self::settle`], the next request reads the
    /// state from the store.
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

impl Job {
    /// A job without any state in memory.
    pub(super) fn new(id: JobId, registration: u64, store: Store, clock: Clock) -> Self {
        Self {
            id,
            registration,
            store,
            clock,
            published: RwLock::default(),
            held: Mutex::new(None),
            fits: FitRecord::default(),
            live: Live::new(),
        }
    }

    /// The ID of the job.
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// Registration of this predictor in which it owns the job.
    pub(super) fn registration(&self) -> u64 {
        self.registration
    }

    /// Outcomes of the fits of its networks.
    pub(super) fn fits(&self) -> &FitRecord {
        &self.fits
    }

    /// Live statistics and log of the job.
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// Whether the state is in memory.
    pub(super) fn is_loaded(&self) -> bool {
        self.published().loaded
    }

    /// The current time of the service's clock.
    pub(super) fn now_unix_ms(&self) -> i64 {
        self.clock.now_unix_ms()
    }

    /// The store of the job.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Locks the state for this request. Reads it from the store if it is not in memory or in doubt, and
    /// removes workers whose lease expired.
    pub(super) async fn lock(&self) -> Result<StateGuard<'_>, JobError> {
        let mut slot = self.held.lock().await;
        let now_unix_ms = self.clock.now_unix_ms();
        let held = match slot.take().filter(|held| !held.in_doubt) {
            Some(mut held) => {
                held.resume(&self.id, now_unix_ms);
                held
            }
            None => self.load(now_unix_ms).await?,
        };
        let held = MutexGuard::map(slot, |slot| slot.insert(held));
        let mut guard = StateGuard { held, now_unix_ms };
        let lease_ms = guard.state().lease_ms();
        let expired = guard.change().state.members.expire(now_unix_ms, lease_ms);
        if !expired.is_empty() {
            let event =
                |worker: &WorkerId| MemberEvent { worker: worker.clone(), kind: MemberEventKind::Expired };
            self.write_membership(&guard, expired.iter().map(event).collect(), true).await?;
            let generation = guard.state().members.generation();
            tracing::info!(job_id = %self.id, workers = ?expired, generation, "leases expired");
            self.publish_members(guard.state());
        }
        guard.settle();
        Ok(guard)
    }

    async fn load(&self, now_unix_ms: i64) -> Result<LoadedState, JobError> {
        // A request that was dropped may have left its write in the queue. This empty write completes after
        // it, so that the state is read with all of that write or none.
        self.store.write(Vec::new(), now_unix_ms).await?;
        let mut fresh = Published::default();
        let mut arrived_unix_ms = i64::MIN;
        let state = load::load(&self.store, &self.id, now_unix_ms, |at_unix_ms, report| {
            arrived_unix_ms = arrived_unix_ms.max(at_unix_ms);
            fresh.see(&report.worker, report.iteration);
        })
        .await?;
        let state = state.ok_or_else(|| JobError::UnknownJob(self.id.clone()))?;
        self.fits.loaded();
        fresh.loaded = true;
        fresh.generation = state.members.generation();
        fresh.departed_generation = state.members.departed_generation();
        *self.published_mut() = fresh;
        self.live.members(&state);
        Ok(LoadedState { state, in_doubt: false, locked_unix_ms: now_unix_ms, arrived_unix_ms })
    }

    /// Writes changes of the workers. `is_new_generation` is true if they begin a new generation.
    pub(super) async fn write_membership(
        &self,
        guard: &StateGuard<'_>,
        events: Vec<MemberEvent>,
        is_new_generation: bool,
    ) -> Result<(), JobError> {
        let members = &guard.state().members;
        let generation = members.generation();
        let change = Change::Membership {
            job_id: self.id.clone(),
            replaces: generation - u64::from(is_new_generation),
            generation,
            departed_generation: members.departed_generation(),
            events: events.clone(),
        };
        self.store.write(vec![change], guard.now_unix_ms).await?;
        events.iter().for_each(|event| self.live.member(guard.now_unix_ms, event));
        Ok(())
    }

    /// Publishes the live workers and the generation.
    pub(super) fn publish_members(&self, state: &JobState) {
        self.live.members(state);
        let mut published = self.published_mut();
        published.generation = state.members.generation();
        published.departed_generation = state.members.departed_generation();
    }

    /// Deletes the oldest iterations and keeps their statistics. The state stays locked meanwhile, as for
    /// every change: the next request knows which iterations were deleted, or reads the state from the store.
    pub(super) async fn roll_up(&self, roll_up: &RollUp) -> Result<(), JobError> {
        let mut slot = self.held.lock().await;
        let held = slot.take();
        let change = Change::RollUp(Arc::new(roll_up.clone()));
        self.store.write(vec![change], self.clock.now_unix_ms()).await?;
        if let (Some(mut held), RollUp::Iterations { keep_from, .. }) = (held, roll_up) {
            held.state.kept_from = *keep_from;
            *slot = Some(held);
        }
        Ok(())
    }

    /// The published part of the state, for reading without the lock of the job.
    pub(super) fn published(&self) -> RwLockReadGuard<'_, Published> {
        self.published.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The published part of the state, for a change.
    pub(super) fn published_mut(&self) -> RwLockWriteGuard<'_, Published> {
        self.published.write().unwrap_or_else(PoisonError::into_inner)
    }
}
