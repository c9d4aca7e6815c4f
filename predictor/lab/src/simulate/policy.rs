//! The policies by name, and those that need no forecaster.

use std::fmt;
use std::str::FromStr;

use super::SimulateError;
use super::evenstep::{Evenstep, Fitter};
use super::world::{Worker, World};
use evenstep_core::allocate::{Share, allocate, even};
use evenstep_core::curve::Curve;
use evenstep_core::forecast::Loss;
use evenstep_core::forecast::average::Ema;
use evenstep_core::hedge::learner::Parts;
use evenstep_core::hedge::{ClaimCost, Hedged, Took};
use evenstep_core::plan::Objective;
use evenstep_core::series::Observation;

/// Ways of sharing out the global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyName {
    /// Equal shares, always: what training without evenstep does.
    Even,
    /// Proportional to the speeds of the warm-up, for ever.
    StaticProportional,
    /// Proportional to the speeds of the iteration before.
    LastValue,
    /// Proportional to an exponential moving average of the speeds.
    Ema,
    /// The service's own forecasts and plans, without a tail: everything is given.
    Base,
    /// The service's own forecasts and plans, hedged: what cannot be foreseen is shared.
    Evenstep,
    /// The shortest possible step: it knows what each worker will do.
    Oracle,
    /// Equal shares, but none for the worker that was slowest in the warm-up.
    WithoutSlowest,
}

impl PolicyName {
    /// Those that can be asked for; [`PolicyName::WithoutSlowest`] is only there for the advice.
    pub const ALL: [Self; 7] = [
        Self::Even,
        Self::StaticProportional,
        Self::LastValue,
        Self::Ema,
        Self::Base,
        Self::Evenstep,
        Self::Oracle,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::StaticProportional => "static_proportional",
            Self::LastValue => "last_value",
            Self::Ema => "ema",
            Self::Base => "base",
            Self::Evenstep => "evenstep",
            Self::Oracle => "oracle",
            Self::WithoutSlowest => "without_slowest",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// No policy is called so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {name:?}; there are {}", PolicyName::ALL.map(PolicyName::as_str).join(", "))]
pub struct UnknownPolicy {
    name: String,
}

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == name);
        found.ok_or_else(|| UnknownPolicy { name: name.into() })
    }
}

/// What a simulation is run with.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Samples of an iteration.
    pub global_batch: u64,
    /// Every share is a multiple of this, and at least this.
    pub quantum: u64,
    /// Iterations that do not count.
    pub warmup: usize,
    /// Factor of [`PolicyName::Ema`], in (0, 1].
    pub ema: f64,
    /// Evenstep holds its shares while new ones would shorten the expected step by less than this share.
    pub min_gain: f64,
    /// What its plans minimise.
    pub objective: Objective,
    /// What the weights of evenstep's mix are trained on.
    pub loss: Loss,
    /// Whether evenstep fits networks on the way, as the service does beside its requests: most of the time of a simulation.
    pub networks: bool,
    /// What a claim from the tail costs.
    pub claim: ClaimCost,
    /// No chunk of a tail is smaller; a multiple of the quantum.
    pub min_chunk: u64,
    /// The most workers that claim from one counter.
    pub pool_max: usize,
    /// Whether shares are asked for one iteration ahead, before the outcome of the one before is known; else at the
    /// boundary.
    pub ahead: bool,
}

/// How an iteration went for one worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report<'a> {
    /// Which.
    pub worker: usize,
    /// Samples it computed, those of the tail among them.
    pub batch: u64,
    /// Seconds they took.
    pub compute_time_s: f64,
    /// What it did of the tail.
    pub tail: Took,
    /// Seconds it waited for the last worker.
    pub barrier_wait_s: f64,
    /// Drivers read at the end; empty where there are none.
    pub drivers: &'a [Option<f64>],
}

/// How the global batch is shared out.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shares {
    /// Everything is given; by rank of those who take part.
    Given(Vec<u64>),
    /// Bases are given, the rest is claimed.
    Hedged(Hedged),
}

impl Shares {
    /// What each is given before any claim.
    pub fn given(&self) -> &[u64] {
        match self {
            Self::Given(batches) => batches,
            Self::Hedged(hedged) => &hedged.bases,
        }
    }
}

