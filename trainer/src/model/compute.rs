//! Forward and backward over a worker's own samples, and how long that took.

use std::time::{Duration, Instant};

use tch::{Cuda, Device, Tensor};

use super::network::Model;
use crate::data::Batch;

/// Slows a worker down on purpose, for experiments.
pub trait Pace {
    /// Waits until `samples` samples that were begun at `started` may be done. Returns how far behind the pace it is now.
    fn hold(&mut self, started: Instant, samples: u64) -> Duration;

    /// The number of micro-batches so far that took longer than the pace allows.
    fn missed(&self) -> u64;
}

/// How gradients are computed.
pub struct Compute {
    /// Samples in one forward and backward; gradients add up over them.
    pub micro_batch: u64,
    /// The imposed speed, if any.
    pub pace: Option<Box<dyn Pace>>,
}

/// What computing the gradients gave so far in an iteration, beside the gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Computed {
    /// Samples.
    pub samples: u64,
    /// Forward and backward passes over them.
    pub micro_batches: u64,
    /// The loss, summed over the samples.
    pub loss_sum: f64,
    /// Forward and backward, in seconds, without any waiting but that of an imposed pace.
    pub compute_time_s: f64,
    /// How far it is behind an imposed pace: the next samples make up for it.
    pub late: Duration,
}

impl Computed {
    /// Seconds for a sample; none before the first.
    pub fn pace_s(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.compute_time_s / self.samples as f64)
    }
}

impl Compute {
    /// Begins an iteration: gradients are zero or undefined.
    pub fn begin(&self, parameters: &[Tensor]) -> Computed {
        parameters.iter().for_each(|parameter| parameter.shallow_clone().zero_grad());
        Computed::default()
    }

    /// Adds the gradient of the summed loss of more samples to those in the model's parameters. `before_last` is called
    /// before the last micro-batch, with what was computed until then and the samples in it.
    ///
    /// # Errors
    /// What `before_last` says.
    pub fn add<E>(
        &mut self,
        model: &dyn Model,
        batch: &Batch,
        computed: &mut Computed,
        mut before_last: impl FnMut(&Computed, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let started = Instant::now();
        let before_s = computed.compute_time_s;
        // Time between what was added before and this was no computing, and is none to catch up on.
        let pace_began = started.checked_sub(computed.late).unwrap_or(started);
        let device = batch.inputs.device();
        let (mut done, samples) = (0, batch.len());
        while done < samples {
            let count = (self.micro_batch as i64).min(samples - done);
            if done + count == samples {
                before_last(computed, count as u64)?;
            }
            let loss = model.loss_sum(&batch.narrow(done, count));
            loss.backward();
            computed.loss_sum += loss.double_value(&[]);
            computed.samples += count as u64;
            computed.micro_batches += 1;
            done += count;
            synchronize(device);
            if let Some(pace) = &mut self.pace {
                computed.late = pace.hold(pace_began, done as u64);
            }
            computed.compute_time_s = before_s + started.elapsed().as_secs_f64();
        }
        Ok(())
    }
}

/// A GPU runs asynchronously: without this the clock would time the queueing only.
fn synchronize(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tch::Kind;

    use super::*;

    /// A line through samples of one number.
    struct Line(Tensor);

    impl Model for Line {
        fn parameters(&self) -> Vec<Tensor> {
            vec![self.0.shallow_clone()]
        }

        fn loss_sum(&self, batch: &Batch) -> Tensor {
            (&batch.inputs * &self.0 - &batch.targets).square().sum(Kind::Float)
        }
    }

    /// One sample each 2 ms.
    struct Slow(u64);

    impl Pace for Slow {
        fn hold(&mut self, started: Instant, samples: u64) -> Duration {
            let target = started + Duration::from_millis(2 * samples);
            self.0 += u64::from(Instant::now() >= target);
            while Instant::now() < target {
                std::thread::yield_now();
            }
            target.elapsed()
        }

        fn missed(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn an_imposed_pace_holds_over_all_parts_and_swallows_no_time_between_them() {
        tch::set_num_threads(1);
        let model = Line(Tensor::from(0.5_f32).set_requires_grad(true));
        let samples = || Tensor::arange(60, (Kind::Float, Device::Cpu));
        let batch = Batch { inputs: samples(), targets: samples() };
        let mut compute = Compute { micro_batch: 8, pace: None };
        let nothing = |_: &Computed, _| Ok::<(), Infallible>(());
        // Libtorch takes its time the first time.
        let mut computed = compute.begin(&model.parameters());
        let Ok(()) = compute.add(&model, &batch, &mut computed, nothing);
        compute.pace = Some(Box::new(Slow(0)));
        let mut computed = compute.begin(&model.parameters());
        let mut asked = Vec::new();
        for (start, count) in [(0, 20), (20, 0), (20, 40)] {
            let part = batch.narrow(start, count);
            let ask = |before: &Computed, last| {
                asked.push((before.samples, last));
                Ok::<(), Infallible>(())
            };
            let Ok(()) = compute.add(&model, &part, &mut computed, ask);
            let waiting = Instant::now();
            while waiting.elapsed() < Duration::from_millis(60) {
                std::thread::yield_now();
            }
        }
        assert_eq!((computed.samples, computed.micro_batches), (60, 8));
        assert_eq!(asked, [(16, 4), (52, 8)], "before the last micro-batch of each part that has samples");
        // Else the second part would have begun 60 ms ago, and not waited for these.
        assert!(computed.compute_time_s >= 0.12 - 1e-6, "{computed:?}");
    }
}
