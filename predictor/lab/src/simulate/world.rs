//! Workers, their conditions, and how their time grows with the batch.

use std::ops::Range;

use evenstep_core::curve::Curve;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::error::SimulateError;
use crate::backtest::Job;

/// What a simulated worker's wait is called, as a driver: it follows from the policy, so a recorded one counts for nothing.
pub(super) const BARRIER_WAIT: &str = "barrier_wait_s";

/// What each worker's batch would take in each iteration. It does not react to what is done in it.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// Names of the drivers, without the barrier wait.
    pub drivers: Vec<String>,
    /// The workers, in rank order.
    pub workers: Vec<Worker>,
    /// Iterations there are.
    pub iterations: usize,
}

/// One worker: a batch of `x` takes `slowdown[k] * form(x)` seconds in iteration `k`.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Its name.
    pub id: String,
    /// How its time grows with the batch.
    pub form: Form,
    /// How slow it is, by iteration; positive and finite.
    pub slowdown: Vec<f64>,
    /// Drivers known just before each iteration, in the order of [`World::drivers`]; empty where there are none.
    pub drivers: Vec<Vec<Option<f64>>>,
    /// Iterations in which it takes part.
    pub present: Range<usize>,
}

/// Time against batch: `fixed_s + per_sample_s * max(x, saturation)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Form {
    /// What any batch costs, in seconds; finite, not negative.
    pub fixed_s: f64,
    /// What a sample costs, in seconds; finite, positive.
    pub per_sample_s: f64,
    /// Smaller batches take no less time than one of so many samples.
    pub saturation: u64,
}

impl Form {
    /// A second for a sample: the form of a worker that is as fast at any batch.
    pub const PROPORTIONAL: Self = Self { fixed_s: 0.0, per_sample_s: 1.0, saturation: 0 };

    /// The curve of a worker of this form that is so slow.
    pub fn curve(&self, slowdown: f64) -> Curve {
        let flat_s = self.fixed_s + self.per_sample_s * self.saturation as f64;
        Curve::saturating(flat_s * slowdown, self.saturation, self.per_sample_s * slowdown)
    }
}

/// What is known of how recorded workers' time grows with the batch: without it, they would be as fast at any batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RecordedForm {
    /// The part of the time at the usual (median) batch that any batch takes, in [0, 1).
    pub fixed_share: f64,
    /// Smaller batches take no less time than one of so many samples.
    pub saturation: u64,
}

impl RecordedForm {
    fn form(&self, usual_batch: f64) -> Form {
        Form {
            fixed_s: self.fixed_share * usual_batch,
            per_sample_s: 1.0 - self.fixed_share,
            saturation: self.saturation,
        }
    }
}

impl World {
    /// The workers that were recorded, row by row, cut to the shortest.
    pub fn recorded(job: &Job, recorded: RecordedForm) -> Self {
        let iterations = job.series.iter().map(|series| series.rows.len()).min().unwrap_or(0);
        let kept: Vec<usize> = (0..job.drivers.len()).filter(|at| job.drivers[*at] != BARRIER_WAIT).collect();
        let worker = |series: &crate::backtest::Series| {
            let rows = &series.rows[..iterations];
            let mut batches: Vec<u64> = rows.iter().map(|row| row.batch).collect();
            batches.sort_unstable();
            let form = recorded.form(batches.get(iterations / 2).copied().unwrap_or(1) as f64);
            let curve = form.curve(1.0);
            Worker {
                id: series.id.clone(),
                form,
                slowdown: rows.iter().map(|row| row.compute_time_s() / curve.time(row.batch)).collect(),
                drivers: rows.iter().map(|row| kept.iter().map(|at| row.drivers[*at]).collect()).collect(),
                present: 0..iterations,
            }
        };
        Self {
            drivers: kept.iter().map(|at| job.drivers[*at].clone()).collect(),
            workers: job.series.iter().map(worker).collect(),
            iterations,
        }
    }

    /// So many workers: those there are, and copies of them, one after the other, each shifted around by a number of
    /// iterations that the seed draws.
    ///
    /// # Errors
    /// [`SimulateError::Workers`] where fewer are asked for than there are.
    pub fn with_workers(mut self, workers: usize, seed: u64) -> Result<Self, SimulateError> {
        let traces = self.workers.len();
        let refuse = |rule| SimulateError::Workers { workers, traces, iterations: self.iterations, rule };
        if workers < traces || traces == 0 {
            return Err(refuse("there must be at least as many workers as traces"));
        }
        if workers > traces && self.iterations < 2 {
            return Err(refuse("a shift needs at least 2 iterations"));
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for copy in traces..workers {
            let shift = rng.random_range(1..self.iterations);
            let mut worker = self.workers[copy % traces].clone();
            worker.slowdown.rotate_left(shift);
            worker.drivers.rotate_left(shift);
            worker.id = format!("{} shifted by {shift}", worker.id);
            self.workers.push(worker);
        }
        Ok(self)
    }

    /// At most so many iterations, the first.
    #[must_use]
    pub fn cut(mut self, iterations: usize) -> Self {
        self.iterations = self.iterations.min(iterations);
        for worker in &mut self.workers {
            worker.slowdown.truncate(self.iterations);
            worker.drivers.truncate(self.iterations);
            worker.present =
                worker.present.start.min(self.iterations)..worker.present.end.min(self.iterations);
        }
        self
    }

    /// Who takes part in an iteration, in rank order.
    pub fn present(&self, iteration: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.workers.len()).filter(move |at| self.workers[*at].present.contains(&iteration))
    }
}
