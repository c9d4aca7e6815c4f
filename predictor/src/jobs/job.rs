//! One job: waits for its state, loads it, and publishes its changes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use evenstep_core::job::JobState;
use evenstep_protocol::{JobId, WorkerId};
use evenstep_store::access::{AccessChange, AuditEntry};
use evenstep_store::{Change, MemberEvent, MemberEventKind, RollUp, Store, StoreError, unknown_reason};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::error::JobError;
use super::fits::FitRecord;
use super::held::{LoadedState, Reading, Slot, StateGuard};
use super::leases::Leases;
use super::load;
use super::loads::Loads;
use super::memory::{Charge, Contents, Memory};
use super::pace::Pace;
use super::responses::Published;
use super::watch::Live;
use crate::clock::{Clock, Now};

/// Number of earlier changes of workers with which the log of a job begins.
const EVENTS_RESTORED: u64 = 200;

/// Longest wait of a change for a state that is being read from the store. Clients with several servers try the next one after
/// a second.
const LOADING_WAIT: Duration = Duration::from_millis(800);

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
    held: Slot,
    loads: Arc<Loads>,
    is_loading: AtomicBool,
    /// Leases of its workers while the state is not in memory.
    leases: std::sync::Mutex<Option<Leases>>,
    fits: FitRecord,
    live: Live,
    memory: Arc<Memory>,
    state_memory: Charge,
    response_memory: Charge,
    last_use: AtomicU64,
    pace: std::sync::Mutex<Pace>,
    deleted: AtomicBool,
}

