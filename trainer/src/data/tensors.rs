//! A data set in memory.

use tch::{Device, Tensor};

use super::{Batch, Dataset};

/// Inputs and targets with the same number of samples.
#[derive(Debug)]
pub struct TensorDataset {
    inputs: Tensor,
    targets: Tensor,
}

impl TensorDataset {
    /// Creates a data set of `inputs` (`[samples, ..]`) and `targets` (`[samples, ..]`) on the CPU.
    pub fn new(inputs: Tensor, targets: Tensor) -> Self {
        Self { inputs, targets }
    }
}

impl Dataset for TensorDataset {
    fn len(&self) -> u64 {
        self.targets.size().first().map_or(0, |samples| *samples as u64)
    }

    fn batch(&self, indices: &[i64], device: Device) -> Batch {
        let indices = Tensor::from_slice(indices);
        let rows = |of: &Tensor| of.index_select(0, &indices).to_device(device);
        Batch { inputs: rows(&self.inputs), targets: rows(&self.targets) }
    }
}
