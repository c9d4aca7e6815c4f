//! A data set in memory.

use tch::{Device, Tensor};

use super::{Batch, Dataset};

/// Inputs and targets with the same number of samples.
///
/// ```
/// use evenstep_trainer::{Dataset, TensorDataset};
/// use tch::{Device, Tensor};
///
/// let inputs = Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0]).view([4, 1]);
/// let data = TensorDataset::new(inputs.shallow_clone(), inputs * 2.0);
/// assert_eq!(data.len(), 4);
/// let batch = data.batch(&[3, 1], Device::Cpu);
/// assert_eq!(Vec::<f32>::try_from(batch.targets.view(-1))?, [6.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
