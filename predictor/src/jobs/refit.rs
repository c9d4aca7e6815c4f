//! Beside the requests: fits the networks of a job, keeps its models, and lends them to workers on like devices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use evenstep_core::forecast::narx::Narx;
use evenstep_core::forecast::nonlinear::{FittedExpert, REFIT_OBSERVATIONS, TRAINING_ROWS_MAX, Training};
use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_observability::metrics::prometheus::{Histogram, IntCounterVec};
use evenstep_observability::metrics::{collect, counters, histogram};
use evenstep_protocol::{RefitView, WorkerId};
use evenstep_store::{Change, StoreError};
use tokio::sync::Semaphore;

use super::JobError;
use super::job::Job;
use super::models::{FORMAT, Models, trainings};

/// Durations of fits, in seconds.
const FITS_S: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// The threads that fits may take, shared by all jobs, and how their fits went.
#[derive(Debug, Clone)]
pub struct Pool {
    threads: Arc<Semaphore>,
    fits: IntCounterVec,
    durations: Histogram,
}

impl Pool {
    /// A pool of so many threads, at least one.
    pub fn new(threads: usize) -> Self {
        let fits =
            counters("evenstep_model_refits_total", "Networks fitted in the background.", &["outcome"]);
        // There from the beginning, so that rates over them are 0 and not absent.
        for outcome in ["fitted", "failed"] {
            fits.with_label_values(&[outcome]);
        }
        let durations = histogram("evenstep_model_refit_duration_seconds", "Time of one fit.", FITS_S);
        Self { threads: Arc::new(Semaphore::new(threads.max(1))), fits, durations }
    }

    /// How fits went.
    pub fn families(&self) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        collect(&mut families, &self.fits, []);
        collect(&mut families, &self.durations, []);
        families
    }

    /// Runs work beside the async runtime, when there is a thread for it.
    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        // Neither the semaphore nor the runtime goes away while jobs are refitted: then there is nothing to run for.
        let _thread = self.threads.acquire().await.ok()?;
        tokio::task::spawn_blocking(work).await.ok()
    }
}

/// How the fits of a job went.
#[derive(Debug, Default)]
pub struct RefitRecord {
    fitted: AtomicU64,
    failed: AtomicU64,
    fit_us: AtomicU64,
    stored_observations: AtomicU64,
}

impl RefitRecord {
    /// For people and dashboards.
    pub fn view(&self) -> RefitView {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        RefitView {
            fitted: read(&self.fitted),
            failed: read(&self.failed),
            fit_time_s: read(&self.fit_us) as f64 / 1e6,
            stored_observations: read(&self.stored_observations),
        }
    }

    fn count(
        &self,
        worker: &WorkerId,
        fitted: Result<FittedExpert, String>,
        us: u64,
    ) -> Option<FittedExpert> {
        self.fit_us.fetch_add(us, Ordering::Relaxed);
        match fitted {
            Ok(network) => {
                self.fitted.fetch_add(1, Ordering::Relaxed);
                Some(network)
            }
            Err(error) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%worker, error, "a network was not fitted; the other models go on");
                None
            }
        }
    }
}

impl Job {
    /// Fits networks where workers have shown enough that is new, and stores what the models have learned since the last
    /// time. The job is held only to look and to install: requests never wait for a fit.
    pub(super) async fn refit(&self, pool: &Pool) -> Result<(), JobError> {
        if !self.is_loaded() {
            return Ok(());
        }
        let mut taken = self.take().await?;
        let due = taken.state.models.take_due(REFIT_OBSERVATIONS);
        taken.put_back();
        let mut networks = Vec::new();
        if !due.is_empty() {
            let reports = self.store().recent_reports(self.id(), TRAINING_ROWS_MAX as u64).await?;
            for (worker, training) in trainings(&due, &reports) {
                if let Some(network) = self.fit(pool, &worker, training).await {
                    networks.push((worker, network));
                }
            }
        }
        let mut taken = self.take().await?;
        let learned = taken.state.models.observations();
        if !networks.is_empty() {
            self.live().refitted(taken.now_unix_ms, networks.len());
        }
        taken.state.models.install(networks);
        let stored = self.refits().stored_observations.load(Ordering::Relaxed);
        let snapshot = (learned != stored).then(|| (taken.state.models.clone(), taken.state.devices()));
        taken.put_back();
        let Some((models, devices)) = snapshot else { return Ok(()) };
        self.keep(pool, models, devices).await?;
        self.refits().stored_observations.store(learned, Ordering::Relaxed);
        Ok(())
    }

    async fn fit(&self, pool: &Pool, worker: &WorkerId, training: Training) -> Option<FittedExpert> {
        let fit = move || {
            let begun = Instant::now();
            let fitted = training.fit(&Narx::refit()).map_err(|error| error.to_string());
            (fitted, u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX))
        };
        let (fitted, us) = pool.run(fit).await?;
        pool.durations.observe(us as f64 / 1e6);
        pool.fits.with_label_values(&[if fitted.is_ok() { "fitted" } else { "failed" }]).inc();
        self.refits().count(worker, fitted, us)
    }

    /// Stores the models of the job, and of each kind of device those of the worker that showed most.
    async fn keep(
        &self,
        pool: &Pool,
        models: Models,
        devices: BTreeMap<String, Vec<WorkerId>>,
    ) -> Result<(), JobError> {
        let job_id = self.id().clone();
        let encode = move || -> Result<Vec<Change>, postcard::Error> {
            let state = postcard::to_allocvec(&models)?;
            let mut changes = vec![Change::Models { job_id, format: FORMAT, state }];
            for (device, workers) in devices {
                let forecaster = models.forecaster();
                let teacher = workers.iter().max_by_key(|worker| forecaster.observations(worker));
                if let Some(learned) = teacher.and_then(|worker| forecaster.learned(worker)) {
                    let state = postcard::to_allocvec(&learned)?;
                    changes.push(Change::DeviceModel { device, format: FORMAT, state });
                }
            }
            Ok(changes)
        };
        let Some(changes) = pool.run(encode).await else { return Ok(()) };
        let changes = changes.map_err(|error| StoreError::Models(error.to_string()))?;
        self.store().write(changes, self.now_unix_ms()).await?;
        Ok(())
    }
}
