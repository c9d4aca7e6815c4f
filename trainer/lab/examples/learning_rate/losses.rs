//! Losses around the change, for each policy and seed, and what they say together.

use std::error::Error;

use evenstep_trainer_lab::dataset::DataSet;

use crate::training::{LARGE, Policy, SMALL, Training};

/// Samples whose losses are one point of a curve.
pub const POINT: u64 = 512;
/// Samples over which the beginning and the end are judged: a little more than the ramp takes.
pub const WINDOW: u64 = 10_240;
const WINDOW_POINTS: usize = (WINDOW / POINT) as usize;
/// Four times the loss of guessing among ten classes: a run beyond it has diverged.
const DIVERGED: f64 = 10.0;

/// How long runs are.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Iterations of the small batch before the change.
    pub before: u64,
    /// Iterations of the large batch after it.
    pub after: u64,
}

impl Length {
    /// Samples of a run: no sample comes twice, so that training losses are those of samples not seen yet.
    pub fn samples(self) -> u64 {
        self.before * SMALL + self.after * LARGE
    }
}

/// All runs at one learning rate.
pub struct Rate {
    pub learning_rate: f64,
    /// Curves before the change, by seed.
    pub before: Vec<Vec<f64>>,
    after: [Vec<Run>; Policy::ALL.len()],
}

/// One run from the change on.
pub struct Run {
    pub losses: Vec<f64>,
    pub held_out: f64,
}

impl Rate {
    /// Trains each seed up to the change, and from there under each policy.
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

    /// The runs under a policy, by seed.
    pub fn runs(&self, policy: Policy) -> &[Run] {
        let at = Policy::ALL.iter().position(|other| *other == policy).unwrap_or(0);
        &self.after[at]
    }

    /// Mean losses of the first samples after the change, by seed.
    pub fn first(&self, policy: Policy) -> Vec<f64> {
        self.runs(policy).iter().map(|run| mean(&run.losses[..WINDOW_POINTS])).collect()
    }

    /// Mean losses of the last samples, by seed.
    pub fn last(&self, policy: Policy) -> Vec<f64> {
        self.runs(policy).iter().map(|run| mean(&run.losses[run.losses.len() - WINDOW_POINTS..])).collect()
    }

    /// Mean losses of the last samples before the change, by seed.
    pub fn just_before(&self) -> Vec<f64> {
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
        let multiplier = controller.instruct(length.before + t, batch)?.lr_multiplier;
        losses.add(run.step(batch, learning_rate * multiplier));
    }
    Ok(Run { losses: losses.done, held_out: run.held_out() })
}

/// Losses of iterations, averaged into points.
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
    /// Or how many runs diverged.
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

    /// The difference seed by seed: the seeds share model and samples up to the change, and samples after it.
    pub fn difference(ramp: &[f64], jump: &[f64]) -> Result<Self, usize> {
        Self::of(ramp)?;
        Self::of(jump)?;
        Self::of(&ramp.iter().zip(jump).map(|(ramp, jump)| ramp - jump).collect::<Vec<_>>())
    }

    /// Which is lower, where that is beyond two standard errors.
    pub fn verdict(self) -> &'static str {
        match self.mean {
            mean if mean < -2.0 * self.error => "ramp lower",
            mean if mean > 2.0 * self.error => "jump lower",
            _ => "no difference",
        }
    }
}
