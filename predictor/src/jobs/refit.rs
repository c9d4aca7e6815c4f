//! Background refits: fits the networks of a job, and stores the models of the job and of each kind of
//! device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use evenstep_core::curve::CurveLearner;
use evenstep_core::forecast::narx::Narx;
use evenstep_core::forecast::nonlinear::{FittedExpert, REFIT_OBSERVATIONS, TRAINING_ROWS_MAX};
use evenstep_core::job::{FORMAT, ModelFormatError, Models, training, write_device_model, write_models};
use evenstep_protocol::{WorkerId, WorkerReport};
use evenstep_store::{Change, StoreError};

use super::error::JobError;
use super::fits::Pool;
use super::job::Job;

/// Maximum number of networks that a job fits before other jobs have their turn.
const FITS_PER_TURN: usize = 32;

impl Job {
    /// Fits the networks of some workers with enough new observations. Returns whether more workers may have enough.
    ///
    /// The state is locked only to find these workers and to install networks: requests never wait for a fit. One worker's
    /// reports are in memory at a time.
    pub(super) async fn fit_networks(self: &Arc<Self>, pool: &Pool) -> Result<bool, JobError> {
        if !self.is_loaded() {
            return Ok(false);
        }
        let mut guard = self.lock().await?;
        let models = guard.change().state.models_mut();
        let due = models.due_refits(REFIT_OBSERVATIONS, FITS_PER_TURN);
        let in_use: Vec<Option<FittedExpert>> =
            due.iter().map(|(worker, _)| models.forecaster().network(worker).cloned()).collect();
        let end = models.next_iteration();
        guard.settle();
        drop(guard);
        if due.is_empty() {
            return Ok(false);
        }
        let mut networks = Vec::new();
        for ((worker, curve), in_use) in due.iter().zip(in_use) {
            let reports = self.recent_reports(worker, end).await?;
            if let Some(network) = self.fit(pool, worker, (curve.clone(), in_use), reports).await {
                networks.push((worker.clone(), network));
            }
        }
        let mut guard = self.lock().await?;
        if !networks.is_empty() {
            self.live().refitted(guard.now.unix_ms, networks.len());
        }
        let models = guard.change().state.models_mut();
        models.record_refits(&due);
        models.install(networks);
        guard.settle();
        Ok(due.len() == FITS_PER_TURN)
    }

    /// Stores the models that changed since the last time.
    pub(super) async fn store_models(self: &Arc<Self>) -> Result<(), JobError> {
        if !self.is_loaded() {
            return Ok(());
        }
        let guard = self.lock().await?;
        let revision = guard.state().models.revision();
        let snapshot = (revision != self.fits().stored_revision())
            .then(|| (guard.state().models.clone(), guard.state().devices()));
        drop(guard);
        match snapshot {
            Some((models, devices)) => self.keep(models, devices).await,
            None => Ok(()),
        }
    }

    /// Reads the reports of a worker that a network is fitted to, in order of iteration.
    async fn recent_reports(&self, worker: &WorkerId, end: u64) -> Result<Vec<WorkerReport>, JobError> {
        let first = end.saturating_sub(TRAINING_ROWS_MAX as u64);
        Ok(self.store().worker_reports(self.id(), worker, first..end).await?)
    }

    async fn fit(
        &self,
        pool: &Pool,
        worker: &WorkerId,
        (curve, in_use): (CurveLearner, Option<FittedExpert>),
        reports: Vec<WorkerReport>,
    ) -> Option<FittedExpert> {
        let fit = move || {
            let begun = Instant::now();
            let mut training = training(&curve, &reports);
            if let Some(network) = in_use {
                training.start_from(network);
            }
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

    /// Stores the models of the job, part after part, and for each kind of device the models of the worker with the most
    /// observations.
    pub(super) async fn keep(
        &self,
        models: Models,
        devices: BTreeMap<String, Vec<WorkerId>>,
    ) -> Result<(), JobError> {
        let (stored, observations) = (models.revision(), models.observations());
        let mut number = self.fits().storing().await;
        if self.is_deleted() {
            return Ok(());
        }
        let revision = number.next(self.now().unix_ms);
        let begin = move || (device_changes(&models, devices), write_models(&models));
        // Encoding and freeing models of many workers takes more than a millisecond.
        let (last, mut parts) = blocking(begin).await?;
        let mut last = last.map_err(unwritable)?;
        for part in 0.. {
            let next = move || {
                let next = parts.next();
                next.map(|state| (state, parts))
            };
            let Some((state, rest)) = blocking(next).await? else { break };
            parts = rest;
            let state = state.map_err(unwritable)?;
            let change =
                Change::ModelPart { job_id: self.id().clone(), format: FORMAT, revision, part, state };
            match part {
                // The first part makes all of them valid.
                0 => last.push(change),
                _ => drop(self.store().write(vec![change], self.now().unix_ms).await?),
            }
        }
        self.store().write(last, self.now().unix_ms).await?;
        self.fits().stored(stored, observations);
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.map_err(unwritable)
}

fn unwritable(error: impl std::fmt::Display) -> StoreError {
    StoreError::Models(error.to_string())
}

/// Returns the changes that store the models of each kind of device: none of a wide job, whose workers share one model.
fn device_changes(
    models: &Models,
    devices: BTreeMap<String, Vec<WorkerId>>,
) -> Result<Vec<Change>, ModelFormatError> {
    let mut changes = Vec::new();
    if models.forecaster().is_pooled() {
        return Ok(changes);
    }
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
