//! Forward and backward over a worker's own samples, and how long that took.

use std::time::Instant;

use tch::{Cuda, Device};

use crate::data::Batch;
use crate::model::Model;
use crate::pace::Pace;

/// How gradients are computed.
#[derive(Debug)]
pub struct Compute {
    /// Samples in one forward and backward; gradients add up over them.
    pub micro_batch: u64,
    /// The imposed speed, if any.
    pub pace: Option<Pace>,
}

/// What computing the gradients gave, beside the gradients.
#[derive(Debug, Clone, Copy)]
pub struct Computed {
    /// The loss, summed over the samples.
    pub loss_sum: f64,
    /// Forward and backward, in seconds, without any waiting but that of an imposed pace.
    pub compute_time_s: f64,
}

impl Compute {
    /// Leaves the gradient of the summed loss in the model's parameters; with no samples it is zero or undefined.
    pub fn gradients(&mut self, model: &mut Model, batch: &Batch) -> Computed {
        let started = Instant::now();
        model.zero_grad();
        let mut loss_sum = 0.0;
        let (mut done, samples) = (0, batch.len());
        while done < samples {
            let count = (self.micro_batch as i64).min(samples - done);
            let loss = model.loss_sum(&batch.narrow(done, count));
            loss.backward();
            loss_sum += loss.double_value(&[]);
            done += count;
            if let Some(pace) = &mut self.pace {
                synchronize(model.device());
                pace.hold(started, done as u64);
            }
        }
        synchronize(model.device());
        Computed { loss_sum, compute_time_s: started.elapsed().as_secs_f64() }
    }
}

/// A GPU runs behind: without this the clock would time the queueing only.
fn synchronize(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}
