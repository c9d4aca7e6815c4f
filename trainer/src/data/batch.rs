//! Batches of samples in memory.

use tch::Tensor;

/// Samples and their targets. The first dimension of both tensors is the sample.
#[derive(Debug)]
pub struct Batch {
    /// Inputs, `[samples, ..]`.
    pub inputs: Tensor,
    /// Targets, `[samples, ..]`.
    pub targets: Tensor,
}

impl Batch {
    /// Returns the number of samples.
    pub fn len(&self) -> i64 {
        self.targets.size().first().copied().unwrap_or(0)
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the samples `start .. start + count`.
    pub fn narrow(&self, start: i64, count: i64) -> Self {
        Self { inputs: self.inputs.narrow(0, start, count), targets: self.targets.narrow(0, start, count) }
    }
}
