//! Format of models in the store: postcard, with a separate version number.

use super::models::Models;
use crate::forecast::Earlier;

/// Version of the layout of [`Models`] and [`Earlier`] in the store. Increase it with every change of either
/// type.
pub const FORMAT: u32 = 4;

/// An error in the encoding of stored models.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct ModelFormatError(#[from] postcard::Error);

/// Decodes the models of a job. Their version must be [`FORMAT`].
///
/// # Errors
/// [`ModelFormatError`] if the bytes are not models.
pub fn read_models(state: &[u8]) -> Result<Models, ModelFormatError> {
    Ok(postcard::from_bytes(state)?)
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
/// [`ModelFormatError`] if the bytes are not models of a device.
pub fn read_device_model(state: &[u8]) -> Result<Earlier, ModelFormatError> {
    Ok(postcard::from_bytes(state)?)
}

/// Encodes the models of one kind of device.
///
/// # Errors
/// [`ModelFormatError`] if the encoding fails.
pub fn write_device_model(learned: &Earlier) -> Result<Vec<u8>, ModelFormatError> {
    Ok(postcard::to_allocvec(learned)?)
}