impl Job {
    /// A job without any state in memory.
    pub(super) fn new(
        id: JobId,
        registration: u64,
        store: Store,
        clock: Clock,
        memory: Arc<Memory>,
        loads: Arc<Loads>,
    ) -> Self {
        Self {
            id,
            registration,
            store,
            published: RwLock::default(),
            held: Slot::default(),
            loads,
            is_loading: AtomicBool::default(),
            leases: std::sync::Mutex::new(None),
            fits: FitRecord::default(),
            live: Live::new(clock.steady_ms()),
            clock,
            state_memory: Charge::new(memory.clone(), Contents::States),
            response_memory: Charge::new(memory.clone(), Contents::Responses),
            memory,
            last_use: AtomicU64::default(),
            pace: std::sync::Mutex::default(),
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

    /// Times at which it plans iterations.
    pub(super) fn pace(&self) -> std::sync::MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The current time of the service's clocks.
    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }

    /// The store of the job.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Runs `work` on the state. What has begun ends, even if the caller stops waiting: then nothing is in doubt, and a client
    /// that repeats its request finds the result.
    ///
    /// # Errors
    /// [`JobError::Loading`] if the state is still being read from the store; an error of `work` or of the store.
    pub(super) async fn work<T, F>(
        self: &Arc<Self>,
        work: impl FnOnce(StateGuard) -> F,
    ) -> Result<T, JobError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, JobError>> + Send + 'static,
    {
        // A caller that gives up before its turn has begun nothing.
        let guard = self.lock_in_time().await?;
        outcome(tokio::spawn(work(guard))).await
    }

    /// Locks the state as [`Self::lock`] does, but does not wait long for it to be read.
    ///
    /// # Errors
    /// [`JobError::Loading`] if the state is still being read from the store, or an error of the store.
    pub(super) async fn lock_in_time(self: &Arc<Self>) -> Result<StateGuard, JobError> {
        let lock = self.lock();
        tokio::pin!(lock);
        loop {
            match timeout(LOADING_WAIT, &mut lock).await {
                Ok(guard) => return guard,
                Err(_) if self.is_loading.load(Ordering::Relaxed) => {
                    return Err(JobError::Loading(self.id.clone()));
                }
                // Other changes come first.
                Err(_) => {}
            }
        }
    }

    /// Locks the state. Reads it from the store if it is not in memory or in doubt, and removes workers whose lease expired;
    /// both continue if the caller stops waiting.
    pub(super) async fn lock(self: &Arc<Self>) -> Result<StateGuard, JobError> {
        let mut slot = self.held.clone().lock_owned().await;
        if self.is_deleted() {
            return Err(JobError::UnknownJob(self.id.clone()));
        }
        let now = self.clock.now();
        let held = match slot.take() {
            Some(mut held) if !held.in_doubt => {
                held.resume(&self.id, now.steady_ms);
                if !held.state.members.has_silent(now.steady_ms, held.state.lease_ms()) {
                    return Ok(self.guard(slot, held, now));
                }
                Some(held)
            }
            doubtful => doubtful,
        };
        outcome(tokio::spawn(self.clone().open(slot, held, now))).await
    }

    /// Reads the state if it is not in memory or in doubt, and removes workers whose lease expired.
    async fn open(
        self: Arc<Self>,
        slot: OwnedMutexGuard<Option<LoadedState>>,
        held: Option<LoadedState>,
        now: Now,
    ) -> Result<StateGuard, JobError> {
        let held = match held {
            Some(held) if !held.in_doubt => held,
            doubtful => {
                // Failed writes must not prolong the leases of workers that are silent.
                if let Some(held) = doubtful {
                    *self.leases() = Some(held.leases());
                    self.state_memory.set(0);
                }
                let _waits = self.keep_waiting();
                let workers = self.store.worker_count(&self.id).await?;
                Box::pin(self.loads.run(workers, self.clone().load(now))).await?
            }
        };
        let mut guard = self.guard(slot, held, now);
        let lease_ms = guard.state().lease_ms();
        let expired = guard.change().state.members.expire(now.steady_ms, lease_ms);
        if !expired.is_empty() {
            let event =
                |worker: &WorkerId| MemberEvent { worker: worker.clone(), kind: MemberEventKind::Expired };
            self.write_membership(&mut guard, expired.iter().map(event).collect(), true, None).await?;
            let generation = guard.state().members.generation();
            tracing::info!(job_id = %self.id, workers = ?expired, generation, "leases expired");
            self.publish_members(guard.state(), now);
        }
        guard.settle();
        Ok(guard)
    }

    /// Until the result is dropped, changes do not wait long for the state.
    pub(super) fn keep_waiting(&self) -> Reading<'_> {
        self.is_loading.store(true, Ordering::Relaxed);
        Reading(&self.is_loading)
    }

    fn guard(
        self: &Arc<Self>,
        slot: OwnedMutexGuard<Option<LoadedState>>,
        held: LoadedState,
        now: Now,
    ) -> StateGuard {
        let held = OwnedMutexGuard::map(slot, |slot| slot.insert(held));
        StateGuard { job: self.clone(), held, now }
    }

