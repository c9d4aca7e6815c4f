//! The thread for fits of networks, and counters of their outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_observability::metrics::prometheus::{Histogram, IntCounterVec};
use evenstep_observability::metrics::{collect, counters, histogram};
use evenstep_protocol::RefitView;
use tokio::sync::{Mutex, MutexGuard, Semaphore};

/// Histogram buckets of fits, in seconds.
const FITS_S: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// The thread for fits, shared by all jobs, and counters of their outcomes. Fits run one after the other, so that the other
/// cores stay free for requests.
#[derive(Debug, Clone)]
pub struct Pool {
    thread: Arc<Semaphore>,
    fits: IntCounterVec,
    durations: Histogram,
}

impl Default for Pool {
    fn default() -> Self {
        let fits =
            counters("evenstep_model_refits_total", "Networks fitted in the background.", &["outcome"]);
        // Both outcomes exist from the start, so that rates over them are 0 and not absent.
        for outcome in ["fitted", "failed"] {
            fits.with_label_values(&[outcome]);
        }
        let durations = histogram("evenstep_model_refit_duration_seconds", "Duration of one fit.", FITS_S);
        Self { thread: Arc::new(Semaphore::new(1)), fits, durations }
    }
}

impl Pool {
    /// The metric families.
    pub fn families(&self) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        collect(&mut families, &self.fits, []);
        collect(&mut families, &self.durations, []);
        families
    }

    /// Counts a fit.
    pub fn count(&self, is_fitted: bool, us: u64) {
        self.durations.observe(us as f64 / 1e6);
        self.fits.with_label_values(&[if is_fitted { "fitted" } else { "failed" }]).inc();
    }

    /// Runs work on the thread, outside the async runtime.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        // The semaphore is never closed, and the runtime only ends with the process.
        let _thread = self.thread.acquire().await.ok()?;
        tokio::task::spawn_blocking(work).await.ok()
    }
}

/// Outcomes of the fits of a job.
#[derive(Debug, Default)]
pub struct FitRecord {
    fitted: AtomicU64,
    failed: AtomicU64,
    fit_us: AtomicU64,
    stored_observations: AtomicU64,
    stored_revision: AtomicU64,
    storing: Mutex<StoredNumber>,
}

/// Number under which models were stored last.
#[derive(Debug, Default)]
pub struct StoredNumber(i64);

impl StoredNumber {
    /// Returns the number for models that are stored now. After the clock was set back, stored models may have it already: their
    /// parts are then not replaced, and the next attempt has another number.
    pub fn next(&mut self, now_unix_ms: i64) -> i64 {
        self.0 = now_unix_ms.max(self.0.saturating_add(1));
        self.0
    }
}

impl FitRecord {
    /// The outcomes for the API.
    pub fn view(&self) -> RefitView {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        RefitView {
            fitted: read(&self.fitted),
            failed: read(&self.failed),
            fit_time_s: read(&self.fit_us) as f64 / 1e6,
            stored_observations: read(&self.stored_observations),
        }
    }

    /// Counts a fit.
    pub fn count(&self, is_fitted: bool, us: u64) {
        self.fit_us.fetch_add(us, Ordering::Relaxed);
        let outcome = if is_fitted { &self.fitted } else { &self.failed };
        outcome.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until models of the job that are being stored are stored.
    pub async fn storing(&self) -> MutexGuard<'_, StoredNumber> {
        self.storing.lock().await
    }

    /// Revision of the models stored last, or 0 for the models that were read from the store.
    pub fn stored_revision(&self) -> u64 {
        self.stored_revision.load(Ordering::Relaxed)
    }

    /// Records that models of this revision, with this number of observations, were stored.
    pub fn stored(&self, revision: u64, observations: u64) {
        self.stored_observations.store(observations, Ordering::Relaxed);
        self.stored_revision.store(revision, Ordering::Relaxed);
    }

    /// Records that the models were read from the store.
    pub fn loaded(&self) {
        self.stored_revision.store(0, Ordering::Relaxed);
    }
}
