//! Retention: rolls raw history up into minutes and minutes into hours, and deletes old hours. Runs in the
//! background, in small slices.
//!
//! Each slice is one write by the store's writer and is complete in itself (`store::RollUp`), so that
//! retention can stop and resume between any two slices. After each slice it pauses for the duration of that
//! slice, because requests have priority.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenstep_protocol::{JobId, RetentionView, StoreView};
use evenstep_store::{Change, HOUR_S, MINUTE_S, RollUp, Store, StoreError, step_start};

use crate::clock::Clock;
use crate::jobs::{HISTORY_ITERATIONS, JobError, Jobs};

/// Interval at which retention looks for old rows.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Longest pause between two slices.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Share of the size limit to which a store above the limit is reduced.
const TARGET_SHARE: f64 = 0.95;
/// Number of parts into which the time span of raw rows is divided. The oldest part is rolled up at once if
/// the store is above its size limit.
const EARLY_PARTS: i64 = 32;

/// Retention periods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Age limit of raw samples, reports and allocations, in seconds.
    pub raw_s: u64,
    /// Age limit of minutes, in seconds.
    pub minutes_s: u64,
    /// Age limit of hours, in seconds.
    pub hours_s: u64,
    /// Size in bytes above which the oldest raw rows are rolled up early.
    pub bytes: Option<u64>,
}

/// Statistics of retention.
#[derive(Debug, Clone)]
pub struct RetentionStats {
    view: Arc<Mutex<RetentionView>>,
    keep_bytes: Option<u64>,
}

impl RetentionStats {
    /// Statistics at zero.
    pub fn new(keep: &Keep) -> Self {
        let view = RetentionView {
            keep_raw_s: keep.raw_s,
            keep_minutes_s: keep.minutes_s,
            keep_hours_s: keep.hours_s,
            ..RetentionView::default()
        };
        Self { view: Arc::new(Mutex::new(view)), keep_bytes: keep.bytes }
    }

    /// Returns the summary of the store.
    ///
    /// # Errors
    /// An error if the store cannot be read.
    pub async fn store_view(&self, jobs: &Jobs) -> Result<StoreView, JobError> {
        let (store, retention) = (jobs.store(), self.lock().clone());
        let mut view = store.view().await?;
        let room = view.disk_use().await?;
        Ok(StoreView {
            backend: store.backend().to_owned(),
            schema: view.schema().await?,
            disk_bytes: room.disk_bytes,
            used_bytes: room.used_bytes,
            keep_bytes: self.keep_bytes,
            levels: view.levels().await?,
            retention,
        })
    }

    fn count(&self, roll_up: &RollUp, early: bool) {
        let (mut view, rows) = (self.lock(), roll_up.rows());
        match roll_up {
            RollUp::Samples { .. } | RollUp::Iterations { .. } => {
                view.rolled_up_rows += rows;
                view.rolled_up_early_rows += if early { rows } else { 0 };
            }
            RollUp::NodeSteps { hours, .. } if hours.is_empty() => view.deleted_hours += rows,
            RollUp::WorkerSteps { hours, .. } if hours.is_empty() => view.deleted_hours += rows,
            RollUp::NodeSteps { .. } | RollUp::WorkerSteps { .. } => view.rolled_up_minutes += rows,
        }
    }

    fn lock(&self) -> MutexGuard<'_, RetentionView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rolls up and deletes old rows while it is polled.
pub async fn run(jobs: Arc<Jobs>, clock: Clock, keep: Keep, record: RetentionStats) {
    let store = jobs.store().clone();
    let retention = Retention { jobs, store, clock, keep, record };
    let mut tick = tokio::time::interval(CHECK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let failure = match retention.look().await {
            // Another predictor applies retention to the same store.
            Ok(()) | Err(JobError::Store(StoreError::Superseded)) => None,
            Err(error) => {
                tracing::warn!(%error, "retention failed; it resumes in the next run");
                Some("the log has the error".to_owned())
            }
        };
        let mut view = retention.record.lock();
        view.looked_unix_ms = Some(retention.clock.now_unix_ms());
        view.last_failure = failure;
    }
}

struct Retention {
    jobs: Arc<Jobs>,
    store: Store,
    clock: Clock,
    keep: Keep,
    record: RetentionStats,
}

impl Retention {
    /// Rolls up and deletes everything that is old now. Age is relative to the newest row if that is before
    /// the current time: a clock that jumps ahead must not make new rows old. Samples have the clock of their
    /// node, allocations the clock of the predictor.
    async fn look(&self) -> Result<(), JobError> {
        let now_unix_ms = self.clock.now_unix_ms();
        let [minutes_s, hours_s] = [self.keep.minutes_s, self.keep.hours_s];
        if let Some([_, newest_unix_ms]) = self.store.samples_span_unix_ms().await? {
            let before = |keep_s: u64| before(now_unix_ms.min(newest_unix_ms), keep_s);
            self.samples(before(self.keep.raw_s), false).await?;
            self.node_steps(before(minutes_s), before(hours_s)).await?;
        }
        if let Some([_, newest_unix_ms]) = self.store.allocations_span_unix_ms().await? {
            let before = |keep_s: u64| before(now_unix_ms.min(newest_unix_ms), keep_s);
            for (job_id, keep_s) in self.store.job_retentions().await? {
                self.iterations(&job_id, before(keep_s.unwrap_or(self.keep.raw_s)), false).await?;
                self.worker_steps(&job_id, before(minutes_s), before(hours_s)).await?;
            }
        }
        self.enforce_size_limit().await
    }

