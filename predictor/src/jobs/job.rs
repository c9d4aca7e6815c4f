//! One job, and exclusive access to its state.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use evenstep_core::job::JobState;
use evenstep_protocol::{JobId, WorkerId, WorkerReport};
use evenstep_store::access::{AccessChange, AuditEntry};
use evenstep_store::{Change, MemberEvent, MemberEventKind, RollUp, Store, unknown_reason};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use super::error::JobError;
use super::fits::FitRecord;
use super::leases::Leases;
use super::load;
use super::memory::{Charge, Contents, Memory};
use super::responses::Published;
use super::watch::Live;
use crate::clock::Clock;

/// Number of earlier changes of workers with which the log of a job begins.
const EVENTS_RESTORED: u64 = 200;

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
    /// Leases of its workers while the state is not in memory.
    leases: std::sync::Mutex<Option<Leases>>,
    fits: FitRecord,
    live: Live,
    memory: Arc<Memory>,
    state_memory: Charge,
    response_memory: Charge,
    last_use: AtomicU64,
    deleted: AtomicBool,
}

/// The state of a job in memory.
#[derive(Debug)]
pub(super) struct LoadedState {
    pub state: JobState,
    /// Names of job options that this version does not know. It does not plan the job then.
    pub unknown_options: Vec<String>,
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

    /// Whether the state is equal to the stored one.
    pub fn is_certain(&self) -> bool {
        !self.in_doubt
    }

    /// The leases of its workers.
    pub fn leases(&self) -> Leases {
        Leases::of(&self.state, self.locked_unix_ms)
    }
}

/// Exclusive access to the state of a job.
pub(super) struct StateGuard<'a> {
    job: &'a Job,
    held: MappedMutexGuard<'a, LoadedState>,
    pub now_unix_ms: i64,
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        self.job.state_memory.set(self.held.state.bytes() + self.job.live.bytes());
    }
}

