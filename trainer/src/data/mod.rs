//! Training data: data sets, batches, and the order of the samples in an epoch.

mod batch;
mod cursor;
mod tensors;

use tch::Device;

pub use batch::Batch;
pub use cursor::Cursor;
pub use tensors::TensorDataset;

/// A data set that every worker can read.
///
/// Samples are numbered from 0. Every worker must see the same samples under the same numbers.
pub trait Dataset {
    /// Returns the number of samples. A training requires at least one.
    fn len(&self) -> u64;

    /// Returns whether the data set is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the samples with these numbers, in this order, as one batch on `device`. There is at least one number.
    fn batch(&self, indices: &[i64], device: Device) -> Batch;

    /// Returns a description for logs and checkpoints. A run resumes only on data of the same name.
    fn name(&self) -> String {
        format!("{} samples", self.len())
    }
}
