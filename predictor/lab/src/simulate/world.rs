//! Workers, their conditions, and their time as a function of the batch.

use std::ops::Range;

use evenstep_core::curve::Curve;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::error::SimulateError;
use crate::backtest::{Job, Row, Series, is_enough};

/// Name of the barrier wait as a driver. It depends on the policy, so recorded values are not used.
pub(super) const BARRIER_WAIT: &str = "barrier_wait_s";

/// The time of each worker's batch in each iteration. It does not depend on the policy.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// Names of the drivers, without the barrier wait.
    pub drivers: Vec<String>,
    /// The workers, in rank order.
    pub workers: Vec<Worker>,
    /// Number of iterations.
    pub iterations: usize,
}

/// A worker. A batch of `x` samples takes `slowdown[k] * form(x)` seconds in iteration `k`.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Name of the worker.
    pub id: String,
    /// Its time as a function of the batch.
    pub form: Form,
    /// Factor on its time in each iteration; positive and finite.
    pub slowdown: Vec<f64>,
    /// Drivers known just before each iteration, in the order of [`World::drivers`]; may be empty.
    pub drivers: Vec<Vec<Option<f64>>>,
    /// Iterations in which it is a member.
    pub present: Range<usize>,
}

/// Time as a function of the batch: `fixed_s + per_sample_s * max(x, saturation)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Form {
    /// Seconds per batch of any size; finite, not negative.
    pub fixed_s: f64,
    /// Seconds per sample; finite, positive.
    pub per_sample_s: f64,
    /// Batch in samples below which a smaller batch takes no less time.
    pub saturation: u64,
}

impl Form {
    /// Returns the curve of a worker of this form with a factor on its time.
    pub fn curve(&self, slowdown: f64) -> Curve {
        let flat_s = self.fixed_s + self.per_sample_s * self.saturation as f64;
        Curve::saturating(flat_s * slowdown, self.saturation, self.per_sample_s * slowdown)
    }
}

/// Assumption on the curves of recorded workers. By default their speed does not depend on the batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RecordedForm {
    /// Part of the time at the usual batch that does not depend on the batch, in [0, 1).
    pub fixed_share: f64,
    /// The usual batch in samples; `None` for each worker's median.
    pub usual_batch: Option<f64>,
}

impl RecordedForm {
    fn form(&self, usual_batch: f64) -> Form {
        Form { fixed_s: self.fixed_share * usual_batch, per_sample_s: 1.0 - self.fixed_share, saturation: 0 }
    }
}

impl World {
    /// Builds a world from recorded workers: the iterations of which every worker has a row.
    ///
    /// # Errors
    /// [`SimulateError::Incomplete`] if these are fewer than 100, and fewer than half of the rows of some worker.
    pub fn recorded(job: &Job, recorded: RecordedForm) -> Result<Self, SimulateError> {
        let iterations: Vec<Vec<usize>> = job.complete().collect();
        let fewest = job.series.iter().min_by_key(|series| series.rows.len());
        if let Some(series) = fewest.filter(|series| !is_enough(iterations.len(), series.rows.len())) {
            return Err(SimulateError::Incomplete {
                complete: iterations.len(),
                worker: series.id.clone(),
                rows: series.rows.len(),
            });
        }
        let kept: Vec<usize> = (0..job.drivers.len()).filter(|at| job.drivers[*at] != BARRIER_WAIT).collect();
        let worker = |(worker, series): (usize, &Series)| {
            let rows: Vec<&Row> = iterations.iter().map(|rows| &series.rows[rows[worker]]).collect();
            let mut batches: Vec<u64> = rows.iter().map(|row| row.batch).collect();
            batches.sort_unstable();
            let median = batches.get(rows.len() / 2).copied().unwrap_or(1) as f64;
            let form = recorded.form(recorded.usual_batch.unwrap_or(median));
            let curve = form.curve(1.0);
            Worker {
                id: series.id.clone(),
                form,
                slowdown: rows.iter().map(|row| row.compute_time_s() / curve.time(row.batch)).collect(),
                drivers: rows.iter().map(|row| kept.iter().map(|at| row.drivers[*at]).collect()).collect(),
                present: 0..rows.len(),
            }
        };
        Ok(Self {
            drivers: kept.iter().map(|at| job.drivers[*at].clone()).collect(),
            workers: job.series.iter().enumerate().map(worker).collect(),
            iterations: iterations.len(),
        })
    }

    /// Extends the world to `workers` workers. New ones are copies of the recorded workers, each
    /// shifted cyclically by a random number of iterations.
    ///
    /// # Errors
    /// [`SimulateError::Workers`] if `workers` is below the number of recorded workers, or a copy cannot be
    /// shifted.
    pub fn with_workers(mut self, workers: usize, seed: u64) -> Result<Self, SimulateError> {
        let traces = self.workers.len();
        let refuse = |rule| SimulateError::Workers { workers, traces, iterations: self.iterations, rule };
        if workers < traces || traces == 0 {
            return Err(refuse("at least as many workers as traces are required"));
        }
        if workers > traces && self.iterations < 2 {
            return Err(refuse("a copy is shifted in time, which requires at least 2 iterations"));
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

    /// Limits the world to its first iterations.
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

    /// Members in an iteration, in rank order.
    pub fn present(&self, iteration: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.workers.len()).filter(move |at| self.workers[*at].present.contains(&iteration))
    }
}
