//! Retention: raw history becomes minutes, minutes become hours, hours go; in the background, in small slices.
//!
//! Every slice is a write of its own through the one writer, and stands for itself (`store::RollUp`), so that it can stop and go
//! on anywhere. Between two slices it rests for as long as the last one took: whoever trains comes first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenstep_protocol::{JobId, RetentionView, StoreView};
use evenstep_store::{Change, HOUR_S, MINUTE_S, RollUp, Store, StoreError, begin_of_step};

use crate::clock::Clock;
use crate::jobs::{HISTORY_ITERATIONS, JobError, Jobs};

/// From one look for old rows to the next.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The longest rest between two slices.
const REST_MAX: Duration = Duration::from_secs(1);
/// Of a store above its bound, raw rows go until it is below this share of it.
const BELOW_BOUND: f64 = 0.95;
/// Parts of the time that raw rows span; the oldest goes at once where the store is above its bound.
const EARLY_PARTS: i64 = 32;

/// How long things are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Samples, reports and answers, in seconds.
    pub raw_s: u64,
    /// Minutes, in seconds.
    pub minutes_s: u64,
    /// Hours, in seconds.
    pub hours_s: u64,
    /// Above so many bytes the oldest raw rows go early.
    pub bytes: Option<u64>,
}

/// What retention did.
#[derive(Debug, Clone)]
pub struct Record {
    view: Arc<Mutex<RetentionView>>,
    keep_bytes: Option<u64>,
}

impl Record {
    /// Nothing yet.
    pub fn new(keep: &Keep) -> Self {
        let view = RetentionView {
            keep_raw_s: keep.raw_s,
            keep_minutes_s: keep.minutes_s,
            keep_hours_s: keep.hours_s,
            ..RetentionView::default()
        };
        Self { view: Arc::new(Mutex::new(view)), keep_bytes: keep.bytes }
    }

    /// The store at a glance.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub async fn store_view(&self, jobs: &Jobs) -> Result<StoreView, JobError> {
        let (store, retention) = (jobs.store(), self.lock().clone());
        let room = store.disk_use().await?;
        Ok(StoreView {
            backend: store.backend().to_owned(),
            schema: store.schema().await?,
            disk_bytes: room.disk_bytes,
            used_bytes: room.used_bytes,
            keep_bytes: self.keep_bytes,
            levels: store.levels().await?,
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

/// Lets old rows go, for as long as it is polled.
pub async fn run(jobs: Arc<Jobs>, clock: Clock, keep: Keep, record: Record) {
    let store = jobs.store().clone();
    let retention = Retention { jobs, store, clock, keep, record };
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let failure = match retention.look().await {
            // Another predictor is at it, or has been.
            Ok(()) | Err(JobError::Store(StoreError::Taken)) => None,
            Err(error) => {
                tracing::warn!(%error, "retention broke off; it goes on at the next look");
                Some("the log says why".to_owned())
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
    record: Record,
}

impl Retention {
    /// Lets everything go that is old now. Age is counted from what was stored last, where that is before the clock: a clock
    /// that jumps ahead makes nothing old that is new. Samples have the clocks of their nodes, answers ours.
    async fn look(&self) -> Result<(), JobError> {
        let now_unix_ms = self.clock.now_unix_ms();
        let [minutes_s, hours_s] = [self.keep.minutes_s, self.keep.hours_s];
        if let Some([_, newest_unix_ms]) = self.store.samples_span_unix_ms().await? {
            let before = |keep_s: u64| before(now_unix_ms.min(newest_unix_ms), keep_s);
            self.samples(before(self.keep.raw_s), false).await?;
            self.node_steps(before(minutes_s), before(hours_s)).await?;
        }
        if let Some([_, newest_unix_ms]) = self.store.answers_span_unix_ms().await? {
            let before = |keep_s: u64| before(now_unix_ms.min(newest_unix_ms), keep_s);
            for (job_id, keep_s) in self.store.job_keeps().await? {
                self.iterations(&job_id, before(keep_s.unwrap_or(self.keep.raw_s)), false).await?;
                self.worker_steps(&job_id, before(minutes_s), before(hours_s)).await?;
            }
        }
        self.stay_below_bound().await
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
                // Its owner lets its history go; a job that was deleted has none.
                Err(JobError::Elsewhere { .. } | JobError::UnknownJob(_)) => return Ok(rows),
                Err(error) => return Err(error),
            }
            rows += roll_up.rows();
            self.went(&roll_up, early, started).await;
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
        self.went(&roll_up, early, started).await;
        Ok(rows)
    }

    /// Keeps in mind what went, and rests for as long as that took.
    async fn went(&self, roll_up: &RollUp, early: bool, started: Instant) {
        self.record.count(roll_up, early);
        tokio::time::sleep(started.elapsed().min(REST_MAX)).await;
    }

    /// Where the store is above its bound, lets the oldest raw rows go until it is not.
    async fn stay_below_bound(&self) -> Result<(), JobError> {
        let Some(bound) = self.keep.bytes else { return Ok(()) };
        let mut used = self.store.disk_use().await?.used_bytes;
        if used <= bound {
            return Ok(());
        }
        tracing::warn!(used, bound, "the store is above its bound: the oldest raw rows go early");
        for _ in 0..EARLY_PARTS {
            let mut rows = 0;
            if let Some(span) = self.store.samples_span_unix_ms().await? {
                rows += self.samples(oldest_part(span), true).await?;
            }
            if let Some(span) = self.store.answers_span_unix_ms().await? {
                for (job_id, _) in self.store.job_keeps().await? {
                    rows += self.iterations(&job_id, oldest_part(span), true).await?;
                }
            }
            used = self.store.disk_use().await?.used_bytes;
            if rows == 0 || used as f64 <= BELOW_BOUND * bound as f64 {
                break;
            }
        }
        if used > bound {
            tracing::warn!(used, bound, "the store is above its bound, and what is left in it has to stay");
        }
        Ok(())
    }
}

/// So many seconds before a moment, at the beginning of a minute.
fn before(now_unix_ms: i64, seconds: u64) -> i64 {
    let ms = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000);
    begin_of_step(now_unix_ms.saturating_sub(ms).max(0), MINUTE_S)
}

/// The end of the oldest part of a span of time: a minute at least.
fn oldest_part([oldest_unix_ms, newest_unix_ms]: [i64; 2]) -> i64 {
    let part = newest_unix_ms.saturating_sub(oldest_unix_ms) / EARLY_PARTS;
    begin_of_step(oldest_unix_ms.saturating_add(part), MINUTE_S).saturating_add(MINUTE_S * 1000)
}
