//! One policy's replica of the training: everything that differs between policies that take turns.

use evenstep_c10d::Group;
use tch::{Device, Kind, Tensor, no_grad};

use crate::collective::Bucket;
use crate::data::{Batch, Cursor};
use crate::model::{Model, Sgd};
use crate::plan::{Planner, Policy};

/// A replica under one policy.
pub struct Replica {
    /// How its iterations are shared out.
    pub policy: Policy,
    /// The model.
    pub model: Box<dyn Model>,
    /// The model's parameters.
    pub parameters: Vec<Tensor>,
    /// Its optimizer.
    pub optimizer: Sgd,
    /// The buffer of its all-reduce.
    pub bucket: Bucket,
    /// Its position in the data.
    pub cursor: Cursor,
    /// Its next iteration.
    pub iteration: u64,
    /// Samples of a whole iteration.
    pub global_batch: u64,
    /// Who computes what.
    pub planner: Planner,
}

impl Replica {
    /// Gives every rank the numbers of rank `source`: all of them or, where that fails, none.
    ///
    /// # Errors
    /// A rank is gone.
    pub fn align(&mut self, group: &Group, source: usize, on: Device) -> evenstep_c10d::Result<()> {
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

    /// Parameters and velocity.
    fn parts(&self) -> impl Iterator<Item = Tensor> {
        let parameters = self.parameters.iter().map(Tensor::shallow_clone);
        parameters.chain([self.optimizer.velocity().shallow_clone()])
    }

    /// The largest difference between the all-reduced gradient and that of one process over the whole global batch,
    /// relative to the largest entry of the latter.
    pub fn gradient_difference(&self, whole: &Batch) -> f64 {
        let loss = self.model.loss_sum(whole) / whole.len() as f64;
        let alone = Tensor::run_backward(&[loss], &self.parameters, false, false);
        let alone = Tensor::cat(&alone.iter().map(|gradient| gradient.view(-1)).collect::<Vec<_>>(), 0);
        let largest = |tensor: &Tensor| tensor.abs().max().double_value(&[]);
        largest(&(self.bucket.gradient(alone.device()) - &alone)) / largest(&alone)
    }

    /// The name of an element type.
    pub fn dtype(kind: Kind) -> String {
        match kind {
            Kind::Float => "float32".to_owned(),
            Kind::Double => "float64".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        }
    }
}
