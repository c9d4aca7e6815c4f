//! Forward and backward over a worker's own samples, and how long that took.

use std::convert::Infallible;
use std::time::{Duration, Instant};

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
    /// Leaves the gradient of the summed loss in the model's parameters; with no samples it is zero or undefined.
    pub fn gradients(&mut self, model: &mut Model, batch: &Batch) -> Computed {
        let mut computed = self.begin(model);
        let Ok(()) = self.add(model, batch, &mut computed, |_, _| Ok::<(), Infallible>(()));
        computed
    }

    /// Begins an iteration: gradients are zero or undefined.
    pub fn begin(&self, model: &mut Model) -> Computed {
        model.zero_grad();
        Computed::default()
    }

    /// Adds the gradient of the summed loss of more samples to those in the model's parameters. `before_last` is called
    /// before the last micro-batch, with what was computed until then and the samples in it.
    ///
    /// # Errors
    /// What `before_last` says.
    pub fn add<E>(
        &mut self,
        model: &Model,
        batch: &Batch,
        computed: &mut Computed,
        mut before_last: impl FnMut(&Computed, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let started = Instant::now();
        let before_s = computed.compute_time_s;
        // Time between what was added before and this was no computing, and is none to catch up on.
        let pace_began = started.checked_sub(computed.late).unwrap_or(started);
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
            synchronize(model.device());
            if let Some(pace) = &mut self.pace {
                computed.late = pace.hold(pace_began, done as u64);
            }
            computed.compute_time_s = before_s + started.elapsed().as_secs_f64();
        }
        Ok(())
    }
}

/// A GPU runs behind: without this the clock would time the queueing only.
fn synchronize(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::data::TeacherTask;
    use crate::model::Architecture;

    #[test]
    fn an_imposed_pace_holds_over_all_parts_and_swallows_no_time_between_them() {
        tch::set_num_threads(1);
        let data = TeacherTask { samples: 64, seed: 1 }.generate();
        let architecture = Architecture::Mlp { hidden: vec![8] };
        let mut model = Model::new(&architecture, data.shape, data.classes, 1, Kind::Float, Device::Cpu);
        let batch = data.train.head(60, Kind::Float, Device::Cpu);
        let pace = Pace::new(0.5, Duration::from_millis(1));
        let mut compute = Compute { micro_batch: 8, pace: None };
        // Libtorch takes its time the first time.
        compute.gradients(&mut model, &batch);
        compute.pace = Some(pace);
        let mut computed = compute.begin(&mut model);
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
