//! The use of limits by a token.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenstep_protocol::JobId;
use tokio::sync::OwnedMutexGuard;

use super::super::pattern::JobPattern;
use super::bucket::Bucket;
use super::file::Limit;

/// The use of limits by a token.
#[derive(Debug)]
pub struct Used {
    token_id: Arc<str>,
    jobs: JobPattern,
    state: Mutex<State>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Held while a job is created or a worker joins, so that requests of one token cannot exceed a limit together.
pub type Turn = OwnedMutexGuard<()>;

#[derive(Debug, Default)]
struct State {
    requests: Bucket,
    telemetry: Bucket,
    counts: [Counts; Limit::ALL.len()],
}

/// The use of one limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// The number of jobs or workers, or the total of accepted requests or bytes.
    pub used: f64,
    /// The number of refused requests.
    pub refused: u64,
}

impl Used {
    pub(super) fn new(token_id: Arc<str>, jobs: JobPattern) -> Self {
        Self { token_id, jobs, state: Mutex::default(), turn: Arc::default() }
    }

    /// The ID of the token.
    pub fn token_id(&self) -> &Arc<str> {
        &self.token_id
    }

    /// The jobs that the token may use.
    pub fn jobs(&self) -> &JobPattern {
        &self.jobs
    }

    /// Waits for other requests of the token that create a job or add a worker.
    pub async fn turn(&self) -> Turn {
        self.turn.clone().lock_owned().await
    }

    /// The number of jobs and their live workers that the token may use.
    pub fn count(&self, workers: &[(JobId, u64)]) -> (u64, u64) {
        count(&self.jobs, workers)
    }

    /// Counts a part of a body of telemetry whose length was not known before.
    pub fn arrived(&self, bytes: usize, per_s: f64, now: Instant) {
        let mut state = self.lock();
        state.telemetry.charge(bytes as f64, per_s, now);
        state.counts[Limit::TelemetryBytes as usize].used += bytes as f64;
    }

    /// Counts a refused request.
    pub fn refused(&self, limit: Limit) {
        self.lock().counts[limit as usize].refused += 1;
    }

    pub(super) fn take(&self, limit: Limit, cost: f64, per_s: f64, now: Instant) -> Result<(), Duration> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let bucket = if limit == Limit::Requests { &mut state.requests } else { &mut state.telemetry };
        let taken = bucket.take(cost, per_s, now);
        let counts = &mut state.counts[limit as usize];
        match taken {
            Ok(()) => counts.used += cost,
            Err(_) => counts.refused += 1,
        }
        taken
    }

    pub(super) fn holds(&self, (jobs, workers): (u64, u64)) {
        let mut state = self.lock();
        state.counts[Limit::Jobs as usize].used = jobs as f64;
        state.counts[Limit::Workers as usize].used = workers as f64;
    }

    pub(super) fn counts(&self, limit: Limit) -> Counts {
        self.lock().counts[limit as usize]
    }

    /// Every change leaves the value valid, so a panic of another thread does no harm.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of jobs that a pattern includes, and of their live workers.
pub(super) fn count(pattern: &JobPattern, workers: &[(JobId, u64)]) -> (u64, u64) {
    let own = workers.iter().filter(|(job_id, _)| pattern.includes(job_id));
    own.fold((0, 0), |(jobs, all), (_, live)| (jobs + 1, all + live))
}