impl StateGuard<'_> {
    /// The state, for reading.
    pub fn state(&self) -> &JobState {
        &self.held.state
    }

    /// Whether the job has options that this version does not know.
    pub fn has_unknown_options(&self) -> bool {
        !self.held.unknown_options.is_empty()
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
    pub(super) fn new(id: JobId, registration: u64, store: Store, clock: Clock, memory: Arc<Memory>) -> Self {
        Self {
            id,
            registration,
            store,
            published: RwLock::default(),
            held: Mutex::new(None),
            leases: std::sync::Mutex::new(None),
            fits: FitRecord::default(),
            live: Live::new(clock.now_unix_ms()),
            clock,
            state_memory: Charge::new(memory.clone(), Contents::States),
            response_memory: Charge::new(memory.clone(), Contents::Responses),
            memory,
            last_use: AtomicU64::default(),
            deleted: AtomicBool::default(),
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

    /// Records that the job is used now.
    pub(super) fn touch(&self) {
        self.last_use.store(self.memory.next_use(), Ordering::Relaxed);
    }

    /// The number of the latest use; 0 if it was never used.
    pub(super) fn last_use(&self) -> u64 {
        self.last_use.load(Ordering::Relaxed)
    }

    /// Whether the job was deleted. A new job of the same ID is another [`Job`].
    pub(super) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    pub(super) fn set_deleted(&self) {
        self.deleted.store(true, Ordering::Release);
    }

    /// The state, if it is in memory.
    pub(super) fn held(&self) -> &Mutex<Option<LoadedState>> {
        &self.held
    }

    /// Reads the state, if it is in memory and no request uses it.
    pub(super) fn if_idle<T>(&self, read: impl FnOnce(&JobState) -> T) -> Option<T> {
        let held = self.held.try_lock().ok()?;
        held.as_ref().filter(|held| held.is_certain()).map(|held| read(&held.state))
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
        if self.is_deleted() {
            return Err(JobError::UnknownJob(self.id.clone()));
        }
        let now_unix_ms = self.clock.now_unix_ms();
        let held = match slot.take() {
            Some(mut held) if !held.in_doubt => {
                held.resume(&self.id, now_unix_ms);
                held
            }
            doubtful => {
                // Failed writes must not prolong the leases of workers that are silent.
                if let Some(held) = doubtful {
                    *self.leases() = Some(Leases::of(&held.state, held.locked_unix_ms));
                }
                self.load(now_unix_ms).await?
            }
        };
        let held = MutexGuard::map(slot, |slot| slot.insert(held));
        let mut guard = StateGuard { job: self, held, now_unix_ms };
        let lease_ms = guard.state().lease_ms();
        let expired = guard.change().state.members.expire(now_unix_ms, lease_ms);
        if !expired.is_empty() {
            let event =
                |worker: &WorkerId| MemberEvent { worker: worker.clone(), kind: MemberEventKind::Expired };
            self.write_membership(&guard, expired.iter().map(event).collect(), true, None).await?;
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
        let see = |at_unix_ms: i64, report: &WorkerReport| {
            arrived_unix_ms = arrived_unix_ms.max(at_unix_ms);
            fresh.see(&report.worker, report.iteration);
        };
        if let Some(leases) = self.leases().as_mut() {
            leases.check(now_unix_ms);
        }
        let renewed_ms = |worker: &WorkerId| self.renewed_ms(worker, now_unix_ms);
        let loaded = load::load(&self.store, &self.id, now_unix_ms, renewed_ms, see).await;
        let loaded = loaded.map_err(|error| JobError::of_row(&self.id, error));
        if let Err(JobError::Unreadable { reason, .. }) = &loaded {
            self.live.unreadable(Some(reason.clone()));
        }
        let (state, unknown_options) = loaded?.ok_or_else(|| JobError::UnknownJob(self.id.clone()))?;
        self.live.unreadable(unknown_reason(&unknown_options));
        self.fits.loaded();
        fresh.loaded = true;
        fresh.generation = state.members.generation();
        fresh.departed_generation = state.members.departed_generation();
        self.publish(|published| *published = fresh);
        *self.leases() = None;
        self.live.past(self.store.past(&self.id).await?);
        if self.live.has_empty_log() {
            self.live.restore_log(self.store.recent_events(&self.id, EVENTS_RESTORED).await?);
        }
        self.live.members(&state);
        Ok(LoadedState {
            state,
            unknown_options,
            in_doubt: false,
            locked_unix_ms: now_unix_ms,
            arrived_unix_ms,
        })
    }

    /// Keeps only the leases of a state that is removed from memory.
    pub(super) fn rest(&self, leases: Leases) {
        *self.leases() = Some(leases);
        self.publish(|published| *published = Published::default());
        self.live.rest();
        self.state_memory.set(0);
    }

    /// Whether a lease has ended while the state is not in memory.
    pub(super) fn is_lease_over(&self) -> bool {
        let now_unix_ms = self.clock.now_unix_ms();
        self.leases().as_mut().is_some_and(|leases| leases.check(now_unix_ms))
    }

    /// Time of a worker's latest renewal. Workers cannot renew leases while the service is down, so each live
    /// worker starts with a full lease.
    fn renewed_ms(&self, worker: &WorkerId, now_unix_ms: i64) -> i64 {
        let known = self.leases().as_ref().and_then(|leases| leases.renewed_ms(worker));
        known.unwrap_or(now_unix_ms)
    }

    fn leases(&self) -> std::sync::MutexGuard<'_, Option<Leases>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the job has neither a state, nor live workers, nor responses in memory.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_loaded() && self.leases().as_ref().is_none_or(Leases::is_empty)
    }

    /// Drops all responses from memory but the newest.
    pub(super) fn trim_responses(&self) {
        self.publish(|published| published.trim(1));
    }

    /// Writes changes of the workers. `is_new_generation` is true if they begin a new generation.
    pub(super) async fn write_membership(
        &self,
        guard: &StateGuard<'_>,
        events: Vec<MemberEvent>,
        is_new_generation: bool,
        entry: Option<&AuditEntry>,
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
        let record = entry.map(|entry| Change::Access(AccessChange::Audit(entry.clone())));
        let changes = std::iter::once(change).chain(record).collect();
        self.store.write(changes, guard.now_unix_ms).await?;
        events.iter().for_each(|event| self.live.member(guard.now_unix_ms, event));
        Ok(())
    }

    /// Publishes the live workers and the generation.
    pub(super) fn publish_members(&self, state: &JobState) {
        self.live.members(state);
        self.publish(|published| {
            published.generation = state.members.generation();
            published.departed_generation = state.members.departed_generation();
        });
    }

    /// Deletes the oldest iterations and keeps their statistics. The state stays locked meanwhile, as for
    /// every change: the next request knows which iterations were deleted, or reads the state from the store.
    pub(super) async fn roll_up(&self, roll_up: &RollUp) -> Result<(), JobError> {
        let mut slot = self.held.lock().await;
        let was_in_doubt = slot.as_mut().is_some_and(|held| std::mem::replace(&mut held.in_doubt, true));
        let change = Change::RollUp(Arc::new(roll_up.clone()));
        self.store.write(vec![change], self.clock.now_unix_ms()).await?;
        if let (Some(held), RollUp::Iterations { keep_from, .. }) = (slot.as_mut(), roll_up) {
            held.state.kept_from = *keep_from;
            held.in_doubt = was_in_doubt;
        }
        Ok(())
    }

    /// The published part of the state, for reading without the lock of the job.
    pub(super) fn published(&self) -> RwLockReadGuard<'_, Published> {
        self.published.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the published part of the state.
    pub(super) fn publish(&self, change: impl FnOnce(&mut Published)) {
        let mut published = self.published.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut published);
        self.response_memory.set(published.bytes());
    }
}