    async fn load(self: Arc<Self>, now: Now) -> Result<LoadedState, JobError> {
        // A write whose result is unknown may still be carried out. On SQLite, this empty write completes after it, so that the
        // state is read with all of that write or none. PostgreSQL may carry it out even later, after a commit that timed out.
        // A write that follows from a state without it then fails, because it has the same keys, and the state is read again.
        self.store.write(Vec::new(), now.unix_ms).await?;
        let mut fresh = Published::default();
        let mut arrived_unix_ms = i64::MIN;
        let see = |worker: &WorkerId, position: u64| {
            fresh.see(worker, position);
        };
        let arrived = |at_unix_ms: i64| arrived_unix_ms = arrived_unix_ms.max(at_unix_ms);
        if let Some(leases) = self.leases().as_mut() {
            leases.check(now.steady_ms);
        }
        let renewed_ms = |worker: &WorkerId| self.renewed_ms(worker, now.steady_ms);
        let loaded = load::load(&self.store, &self.id, now, renewed_ms, see, arrived).await;
        let loaded = loaded.map_err(|error| JobError::of_row(&self.id, error));
        if let Err(JobError::Unreadable { reason, .. }) = &loaded {
            self.live.unreadable(Some(reason.clone()));
        }
        let (state, unknown_options) = loaded?.ok_or_else(|| JobError::UnknownJob(self.id.clone()))?;
        let past = self.store.past(&self.id).await?;
        let events = if self.live.has_empty_log() {
            self.store.recent_events(&self.id, EVENTS_RESTORED).await?
        } else {
            Vec::new()
        };
        // Nothing fails from here on: a job whose load failed is not loaded, and keeps the leases of its workers.
        self.live.unreadable(unknown_reason(&unknown_options));
        self.fits.loaded();
        fresh.loaded = true;
        fresh.generation = state.members.generation();
        fresh.departed_generation = state.members.departed_generation();
        (fresh.attempts, fresh.regrouped) = (state.attempts.clone(), state.regrouped);
        self.publish(|published| *published = fresh);
        *self.leases() = None;
        self.live.past(past);
        self.live.restore_log(events);
        self.live.members(&state, now);
        Ok(LoadedState { state, unknown_options, in_doubt: false, locked_ms: now.steady_ms, arrived_unix_ms })
    }

    /// Charges the memory of the state.
    pub(super) fn charge(&self, state: &JobState) {
        self.state_memory.set(state.bytes() + self.live.bytes());
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
        let now_ms = self.clock.steady_ms();
        self.leases().as_mut().is_some_and(|leases| leases.check(now_ms))
    }

    /// Time of a worker's latest renewal. Workers cannot renew leases while the service is down, so each live
    /// worker starts with a full lease.
    fn renewed_ms(&self, worker: &WorkerId, now_ms: i64) -> i64 {
        let known = self.leases().as_ref().and_then(|leases| leases.renewed_ms(worker));
        known.unwrap_or(now_ms)
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

    /// Writes changes of the workers. `is_new_generation` is true if they begin a new generation. Then, and if a worker joined
    /// again, the run may start again.
    pub(super) async fn write_membership(
        &self,
        guard: &mut StateGuard,
        events: Vec<MemberEvent>,
        is_new_generation: bool,
        entry: Option<&AuditEntry>,
    ) -> Result<(), JobError> {
        let joins = |event: &MemberEvent| matches!(event.kind, MemberEventKind::Rejoined(_));
        let regroups = is_new_generation || events.iter().any(joins);
        let regrouped = if regroups { self.regroup(guard) } else { None };
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
        let changes = std::iter::once(change).chain(regrouped).chain(record).collect();
        self.store.write(changes, guard.now.unix_ms).await?;
        events.iter().for_each(|event| self.live.member(guard.now, event));
        Ok(())
    }

    /// Records that the run may start again. Returns the change, unless it was recorded before.
    pub(super) fn regroup(&self, guard: &mut StateGuard) -> Option<Change> {
        let is_known = std::mem::replace(&mut guard.change().state.regrouped, true);
        (!is_known).then(|| Change::Regrouped { job_id: self.id.clone(), regrouped: true })
    }

    /// Publishes the live workers and the generation.
    pub(super) fn publish_members(&self, state: &JobState, now: Now) {
        self.live.members(state, now);
        self.publish_generation(state);
    }

    /// Publishes the generation.
    pub(super) fn publish_generation(&self, state: &JobState) {
        self.publish(|published| {
            published.generation = state.members.generation();
            published.departed_generation = state.members.departed_generation();
            published.regrouped = state.regrouped;
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
            held.state.attempts.forget_before(*keep_from);
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

/// Waits for a task that continues if the caller stops waiting. A panic of the task is one of the caller.
///
/// # Errors
/// The task's error, or an error of the store if the process ends.
pub(super) async fn outcome<T>(task: JoinHandle<Result<T, JobError>>) -> Result<T, JobError> {
    match task.await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(JobError::Store(StoreError::Closed)),
        },
    }
}