impl Report<'_> {
    /// Base and tail apart.
    pub fn parts(&self) -> Parts {
        let tail = self.tail;
        let base_s = self.compute_time_s - tail.compute_s;
        Parts { base: self.batch - tail.samples, base_s, tail }
    }

    /// Seconds until it was at the barrier.
    pub fn busy_s(&self) -> f64 {
        self.compute_time_s + self.tail.claim_s
    }
}

/// Shares out the global batch, and learns from how it went.
pub(super) trait Policy {
    /// The shares of those who take part, in their order.
    fn shares(&mut self, iteration: usize, present: &[usize]) -> Result<Shares, SimulateError>;

    /// Takes the reports of an iteration.
    fn learn(&mut self, reports: &[Report<'_>]);
}

impl PolicyName {
    /// A policy that has seen nothing.
    pub(super) fn build<'a>(
        self,
        world: &'a World,
        settings: &Settings,
        fitter: Fitter<'a>,
    ) -> Box<dyn Policy + 'a> {
        let workers = world.workers.len();
        match self {
            Self::Even => Box::new(Split { settings: settings.clone(), believed: Nothing }),
            Self::StaticProportional => Box::new(Split {
                settings: settings.clone(),
                believed: Warmup::new(workers, settings.warmup),
            }),
            Self::LastValue => {
                Box::new(Split { settings: settings.clone(), believed: Averages::new(workers, 1.0) })
            }
            Self::Ema => {
                Box::new(Split { settings: settings.clone(), believed: Averages::new(workers, settings.ema) })
            }
            Self::Base => Box::new(Evenstep::new(world, settings, fitter, false)),
            Self::Evenstep => Box::new(Evenstep::new(world, settings, fitter, true)),
            Self::Oracle => Box::new(Oracle { settings: settings.clone(), world }),
            Self::WithoutSlowest => {
                Box::new(WithoutSlowest { settings: settings.clone(), slowest: slowest(world, settings) })
            }
        }
    }
}

/// Speeds that are believed in.
trait Believed {
    /// Of a worker; `None` while there is nothing to believe.
    fn speed(&self, iteration: usize, worker: usize) -> Option<f64>;

    fn learn(&mut self, worker: usize, seen: &Observation);
}

/// Splits by believed speeds: proportionally, rounded to the shortest step. Evenly where one has none.
struct Split<B> {
    settings: Settings,
    believed: B,
}

impl<B: Believed> Policy for Split<B> {
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

pub(super) fn split(
    curves: impl Iterator<Item = Curve>,
    settings: &Settings,
) -> Result<Vec<u64>, SimulateError> {
    let share = |curve| Share { floor: settings.quantum, ..Share::new(curve) };
    let shares: Vec<Share> = curves.map(share).collect();
    Ok(allocate(&shares, settings.global_batch, settings.quantum)?)
}

fn evenly(workers: usize, settings: &Settings) -> Result<Vec<u64>, SimulateError> {
    Ok(even(&vec![(settings.quantum, None); workers], settings.global_batch, settings.quantum)?)
}

struct Nothing;

impl Believed for Nothing {
    fn speed(&self, _iteration: usize, _worker: usize) -> Option<f64> {
        None
    }

    fn learn(&mut self, _worker: usize, _seen: &Observation) {}
}

/// Speeds over the whole warm-up: samples over time. A worker that joins later has a warm-up of its own, as long.
struct Warmup {
    warmup: usize,
    /// By worker: samples, seconds.
    totals: Vec<(f64, f64)>,
    /// By worker: iterations that are in them.
    iterations: Vec<usize>,
}

impl Warmup {
    fn new(workers: usize, warmup: usize) -> Self {
        Self { warmup, totals: vec![(0.0, 0.0); workers], iterations: vec![0; workers] }
    }
}

impl Believed for Warmup {
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

/// Moving averages of speeds; with a factor of 1 the last value.
struct Averages {
    alpha: f64,
    averages: Vec<Option<Ema>>,
}

impl Averages {
    fn new(workers: usize, alpha: f64) -> Self {
        Self { alpha, averages: vec![None; workers] }
    }
}

impl Believed for Averages {
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

/// Knows what each worker will do.
struct Oracle<'a> {
    settings: Settings,
    world: &'a World,
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

/// Leaves the slowest of the warm-up out, from its end on.
struct WithoutSlowest {
    settings: Settings,
    slowest: Option<usize>,
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

/// Who takes longest for an even share over the warm-up, the first of several; `None` where it is all alike, or one is alone.
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