    async fn samples(&self, before_unix_ms: i64, early: bool) -> Result<u64, JobError> {
        let mut rows = 0;
        while let Some(roll_up) = self.store.old_samples(before_unix_ms).await? {
            rows += self.write(roll_up, early).await?;
        }
        Ok(rows)
    }

    async fn iterations(&self, job_id: &JobId, before_unix_ms: i64, early: bool) -> Result<u64, JobError> {
        let mut rows = 0;
        while let Some(roll_up) =
            self.store.old_iterations(job_id, before_unix_ms, HISTORY_ITERATIONS).await?
        {
            let started = Instant::now();
            match self.jobs.roll_up(job_id, &roll_up).await {
                Ok(()) => {}
                // Another predictor owns the job and applies retention to it, or the job was deleted.
                Err(JobError::Elsewhere { .. } | JobError::UnknownJob(_)) => return Ok(rows),
                Err(error) => return Err(error),
            }
            rows += roll_up.rows();
            self.record_and_pause(&roll_up, early, started).await;
        }
        Ok(rows)
    }

    async fn node_steps(&self, minutes_unix_ms: i64, hours_unix_ms: i64) -> Result<(), JobError> {
        for (step_s, before_unix_ms) in [(MINUTE_S, minutes_unix_ms), (HOUR_S, hours_unix_ms)] {
            while let Some(roll_up) = self.store.old_node_steps(step_s, before_unix_ms).await? {
                self.write(roll_up, false).await?;
            }
        }
        Ok(())
    }

    async fn worker_steps(
        &self,
        job_id: &JobId,
        minutes_unix_ms: i64,
        hours_unix_ms: i64,
    ) -> Result<(), JobError> {
        for (step_s, before_unix_ms) in [(MINUTE_S, minutes_unix_ms), (HOUR_S, hours_unix_ms)] {
            while let Some(roll_up) = self.store.old_worker_steps(job_id, step_s, before_unix_ms).await? {
                self.write(roll_up, false).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, roll_up: RollUp, early: bool) -> Result<u64, JobError> {
        let (started, rows) = (Instant::now(), roll_up.rows());
        let change = Change::RollUp(Arc::new(roll_up.clone()));
        self.store.write(vec![change], self.clock.now_unix_ms()).await?;
        self.record_and_pause(&roll_up, early, started).await;
        Ok(rows)
    }

    /// Records the slice, and pauses for its duration.
    async fn record_and_pause(&self, roll_up: &RollUp, early: bool, started: Instant) {
        self.record.count(roll_up, early);
        tokio::time::sleep(started.elapsed().min(PAUSE_MAX)).await;
    }

    /// Rolls up the oldest raw rows until the store is below its size limit.
    async fn enforce_size_limit(&self) -> Result<(), JobError> {
        let Some(bound) = self.keep.bytes else { return Ok(()) };
        let mut used = self.store.view().await?.disk_use().await?.used_bytes;
        if used <= bound {
            return Ok(());
        }
        tracing::warn!(used, bound, "the store exceeds its size limit; rolling up the oldest raw rows early");
        for _ in 0..EARLY_PARTS {
            let mut rows = 0;
            if let Some(span) = self.store.samples_span_unix_ms().await? {
                rows += self.samples(oldest_part(span), true).await?;
            }
            if let Some(span) = self.store.allocations_span_unix_ms().await? {
                for (job_id, _) in self.store.job_retentions().await? {
                    rows += self.iterations(&job_id, oldest_part(span), true).await?;
                }
            }
            used = self.store.view().await?.disk_use().await?.used_bytes;
            if rows == 0 || used as f64 <= TARGET_SHARE * bound as f64 {
                break;
            }
        }
        if used > bound {
            tracing::warn!(
                used,
                bound,
                "the store exceeds its size limit, and no more rows can be rolled up"
            );
        }
        Ok(())
    }
}

/// The time `seconds` before `now_unix_ms`, rounded down to a minute.
fn before(now_unix_ms: i64, seconds: u64) -> i64 {
    let ms = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000);
    step_start(now_unix_ms.saturating_sub(ms).max(0), MINUTE_S)
}

/// End of the oldest part of a time span, at least one minute.
fn oldest_part([oldest_unix_ms, newest_unix_ms]: [i64; 2]) -> i64 {
    let part = newest_unix_ms.saturating_sub(oldest_unix_ms) / EARLY_PARTS;
    step_start(oldest_unix_ms.saturating_add(part), MINUTE_S).saturating_add(MINUTE_S * 1000)
}
