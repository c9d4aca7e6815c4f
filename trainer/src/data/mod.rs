//! Training data: data sets, batches, and the order in which an epoch goes through the samples.

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
    /// The number of samples.
    fn len(&self) -> u64;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples with these numbers, in this order, as one batch on `device`.
    fn batch(&self, indices: &[i64], device: Device) -> Batch;

    /// A description for logs and checkpoints. A run resumes only on data of the same name.
    fn name(&self) -> String {
        format!("{} samples", self.len())
    }
}
