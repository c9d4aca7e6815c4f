//! Format of models in the store: parts in postcard, with a separate version number.

use evenstep_protocol::WorkerId;
use serde::{Deserialize, Serialize};

use super::models::{Models, StoredWorker};
use super::report::drivers;
use super::worker::WorkerModel;
use crate::forecast::{self, Earlier};
use crate::learning_rate::Controller;

/// Version of the layout of [`Models`] and [`Earlier`] in the store. Increase it with every change of either
/// type.
pub const FORMAT: u32 = 13;

/// The reason why stored models cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ModelFormatError {
    /// The bytes are not models.
    #[error(transparent)]
    Encoding(#[from] postcard::Error),
    /// The text is not a learning rate.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A part is missing, or there is one too many.
    #[error("{found} parts of {expected}")]
    Parts {
        /// Number of parts of these models.
        expected: usize,
        /// Number of parts that were read.
        found: usize,
    },
    /// Parts of the models do not belong together, or a number is out of its range.
    #[error("a value is out of its range; the bytes were damaged or written by another program")]
    Value,
}

/// Number of workers whose models are one part of stored models: about half a megabyte.
const WORKERS_PER_PART: usize = 8;

/// The first part of stored models: all models but the workers'.
#[derive(Serialize, Deserialize)]
struct Head {
    /// Number of parts with workers.
    parts: u32,
    models: Models,
}

/// One worker of another part.
type Worker<F, M> = (WorkerId, Option<F>, Option<M>);

/// Decodes the models of a job, from all parts in order. Their version must be [`FORMAT`].
///
/// # Errors
/// [`ModelFormatError`] if the bytes are not models, or not usable, or if a part is missing.
pub fn read_models(parts: &[Vec<u8>]) -> Result<Models, ModelFormatError> {
    let (head, parts) = parts.split_first().ok_or(ModelFormatError::Parts { expected: 1, found: 0 })?;
    let Head { parts: expected, mut models } = postcard::from_bytes(head)?;
    if expected as usize != parts.len() {
        return Err(ModelFormatError::Parts { expected: expected as usize + 1, found: parts.len() + 1 });
    }
    for part in parts {
        for (worker, forecaster, model) in read_workers(part)? {
            models.put_worker(worker, forecaster, model);
        }
    }
    if models.is_valid() { Ok(models) } else { Err(ModelFormatError::Value) }
}

fn read_workers(part: &[u8]) -> Result<Vec<Worker<forecast::Worker, WorkerModel>>, ModelFormatError> {
    Ok(postcard::from_bytes(part)?)
}

/// Whether these bytes are the part with this number of stored models.
///
/// # Errors
/// [`ModelFormatError`] if they are not.
pub fn check_part(number: u64, part: &[u8]) -> Result<(), ModelFormatError> {
    match number {
        0 => postcard::from_bytes::<Head>(part).map(drop)?,
        _ => read_workers(part).map(drop)?,
    }
    Ok(())
}

/// Encodes the models of a job, one part at a time. Needs little more memory than a part.
///
/// An item is a [`ModelFormatError`] if the encoding of a part fails.
pub fn write_models(models: &Models) -> impl Iterator<Item = Result<Vec<u8>, ModelFormatError>> + use<> {
    let mut models = models.clone();
    let workers: Vec<(WorkerId, StoredWorker)> = models.take_workers().into_iter().collect();
    let parts = u32::try_from(workers.len().div_ceil(WORKERS_PER_PART)).unwrap_or(u32::MAX);
    let head = std::iter::once_with(move || Ok(postcard::to_allocvec(&Head { parts, models })?));
    let part = move |number| {
        let first = number as usize * WORKERS_PER_PART;
        let workers = workers.iter().skip(first).take(WORKERS_PER_PART);
        let part: Vec<Worker<&forecast::Worker, &WorkerModel>> = workers
            .map(|(worker, (forecaster, model))| (worker.clone(), forecaster.as_deref(), model.as_deref()))
            .collect();
        Ok(postcard::to_allocvec(&part)?)
    };
    head.chain((0..parts).map(part))
}

/// Decodes the models of one kind of device. Their version must be [`FORMAT`].
///
/// # Errors
/// [`ModelFormatError`] if the bytes are not models of a device, or not usable.
pub fn read_device_model(state: &[u8]) -> Result<Earlier, ModelFormatError> {
    let earlier: Earlier = postcard::from_bytes(state)?;
    if earlier.is_valid(&drivers()) { Ok(earlier) } else { Err(ModelFormatError::Value) }
}

/// Encodes the models of one kind of device.
///
/// # Errors
/// [`ModelFormatError`] if the encoding fails.
pub fn write_device_model(learned: &Earlier) -> Result<Vec<u8>, ModelFormatError> {
    Ok(postcard::to_allocvec(learned)?)
}

/// Decodes the state of a job's learning-rate rule.
///
/// # Errors
/// [`ModelFormatError`] if the text is not such a state, or not usable.
pub fn read_learning_rate(state: &str) -> Result<Controller, ModelFormatError> {
    let controller: Controller = serde_json::from_str(state)?;
    if controller.is_valid() { Ok(controller) } else { Err(ModelFormatError::Value) }
}
