//! Losses before and after the change of the batch, by policy and seed, and their statistics.

use std::error::Error;

use evenstep_trainer_lab::dataset::DataSet;

use crate::training::{LARGE, Policy, SMALL, Training};

/// Number of samples per point of a loss curve.
pub const POINT: u64 = 512;
/// Number of samples over which losses are compared at the start and at the end: slightly more than the ramp.
pub const WINDOW: u64 = 10_240;
const WINDOW_POINTS: usize = (WINDOW / POINT) as usize;
/// A run with a larger loss has diverged: about four times the loss of random guesses among ten classes.
const DIVERGED: f64 = 10.0;

/// The length of a run.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Number of iterations with the small batch, before the change.
    pub before: u64,
    /// Number of iterations with the large batch, after the change.
    pub after: u64,
}

impl Length {
    /// Returns the number of samples of a run. No sample is used twice, so training losses are losses on
    /// new samples.
    pub fn samples(self) -> u64 {
        self.before * SMALL + self.after * LARGE
    }
}

/// All runs with one learning rate.
pub struct Rate {
    pub learning_rate: f64,
    /// Loss curves before the change, by seed.
    pub before: Vec<Vec<f64>>,
    after: [Vec<Run>; Policy::ALL.len()],
}

/// One run after the change.
pub struct Run {
    pub losses: Vec<f64>,
    pub held_out: f64,
}

impl Rate {
    /// Trains each seed up to the change, and then continues under each policy.
    pub fn train(
        data: &DataSet,
        learning_rate: f64,
        seeds: u64,
        length: Length,
    ) -> Result<Self, Box<dyn Error>> {
        let mut rate = Self { learning_rate, before: Vec::new(), after: Default::default() };
        for seed in 0..seeds {
            let mut run = Training::new(data, seed);
            let mut before = Points::new(SMALL);
            for _ in 0..length.before {
                before.add(run.step(SMALL, learning_rate));
            }
            rate.before.push(before.done);
            for (policy, runs) in Policy::ALL.into_iter().zip(&mut rate.after) {
                runs.push(after(run.fork(), policy, learning_rate, length)?);
            }
        }
        Ok(rate)
    }

    /// Returns the runs under a policy, by seed.
    pub fn runs(&self, policy: Policy) -> &[Run] {
        let at = Policy::ALL.iter().position(|other| *other == policy).unwrap_or(0);
        &self.after[at]
    }

    /// Returns the mean losses of the first samples after the change, by seed.
    pub fn first(&self, policy: Policy) -> Vec<f64> {
        self.runs(policy).iter().map(|run| mean(&run.losses[..WINDOW_POINTS])).collect()
    }

    /// Returns the mean losses of the last samples, by seed.
    pub fn last(&self, policy: Policy) -> Vec<f64> {
        self.runs(policy).iter().map(|run| mean(&run.losses[run.losses.len() - WINDOW_POINTS..])).collect()
    }

    /// Returns the mean losses of the last samples before the change, by seed.
    pub fn before_change(&self) -> Vec<f64> {
        self.before.iter().map(|losses| mean(&losses[losses.len() - WINDOW_POINTS..])).collect()
    }
}

fn after(
    mut run: Training<'_>,
    policy: Policy,
    learning_rate: f64,
    length: Length,
) -> Result<Run, Box<dyn Error>> {
    let mut controller = policy.controller(length.before)?;
    let batch = policy.batch();
    let mut losses = Points::new(batch);
    for t in 0..length.after * LARGE / batch {
        let upcoming = controller.preview(length.before + t, batch)?;
        controller.accept(upcoming);
        losses.add(run.step(batch, learning_rate * upcoming.instruction().lr_multiplier));
    }
    Ok(Run { losses: losses.done, held_out: run.held_out() })
}

/// Losses of iterations, averaged into the points of a curve.
struct Points {
    each: usize,
    open: Vec<f64>,
    done: Vec<f64>,
}

impl Points {
    fn new(batch: u64) -> Self {
        Self { each: (POINT / batch) as usize, open: Vec::new(), done: Vec::new() }
    }

    fn add(&mut self, loss: f64) {
        self.open.push(loss);
        if self.open.len() == self.each {
            self.done.push(mean(&self.open));
            self.open.clear();
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A mean over seeds and its standard error.
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    pub mean: f64,
    pub error: f64,
}

impl Estimate {
    /// Computes the estimate. Fails with the number of diverged runs if any run diverged.
    pub fn of(values: &[f64]) -> Result<Self, usize> {
        let diverged = values.iter().filter(|value| value.is_nan() || value.abs() > DIVERGED);
        match diverged.count() {
            0 => {
                let mean = mean(values);
                let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
                let count = values.len() as f64;
                Ok(Self { mean, error: (squares / (count - 1.0) / count).sqrt() })
            }
            count => Err(count),
        }
    }

    /// Computes the mean difference by seed. Runs with the same seed share the state at the change, and
    /// the samples after it.
    pub fn difference(ramp: &[f64], jump: &[f64]) -> Result<Self, usize> {
        Self::of(ramp)?;
        Self::of(jump)?;
        Self::of(&ramp.iter().zip(jump).map(|(ramp, jump)| ramp - jump).collect::<Vec<_>>())
    }

    /// Returns which loss is lower, if the difference exceeds two standard errors.
    pub fn verdict(self) -> &'static str {
        match self.mean {
            mean if mean < -2.0 * self.error => "ramp lower",
            mean if mean > 2.0 * self.error => "jump lower",
            _ => "no difference",
        }
    }
}
