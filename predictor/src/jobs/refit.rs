//! Background refits: fits the networks of a job, and stores the models of the job and of each kind of
//! device.

use std::collections::BTreeMap;
use std::time::Instant;

use evenstep_core::forecast::narx::Narx;
use evenstep_core::forecast::nonlinear::{FittedExpert, REFIT_OBSERVATIONS, TRAINING_ROWS_MAX, Training};
use evenstep_core::job::{FORMAT, ModelFormatError, Models, trainings, write_device_model, write_models};
use evenstep_protocol::{JobId, WorkerId};
use evenstep_store::{Change, StoreError};

use super::error::JobError;
use super::fits::Pool;
use super::job::Job;

impl Job {
    /// Fits the networks of workers with enough new observations, and stores the models that changed since
    /// the last time. The state is locked only to read observations and to install networks: requests never
    /// wait for a fit.
    pub(super) async fn refit(&self, pool: &Pool) -> Result<(), JobError> {
        if !self.is_loaded() {
            return Ok(());
        }
        let mut guard = self.lock().await?;
        let due = guard.change().state.models_mut().due_refits(REFIT_OBSERVATIONS);
        guard.settle();
        drop(guard);
        let mut networks = Vec::new();
        if !due.is_empty() {
            let reports = self.store().recent_reports(self.id(), TRAINING_ROWS_MAX as u64).await?;
            for (worker, training) in trainings(&due, &reports) {
                if let Some(network) = self.fit(pool, &worker, training).await {
                    networks.push((worker, network));
                }
            }
        }
        let mut guard = self.lock().await?;
        if !networks.is_empty() {
            self.live().refitted(guard.now.unix_ms, networks.len());
        }
        let state = &mut guard.change().state;
        if !due.is_empty() {
            let models = state.models_mut();
            models.record_refits(&due);
            models.install(networks);
        }
        let revision = state.models.revision();
        let snapshot =
            (revision != self.fits().stored_revision()).then(|| (state.models.clone(), state.devices()));
        guard.settle();
        drop(guard);
        let Some((models, devices)) = snapshot else { return Ok(()) };
        let observations = models.observations();
        self.keep(pool, models, devices).await?;
        self.fits().stored(revision, observations);
        Ok(())
    }

    async fn fit(&self, pool: &Pool, worker: &WorkerId, training: Training) -> Option<FittedExpert> {
        let fit = move || {
            let begun = Instant::now();
            let fitted = training.fit(&Narx::refit()).map_err(|error| error.to_string());
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
        self.store().write(changes, self.now().unix_ms).await?;
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
