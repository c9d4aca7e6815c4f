//! Forward and backward passes over a worker's samples, and their duration.

use std::time::{Duration, Instant};

use anyhow::Result;
use tch::Tensor;

use super::device;
use super::memory::{ComputeError, Work, attempt};
use super::network::Model;
use crate::data::Batch;

/// Slows a worker down on purpose, for experiments.
pub trait Pace {
    /// Waits until `samples` samples that were started at `started` are due. Returns the current delay behind
    /// the pace.
    fn hold(&mut self, started: Instant, samples: u64) -> Duration;

    /// Returns the number of micro-batches so far that took longer than the pace allows.
    fn missed(&self) -> u64;
}

/// Computes gradients.
pub struct Compute {
    /// Samples per forward and backward pass; gradients accumulate over the passes.
    pub micro_batch: u64,
    /// Maximum number of samples that are loaded onto the device at once.
    pub(crate) load_batch: u64,
    /// The imposed speed, if any.
    pub pace: Option<Box<dyn Pace>>,
}

/// Results so far in an iteration, other than the gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Computed {
    /// Number of samples.
    pub samples: u64,
    /// Number of forward and backward passes.
    pub micro_batches: u64,
    /// Loss, summed over the samples.
    pub loss_sum: f64,
    /// Time of forward and backward passes, in seconds, without any wait except for an imposed pace.
    pub compute_time_s: f64,
    /// Delay behind an imposed pace, which the next samples make up for.
    pub late: Duration,
}

impl Computed {
    /// Returns the seconds per sample, or `None` before the first sample.
    pub fn pace_s(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.compute_time_s / self.samples as f64)
    }
}

impl Compute {
    /// Computes `micro_batch` samples per forward and backward pass.
    pub fn new(micro_batch: u64, pace: Option<Box<dyn Pace>>) -> Self {
        Self { micro_batch, load_batch: u64::MAX, pace }
    }

    /// Starts an iteration: gradients are zero or undefined.
    pub fn begin(&self, parameters: &[Tensor]) -> Computed {
        parameters.iter().for_each(|parameter| parameter.shallow_clone().zero_grad());
        Computed::default()
    }

    /// Adds the gradient of the summed loss of more samples to the gradients of the model's parameters. Calls
    /// `before_last` before the last micro-batch, with the results until then and the number of samples in
    /// that micro-batch.
    ///
    /// # Errors
    /// [`ComputeError`](super::ComputeError): a pass failed, for example because memory ran out. Gradients may then
    /// be partly accumulated. Otherwise `before_last` failed.
    pub fn add(
        &mut self,
        model: &dyn Model,
        batch: &Batch,
        computed: &mut Computed,
        mut before_last: impl FnMut(&Computed, u64) -> Result<()>,
    ) -> Result<()> {
        let started = Instant::now();
        let before_s = computed.compute_time_s;
        // Time between two calls is not compute time, and must not be caught up.
        let pace_began = started.checked_sub(computed.late).unwrap_or(started);
        let device = batch.inputs.device();
        let (mut done, samples) = (0, batch.len());
        while done < samples {
            let count = (self.micro_batch as i64).min(samples - done);
            if done + count == samples {
                before_last(computed, count as u64)?;
            }
            computed.loss_sum += attempt(Work::Pass, count as u64, || {
                let loss = model.loss_sum(&batch.narrow(done, count));
                loss.f_backward()?;
                loss.f_double_value(&[])
            })?;
            computed.samples += count as u64;
            computed.micro_batches += 1;
            done += count;
            // A GPU runs asynchronously: without waiting, the clock would measure only the queueing.
            device::wait(device).map_err(|error| ComputeError::device(count as u64, &error))?;
            if let Some(pace) = &mut self.pace {
                computed.late = pace.hold(pace_began, done as u64);
            }
            computed.compute_time_s = before_s + started.elapsed().as_secs_f64();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// A linear model through samples of one number.
    struct Line(Tensor);

    impl Model for Line {
        fn parameters(&self) -> Vec<Tensor> {
            vec![self.0.shallow_clone()]
        }

        fn loss_sum(&self, batch: &Batch) -> Tensor {
            (&batch.inputs * &self.0 - &batch.targets).square().sum(Kind::Float)
        }
    }

    /// A pace of 2 ms per sample.
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
    fn an_imposed_pace_holds_over_all_parts_and_counts_no_time_between_them() {
        tch::set_num_threads(1);
        let model = Line(Tensor::from(0.5_f32).set_requires_grad(true));
        let samples = || Tensor::arange(60, (Kind::Float, Device::Cpu));
        let batch = Batch { inputs: samples(), targets: samples() };
        let mut compute = Compute::new(8, None);
        let nothing = |_: &Computed, _| Ok(());
        // The first call of libtorch is slow.
        let mut computed = compute.begin(&model.parameters());
        compute.add(&model, &batch, &mut computed, nothing).unwrap();
        compute.pace = Some(Box::new(Slow(0)));
        let mut computed = compute.begin(&model.parameters());
        let mut asked = Vec::new();
        for (start, count) in [(0, 20), (20, 0), (20, 40)] {
            let part = batch.narrow(start, count);
            let ask = |before: &Computed, last| {
                asked.push((before.samples, last));
                Ok(())
            };
            compute.add(&model, &part, &mut computed, ask).unwrap();
            let waiting = Instant::now();
            while waiting.elapsed() < Duration::from_millis(60) {
                std::thread::yield_now();
            }
        }
        assert_eq!((computed.samples, computed.micro_batches), (60, 8));
        assert_eq!(asked, [(16, 4), (52, 8)], "before the last micro-batch of each part that has samples");
        // Otherwise the second part would have started 60 ms ago, and would not have waited for these
        // samples.
        assert!(computed.compute_time_s >= 0.12 - 1e-6, "{computed:?}");
    }
}
