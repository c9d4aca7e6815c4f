//! Measures the noise of an update: the variance over replicas that train on different samples.

use std::error::Error;

use evenstep_core::learning_rate::noise;
use evenstep_protocol::Ramp;
use evenstep_trainer_lab::dataset::DataSet;
use tch::Tensor;

use crate::losses::Length;
use crate::training::{LARGE, MOMENTUM, Policy, SMALL, Training};

const REPLICAS: u64 = 24;
/// Number of iterations before the change in which replicas train separately. Their shared momentum decays in
/// this time.
const SEPARATE_ITERATIONS: u64 = 60;
/// Number of iterations before the change in the chart. Their mean noise is the unit.
const SHOWN_BEFORE: u64 = 10;
const SHOWN_AFTER: u64 = 60;

/// Pairs of the iterations since the change and the noise relative to the noise before it.
pub type Noise = Vec<(f64, f64)>;

/// Returns the noise measured over replicas of one run, and the noise in closed form.
pub fn measure(
    data: &DataSet,
    learning_rate: f64,
    length: Length,
    policy: Policy,
) -> Result<(Noise, Noise), Box<dyn Error>> {
    let mut origin = Training::new(data, 0);
    for _ in 0..length.before - SEPARATE_ITERATIONS {
        origin.step(SMALL, learning_rate);
    }
    let mut moments: Vec<Moments> = (0..SHOWN_BEFORE + SHOWN_AFTER).map(|_| Moments::default()).collect();
    let mut course = None;
    for replica in 0..REPLICAS {
        // Seeds that no run uses, for separate orders of the samples.
        let mut run = origin.fork().reordered(u64::MAX - replica);
        let mut controller = policy.controller(length.before)?;
        for t in 0..SEPARATE_ITERATIONS + SHOWN_AFTER {
            let batch = if t < SEPARATE_ITERATIONS { SMALL } else { LARGE };
            let mut multiplier = 1.0;
            if let Some(since) = t.checked_sub(SEPARATE_ITERATIONS) {
                let upcoming = controller.preview(length.before + since, batch)?;
                controller.accept(upcoming);
                let instruction = upcoming.instruction();
                multiplier = instruction.lr_multiplier;
                let at_once = Ramp { from: 1.0, ..Ramp::at_once(multiplier, length.before) };
                course.get_or_insert(instruction.ramp.unwrap_or(at_once));
            }
            run.step(batch, learning_rate * multiplier);
            if let Some(at) = (t + SHOWN_BEFORE).checked_sub(SEPARATE_ITERATIONS) {
                moments[at as usize].add(&(run.velocity() * multiplier));
            }
        }
    }
    let variances: Vec<f64> = moments.iter().map(Moments::variance).collect();
    let unit = variances[..SHOWN_BEFORE as usize].iter().sum::<f64>() / SHOWN_BEFORE as f64;
    let since = |at: usize| at as f64 - SHOWN_BEFORE as f64;
    let measured = variances.iter().enumerate().map(|(at, variance)| (since(at), variance / unit)).collect();
    let course = course.ok_or("no iteration after the change")?;
    let formula = |at: u64| match at.checked_sub(SHOWN_BEFORE) {
        Some(t) => noise::update_noise(&course, MOMENTUM, t),
        None => 1.0,
    };
    let formula = (0..SHOWN_BEFORE + SHOWN_AFTER).map(|at| (since(at as usize), formula(at))).collect();
    Ok((measured, formula))
}

/// Accumulates the variance of vectors, summed over their entries.
#[derive(Default)]
struct Moments {
    count: f64,
    sum: Option<Tensor>,
    squares: f64,
}

impl Moments {
    fn add(&mut self, vector: &Tensor) {
        self.count += 1.0;
        self.squares += squared_norm(vector);
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + vector,
            None => vector.copy(),
        });
    }

    fn variance(&self) -> f64 {
        let mean = self.sum.as_ref().map_or(0.0, squared_norm) / self.count;
        (self.squares - mean) / (self.count - 1.0)
    }
}

fn squared_norm(vector: &Tensor) -> f64 {
    vector.dot(vector).double_value(&[])
}
