//! One policy's replica of the training: everything that differs between policies that take turns.

use evenstep_c10d::Group;
use tch::Tensor;

use crate::cli::Policy;
use crate::collective::Bucket;
use crate::data::{Batch, Cursor};
use crate::model::Model;
use crate::optimizer::Sgd;
use crate::planner::Planner;

/// A replica under one policy.
#[derive(Debug)]
pub struct Arm {
    /// How its iterations are shared out.
    pub policy: Policy,
    /// The network.
    pub model: Model,
    /// Its optimizer.
    pub optimizer: Sgd,
    /// The buffer of its all-reduce.
    pub bucket: Bucket,
    /// Its position in the data.
    pub cursor: Cursor,
    /// Its next iteration.
    pub iteration: u64,
    /// Who computes what.
    pub planner: Planner,
}

impl Arm {
    /// Makes every rank begin with rank 0's numbers.
    ///
    /// # Errors
    /// A rank is gone.
    pub fn align(&mut self, group: &Group, on: tch::Device) -> evenstep_c10d::Result<()> {
        let align = |tensor: &mut Tensor| {
            let mut moved = tensor.detach().to_device(on);
            group.broadcast(&mut moved, 0)?;
            tch::no_grad(|| tensor.copy_(&moved));
            Ok(())
        };
        for parameter in self.model.parameters() {
            align(&mut parameter.shallow_clone())?;
        }
        align(self.optimizer.velocity_mut())
    }

    /// The largest difference between the all-reduced gradient and that of one process over the whole global batch,
    /// relative to the largest entry of the latter.
    pub fn gradient_difference(&self, whole: &Batch) -> f64 {
        let loss = self.model.loss_sum(whole) / whole.len() as f64;
        let alone = Tensor::run_backward(&[loss], self.model.parameters(), false, false);
        let alone = Tensor::cat(&alone.iter().map(|gradient| gradient.view(-1)).collect::<Vec<_>>(), 0);
        let largest = |tensor: &Tensor| tensor.abs().max().double_value(&[]);
        largest(&(self.bucket.gradient(self.model.device()) - &alone)) / largest(&alone)
    }
}
