//! Background refits: fits the networks of a job, and stores the models of the job and of each kind of
//! device.

use std::collections::BTreeMap;
use std::time::Instant;

use evenstep_core::curve::CurveLearner;
use evenstep_core::forecast::narx::Narx;
use evenstep_core::forecast::nonlinear::{FittedExpert, REFIT_OBSERVATIONS, TRAINING_ROWS_MAX};
use evenstep_core::job::{FORMAT, ModelFormatError, Models, training, write_device_model, write_models};
use evenstep_protocol::{JobId, WorkerId, WorkerReport};
use evenstep_store::{Change, StoreError};

use super::error::JobError;
use super::fits::Pool;
use super::job::Job;

/// Maximum number of networks that a job fits before other jobs have their turn.
const FITS_PER_TURN: usize = 32;

/// Number of reports that are decoded at once: more would hold up the async runtime.
const REPORTS_PER_READ: usize = 256;

impl Job {
    /// Fits the networks of some workers with enough new observations. Returns whether more workers may have enough.
    ///
    /// The state is locked only to find these workers and to install networks: requests never wait for a fit. One worker's
    /// reports are in memory at a time.
    pub(super) async fn fit_networks(&self, pool: &Pool) -> Result<bool, JobError> {
        if !self.is_loaded() {
            return Ok(false);
        }
        let mut guard = self.lock().await?;
        let models = guard.change().state.models_mut();
        let due = models.due_refits(REFIT_OBSERVATIONS, FITS_PER_TURN);
        let end = models.next_iteration();
        guard.settle();
        drop(guard);
        if due.is_empty() {
            return Ok(false);
        }
        let mut networks = Vec::new();
        for (worker, curve) in &due {
            let reports = self.recent_reports(worker, end).await?;
            if let Some(network) = self.fit(pool, worker, curve.clone(), reports).await {
                networks.push((worker.clone(), network));
            }
        }
        let mut guard = self.lock().await?;
        if !networks.is_empty() {
            self.live().refitted(guard.now_unix_ms, networks.len());
        }
        let models = guard.change().state.models_mut();
        models.record_refits(&due);
        models.install(networks);
        guard.settle();
        Ok(due.len() == FITS_PER_TURN)
    }

    /// Stores the models that changed since the last time.
    pub(super) async fn store_models(&self, pool: &Pool) -> Result<(), JobError> {
        if !self.is_loaded() {
            return Ok(());
        }
        let guard = self.lock().await?;
        let revision = guard.state().models.revision();
        let snapshot = (revision != self.fits().stored_revision())
            .then(|| (guard.state().models.clone(), guard.state().devices()));
        drop(guard);
        let Some((models, devices)) = snapshot else { return Ok(()) };
        let observations = models.observations();
        self.keep(pool, models, devices).await?;
        self.fits().stored(revision, observations);
        Ok(())
    }

    /// Reads the reports of a worker that a network is fitted to, in order of iteration.
    async fn recent_reports(&self, worker: &WorkerId, end: u64) -> Result<Vec<WorkerReport>, JobError> {
        let first = end.saturating_sub(TRAINING_ROWS_MAX as u64);
        let mut reports = Vec::new();
        for from in (first..end).step_by(REPORTS_PER_READ) {
            let to = end.min(from + REPORTS_PER_READ as u64);
            reports.extend(self.store().worker_reports(self.id(), worker, from..to).await?);
        }
        Ok(reports)
    }

    async fn fit(
        &self,
        pool: &Pool,
        worker: &WorkerId,
        curve: CurveLearner,
        reports: Vec<WorkerReport>,
    ) -> Option<FittedExpert> {
        let fit = move || {
            let begun = Instant::now();
            let fitted = training(&curve, &reports).fit(&Narx::refit()).map_err(|error| error.to_string());
            (fitted, u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX))
        };
        let (fitted, us) = pool.run(fit).await?;
        pool.count(fitted.is_ok(), us);
        self.fits().count(fitted.is_ok(), us);
        match fitted {
            Ok(network) => Some(network),
            Err(error) => {
                tracing::warn!(%worker, error, "cannot fit a network; the other models remain in use");
                None
            }
        }
    }

    /// Stores the models of the job and, for each kind of device, the models of the worker with the most
    /// observations.
    async fn keep(
        &self,
        pool: &Pool,
        models: Models,
        devices: BTreeMap<String, Vec<WorkerId>>,
    ) -> Result<(), JobError> {
        let job_id = self.id().clone();
        let encode = move || model_changes(&job_id, &models, devices);
        let Some(changes) = pool.run(encode).await else { return Ok(()) };
        let changes = changes.map_err(|error| StoreError::Models(error.to_string()))?;
        self.store().write(changes, self.now_unix_ms()).await?;
        Ok(())
    }
}

/// Returns the changes that store the models of a job and of each kind of device.
pub(super) fn model_changes(
    job_id: &JobId,
    models: &Models,
    devices: BTreeMap<String, Vec<WorkerId>>,
) -> Result<Vec<Change>, ModelFormatError> {
    let state = write_models(models)?;
    let mut changes = vec![Change::Models { job_id: job_id.clone(), format: FORMAT, state }];
    for (device, workers) in devices {
        let forecaster = models.forecaster();
        let teacher = workers.iter().max_by_key(|worker| forecaster.observations(worker));
        if let Some(learned) = teacher.and_then(|worker| forecaster.learned(worker)) {
            let state = write_device_model(&learned)?;
            changes.push(Change::DeviceModel { device, format: FORMAT, state });
        }
    }
    Ok(changes)
}
