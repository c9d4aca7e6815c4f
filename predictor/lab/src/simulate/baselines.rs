//! Policies without a forecaster.

use evenstep_core::allocate::{SplitWorker, allocate, even};
use evenstep_core::curve::Curve;
use evenstep_core::forecast::average::Ema;
use evenstep_core::series::Observation;

use super::error::SimulateError;
use super::policy::{Policy, Report, Shares};
use super::settings::Settings;
use super::world::{Worker, World};

/// Speeds that a policy uses as estimates.
pub(super) trait EstimatedSpeeds {
    /// Estimated speed of a worker, or `None` without an estimate.
    fn speed(&self, iteration: usize, worker: usize) -> Option<f64>;

    fn learn(&mut self, worker: usize, seen: &Observation);
}

/// Splits the batch in proportion to the estimated speeds, with the rounding of the shortest step. The split
/// is even if a worker has no estimate.
pub(super) struct Split<B> {
    pub settings: Settings,
    pub believed: B,
}

impl<B: EstimatedSpeeds> Policy for Split<B> {
    fn shares(&mut self, iteration: usize, present: &[usize]) -> Result<Shares, SimulateError> {
        let speeds: Option<Vec<f64>> =
            present.iter().map(|worker| self.believed.speed(iteration, *worker)).collect();
        match speeds {
            Some(speeds) => split(speeds.into_iter().map(Curve::at_speed), &self.settings),
            None => evenly(present.len(), &self.settings),
        }
        .map(Shares::Given)
    }

    fn learn(&mut self, reports: &[Report<'_>]) {
        for report in reports {
            if let Some(seen) = Observation::new(report.batch as f64, report.compute_time_s) {
                self.believed.learn(report.worker, &seen);
            }
        }
    }
}

fn split(curves: impl Iterator<Item = Curve>, settings: &Settings) -> Result<Vec<u64>, SimulateError> {
    let share = |curve| SplitWorker { floor: settings.quantum, ..SplitWorker::new(curve) };
    let shares: Vec<SplitWorker> = curves.map(share).collect();
    Ok(allocate(&shares, settings.global_batch, settings.quantum)?)
}

fn evenly(workers: usize, settings: &Settings) -> Result<Vec<u64>, SimulateError> {
    Ok(even(&vec![(settings.quantum, None); workers], settings.global_batch, settings.quantum)?)
}

pub(super) struct Nothing;

impl EstimatedSpeeds for Nothing {
    fn speed(&self, _iteration: usize, _worker: usize) -> Option<f64> {
        None
    }

    fn learn(&mut self, _worker: usize, _seen: &Observation) {}
}

/// Mean speeds over the warm-up: samples divided by time. A worker that joins later has its own warm-up of
/// the same length.
pub(super) struct Warmup {
    warmup: usize,
    /// Samples and seconds by worker.
    totals: Vec<(f64, f64)>,
    /// Number of counted iterations by worker.
    iterations: Vec<usize>,
}

impl Warmup {
    pub fn new(workers: usize, warmup: usize) -> Self {
        Self { warmup, totals: vec![(0.0, 0.0); workers], iterations: vec![0; workers] }
    }
}

impl EstimatedSpeeds for Warmup {
    fn speed(&self, iteration: usize, worker: usize) -> Option<f64> {
        let (samples, seconds) = self.totals[worker];
        (iteration >= self.warmup && seconds > 0.0).then(|| samples / seconds)
    }

    fn learn(&mut self, worker: usize, seen: &Observation) {
        if self.iterations[worker] < self.warmup {
            self.iterations[worker] += 1;
            self.totals[worker].0 += seen.batch;
            self.totals[worker].1 += seen.compute_time_s;
        }
    }
}

/// Smoothing factor of the policy `ema`: the weight of the most recent speed. Of common factors, it forecasts our traces best.
pub(super) const EMA: f64 = 0.3;

/// Moving averages of the speeds. A factor of 1 gives the last value.
pub(super) struct Averages {
    alpha: f64,
    averages: Vec<Option<Ema>>,
}

impl Averages {
    pub fn new(workers: usize, alpha: f64) -> Self {
        Self { alpha, averages: vec![None; workers] }
    }
}

impl EstimatedSpeeds for Averages {
    fn speed(&self, _iteration: usize, worker: usize) -> Option<f64> {
        self.averages[worker].map(|average| average.level())
    }

    fn learn(&mut self, worker: usize, seen: &Observation) {
        match &mut self.averages[worker] {
            Some(average) => average.update(seen.speed()),
            unmeasured => *unmeasured = Some(Ema::new(self.alpha, seen.speed())),
        }
    }
}

/// The policy that knows the actual speeds.
pub(super) struct Oracle<'a> {
    pub settings: Settings,
    pub world: &'a World,
}

impl Policy for Oracle<'_> {
    fn shares(&mut self, iteration: usize, present: &[usize]) -> Result<Shares, SimulateError> {
        let curve = |worker: &usize| {
            let worker = &self.world.workers[*worker];
            worker.form.curve(worker.slowdown[iteration])
        };
        split(present.iter().map(curve), &self.settings).map(Shares::Given)
    }

    fn learn(&mut self, _reports: &[Report<'_>]) {}
}

/// An even split that leaves out the slowest worker after the warm-up.
pub(super) struct WithoutSlowest {
    pub settings: Settings,
    pub slowest: Option<usize>,
}

impl Policy for WithoutSlowest {
    fn shares(&mut self, iteration: usize, present: &[usize]) -> Result<Shares, SimulateError> {
        let dropped = self.slowest.filter(|_| iteration >= self.settings.warmup && present.len() > 1);
        let at = present.iter().position(|worker| Some(*worker) == dropped);
        let mut shares = evenly(present.len() - usize::from(at.is_some()), &self.settings)?;
        if let Some(at) = at {
            shares.insert(at, 0);
        }
        Ok(Shares::Given(shares))
    }

    fn learn(&mut self, _reports: &[Report<'_>]) {}
}

/// Returns the worker with the longest time for an even share over the warm-up; of equal ones the first.
/// `None` if all workers are equal or there is only one.
pub fn slowest(world: &World, settings: &Settings) -> Option<usize> {
    let batch = (settings.global_batch / world.workers.len().max(1) as u64).max(1);
    let mean_s = |worker: &Worker| {
        let rows = worker.present.start..worker.present.end.min(settings.warmup);
        let slowdown = worker.slowdown.get(rows).filter(|rows| !rows.is_empty())?;
        let mean = slowdown.iter().sum::<f64>() / slowdown.len() as f64;
        Some(mean * worker.form.curve(1.0).time(batch))
    };
    let means: Vec<(usize, f64)> =
        world.workers.iter().enumerate().filter_map(|(at, worker)| Some((at, mean_s(worker)?))).collect();
    let (slowest, longest) = means.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
    means.iter().any(|(_, mean)| *mean < longest).then_some(slowest)
}
