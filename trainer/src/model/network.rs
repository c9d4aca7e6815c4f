//! The trait of a model, and functions over its parameters.

use tch::{Device, Kind, Tensor, no_grad};

use crate::data::Batch;

/// A model that can be trained.
pub trait Model {
    /// Returns the parameters to train, always in the same order. All have the same element type (float32 or
    /// float64) and are on the same device.
    fn parameters(&self) -> Vec<Tensor>;

    /// Returns the loss summed over the samples of the batch (not their mean), so that shares of any size add
    /// up.
    fn loss_sum(&self, batch: &Batch) -> Tensor;
}

/// Returns the mean loss over a batch, without gradients.
pub fn evaluate(model: &dyn Model, batch: &Batch) -> f64 {
    no_grad(|| model.loss_sum(batch).double_value(&[])) / batch.len() as f64
}

/// Returns the number of values in these tensors.
pub fn size_of(parameters: &[Tensor]) -> i64 {
    parameters.iter().map(|parameter| parameter.numel() as i64).sum()
}

/// Returns the element type and the device of these parameters.
pub fn kind_of(parameters: &[Tensor]) -> (Kind, Device) {
    parameters.first().map_or((Kind::Float, Device::Cpu), |first| (first.kind(), first.device()))
}
