//! Format of models in the store: postcard, with a separate version number.

use super::models::Models;
use super::report::drivers;
use crate::forecast::Earlier;
use crate::learning_rate::Controller;

/// Version of the layout of [`Models`] and [`Earlier`] in the store. Increase it with every change of either
/// type.
pub const FORMAT: u32 = 11;

/// The reason why stored models cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ModelFormatError {
    /// The bytes are not models.
    #[error(transparent)]
    Encoding(#[from] postcard::Error),
    /// The text is not a learning rate.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Parts of the models do not belong together, or a number is out of its range.
    #[error("a value is out of its range; the bytes were damaged or written by another program")]
    Value,
}

/// Decodes the models of a job. Their version must be [`FORMAT`].
///
/// # Errors
/// [`ModelFormatError`] if the bytes are not models, or not usable.
pub fn read_models(state: &[u8]) -> Result<Models, ModelFormatError> {
    let models: Models = postcard::from_bytes(state)?;
    if models.is_valid() { Ok(models) } else { Err(ModelFormatError::Value) }
}

/// Encodes the models of a job.
///
/// # Errors
/// [`ModelFormatError`] if the encoding fails.
pub fn write_models(models: &Models) -> Result<Vec<u8>, ModelFormatError> {
    Ok(postcard::to_allocvec(models)?)
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
