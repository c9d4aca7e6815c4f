//! Models in the store: postcard, with a version number beside it.

use super::models::Models;
use crate::forecast::Earlier;

/// Version of the layout of [`Models`] and [`Earlier`] in the store; a change of either takes a new number.
pub const FORMAT: u32 = 3;

/// Stored models that cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct BadModels(#[from] postcard::Error);

/// The models of a job, from the bytes in the store. Their version must be [`FORMAT`].
///
/// # Errors
/// [`BadModels`] if the bytes are not models.
pub fn read_models(state: &[u8]) -> Result<Models, BadModels> {
    Ok(postcard::from_bytes(state)?)
}

/// The models of a job as bytes for the store.
///
/// # Errors
/// [`BadModels`] if they cannot be written.
pub fn write_models(models: &Models) -> Result<Vec<u8>, BadModels> {
    Ok(postcard::to_allocvec(models)?)
}

/// What was learned on one kind of device, from the bytes in the store. Its version must be [`FORMAT`].
///
/// # Errors
/// [`BadModels`] if the bytes are not what was learned on a device.
pub fn read_device_model(state: &[u8]) -> Result<Earlier, BadModels> {
    Ok(postcard::from_bytes(state)?)
}

/// What was learned on one kind of device, as bytes for the store.
///
/// # Errors
/// [`BadModels`] if it cannot be written.
pub fn write_device_model(learned: &Earlier) -> Result<Vec<u8>, BadModels> {
    Ok(postcard::to_allocvec(learned)?)
}
