//! One policy's replica of the training: everything that differs between alternating policies.

use evenstep_c10d::Group;
use tch::{Device, Kind, Tensor, no_grad};

use crate::collective::Bucket;
use crate::data::{Batch, Cursor};
use crate::model::{Model, Sgd};
use crate::plan::{Planner, Policy};

/// A replica under one policy.
pub struct Replica {
    /// The policy that splits the iterations.
    pub policy: Policy,
    /// The model.
    pub model: Box<dyn Model>,
    /// The model's parameters.
    pub parameters: Vec<Tensor>,
    /// The model's optimizer.
    pub optimizer: Sgd,
    /// The buffer of the all-reduce.
    pub bucket: Bucket,
    /// The position in the data.
    pub cursor: Cursor,
    /// The next iteration.
    pub iteration: u64,
    /// Samples of a full iteration.
    pub global_batch: u64,
    /// The planner of the iterations.
    pub planner: Planner,
}

impl Replica {
    /// Copies parameters and velocity from rank `source` to every rank: all tensors or, on failure, none.
    ///
    /// # Errors
    /// A rank has left the group.
    pub fn copy_state_from(&mut self, group: &Group, source: usize, on: Device) -> evenstep_c10d::Result<()> {
        let parts: Vec<Tensor> = self.parts().map(|part| part.detach().view(-1)).collect();
        let mut flat = Tensor::cat(&parts, 0).to_device(on);
        group.broadcast(&mut flat, source)?;
        if group.rank() != source {
            let mut start = 0;
            for mut part in self.parts() {
                let size = part.numel() as i64;
                no_grad(|| part.copy_(&flat.narrow(0, start, size).view_as(&part)));
                start += size;
            }
        }
        Ok(())
    }

    /// Returns the parameters and the velocity.
    fn parts(&self) -> impl Iterator<Item = Tensor> {
        let parameters = self.parameters.iter().map(Tensor::shallow_clone);
        parameters.chain([self.optimizer.velocity().shallow_clone()])
    }

    /// Returns the largest difference between the all-reduced gradient and the one-process gradient over the
    /// whole global batch, relative to the largest entry of the one-process gradient.
    pub fn gradient_difference(&self, whole: &Batch) -> f64 {
        let loss = self.model.loss_sum(whole) / whole.len() as f64;
        let alone = Tensor::run_backward(&[loss], &self.parameters, false, false);
        // The gradient of a parameter that the loss does not depend on is undefined.
        let flat = alone.iter().zip(&self.parameters).map(|(gradient, parameter)| {
            if gradient.defined() { gradient.view(-1) } else { parameter.zeros_like().view(-1) }
        });
        let alone = Tensor::cat(&flat.collect::<Vec<_>>(), 0);
        let largest = |tensor: &Tensor| tensor.abs().max().double_value(&[]);
        largest(&(self.bucket.gradient(alone.device()) - &alone)) / largest(&alone)
    }

    /// Returns the name of an element type.
    pub fn dtype(kind: Kind) -> String {
        match kind {
            Kind::Float => "float32".to_owned(),
            Kind::Double => "float64".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        }
    }
}
