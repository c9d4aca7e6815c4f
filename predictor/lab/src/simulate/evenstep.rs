//! The policy of the service: its forecasts, curves, networks and plans.

use std::collections::VecDeque;

use evenstep_core::allocate::{Residuals, Scenarios, SplitWorker};
use evenstep_core::curve::CurveLearner;
use evenstep_core::forecast::narx::Narx;
use evenstep_core::forecast::nonlinear::{FittedExpert, REFIT_OBSERVATIONS, TRAINING_ROWS_MAX, Training};
use evenstep_core::forecast::{ExpertKind, JobForecaster, Loss};
use evenstep_core::hedge::learner::Parts;
use evenstep_core::hedge::{ChunkCost, Hedged, POOL_MAX, Terms, hedge};
use evenstep_core::job::{Balance, Compared, TailBalance, Used};
use evenstep_core::plan::{InForce, MIN_GAIN, Measured, Rules, Sizes, WorkerOutlook, plan};
use evenstep_core::series::DriverSet;

use super::error::SimulateError;
use super::policy::{Policy, Report, Shares};
use super::settings::{CLAIM, Settings};
use super::world::{BARRIER_WAIT, World};

/// Fits networks and returns them in the order given, with `None` for a failed fit.
pub type Fitter<'a> = &'a (dyn Fn(&[Training]) -> Vec<Option<FittedExpert>> + Sync);

/// Fits one network, as the service does.
pub fn fit_one(training: &Training) -> Option<FittedExpert> {
    training.fit(&Narx::refit()).ok()
}

pub(super) struct Evenstep<'a> {
    settings: Settings,
    hedges: bool,
    drivers: DriverSet,
    forecaster: JobForecaster<usize>,
    workers: Vec<WorkerState>,
    in_force: Option<(Vec<usize>, InForce)>,
    balance: Balance,
    tail_balance: TailBalance,
    /// The choices of the iterations that are not learned yet.
    choices: VecDeque<Choices>,
    fitter: Fitter<'a>,
    /// Number of iterations learned.
    learned: u64,
}

/// Both choices of shares in an iteration, by rank.
struct Choices {
    even: Vec<u64>,
    planned: Vec<u64>,
    /// Whether the even ones are held.
    is_held: bool,
    /// Whether there is a tail.
    is_hedged: bool,
}

/// State of a worker, without its forecasts.
#[derive(Clone, Default)]
struct WorkerState {
    reported: bool,
    curve: CurveLearner,
    /// Largest batch of an iteration in samples.
    largest: u64,
    /// Cost of chunks for the worker.
    chunks: ChunkCost,
    fitted_at: u64,
    /// Most recent reports, for the next fit of a network.
    reports: VecDeque<StoredReport>,
}

/// A report stored for the next fit of a network.
#[derive(Clone)]
struct StoredReport {
    iteration: u64,
    parts: Parts,
    readings: Vec<Option<f64>>,
}

impl<'a> Evenstep<'a> {
    pub fn new(world: &World, settings: &Settings, fitter: Fitter<'a>, hedges: bool) -> Self {
        let drivers = DriverSet::new(world.drivers.iter().map(String::as_str).chain([BARRIER_WAIT]));
        let roster = ExpertKind::roster(&drivers);
        Self {
            settings: settings.clone(),
            hedges,
            forecaster: JobForecaster::with(drivers.clone(), roster, Loss::default()),
            drivers,
            workers: vec![WorkerState::default(); world.workers.len()],
            in_force: None,
            balance: Balance::default(),
            tail_balance: TailBalance::default(),
            choices: VecDeque::new(),
            fitter,
            learned: 0,
        }
    }

    /// Compares an iteration with planned shares, with even ones, and without its tail, as the service does.
    fn compare(&mut self, reports: &[Report<'_>], choices: &Choices) {
        let time_s = |(report, batch): (&Report<'_>, &u64)| {
            let parts = report.parts();
            let has_base = parts.base > 0 && parts.base_s > 0.0;
            let (own, own_s) =
                if has_base { (parts.base, parts.base_s) } else { (report.batch, report.compute_time_s) };
            let curve = &self.workers[report.worker].curve;
            if *batch == own { own_s } else { curve.ratio(own, *batch).mean * own_s }
        };
        let with = |batches: &[u64]| reports.iter().zip(batches).map(time_s).fold(0.0, f64::max);
        let least_s = reports.iter().zip(&choices.even).map(time_s).fold(f64::INFINITY, f64::min);
        let took_s = reports.iter().map(Report::busy_s).fold(0.0, f64::max);
        let is_even = reports.iter().zip(&choices.even).all(|(report, even)| report.batch == *even);
        let used = match () {
            () if choices.is_hedged => Used::Neither,
            () if is_even => Used::Even,
            () if choices.is_held => Used::Neither,
            () => Used::Planned,
        };
        let planned_s = if choices.is_held || choices.is_hedged { with(&choices.planned) } else { took_s };
        let without_tail = if choices.is_held { &choices.even } else { &choices.planned };
        let tail = choices.is_hedged.then(|| (took_s, with(without_tail)));
        let size = (choices.even.iter().sum(), reports.len() as u64);
        let even_s = with(&choices.even);
        self.balance.observe(&Compared {
            planned_s,
            even_s,
            least_s,
            used,
            size,
            tail,
            iterations: 1.0,
            is_held: choices.is_held,
        });
        self.tail_balance.observe(tail, 1.0);
    }

    fn outlook(&self, worker: usize) -> WorkerOutlook {
        let curve = &self.workers[worker].curve;
        let measured = self.forecaster.forecast(&worker, None).map(|forecast| Measured {
            forecast,
            curve: curve.curve_at(forecast.speed),
            largest: self.workers[worker].largest,
        });
        WorkerOutlook { measured, floor: self.settings.quantum, cap: None }
    }

    fn scenarios(&self, present: &[usize]) -> Scenarios {
        let residuals: Vec<Option<Residuals<'_>>> =
            present.iter().map(|worker| Some(self.forecaster.residuals(worker))).collect();
        let pauses: Vec<Option<Residuals<'_>>> =
            present.iter().map(|worker| Some(self.forecaster.pauses(worker))).collect();
        Scenarios::joined(&residuals).with_pauses(&pauses)
    }

    fn hedged(
        &self,
        present: &[usize],
        outlooks: &[WorkerOutlook],
        batches: &[u64],
        scenarios: &Scenarios,
    ) -> Option<Hedged> {
        let shares: Vec<SplitWorker> = outlooks.iter().map(WorkerOutlook::share).collect::<Option<_>>()?;
        let terms = Terms {
            cost: CLAIM,
            min_chunk: self.settings.quantum,
            quantum: self.settings.quantum,
            pool_max: POOL_MAX,
        };
        let costs: Vec<Option<ChunkCost>> =
            present.iter().map(|worker| Some(self.workers[*worker].chunks)).collect();
        hedge(batches, &shares, &costs, scenarios, &terms)
    }

    /// Returns the readings known just before the next iteration: the drivers and the barrier wait.
    fn readings(&self, report: &Report<'_>) -> Vec<Option<f64>> {
        let mut readings = report.drivers.to_vec();
        readings.resize(self.drivers.len() - 1, None);
        readings.push(Some(report.barrier_wait_s));
        readings
    }

    /// Stores reports for the networks, and runs the fits that are due.
    fn refit(&mut self, reports: &[Report<'_>]) {
        for report in reports {
            let readings = self.readings(report);
            let known = &mut self.workers[report.worker];
            if known.reports.len() == TRAINING_ROWS_MAX {
                known.reports.pop_front();
            }
            let (iteration, parts) = (self.learned, report.parts());
            known.reports.push_back(StoredReport { iteration, parts, readings });
        }
        let mut due = Vec::new();
        for (worker, known) in self.workers.iter_mut().enumerate() {
            let observations = self.forecaster.observations(&worker);
            if observations >= known.fitted_at + REFIT_OBSERVATIONS {
                known.fitted_at = observations;
                due.push(worker);
            }
        }
        if due.is_empty() {
            return;
        }
        let training = |worker: &usize| {
            let mut training = self.workers[*worker].training(&self.drivers);
            if let Some(network) = self.forecaster.network(worker) {
                training.start_from(network.clone());
            }
            training
        };
        let trainings: Vec<Training> = due.iter().map(training).collect();
        for (worker, network) in due.iter().zip((self.fitter)(&trainings)) {
            if let Some(network) = network {
                self.forecaster.install(worker, network);
            }
        }
    }
}

impl WorkerState {
    /// Builds the training data of a network with the current curve.
    fn training(&self, drivers: &DriverSet) -> Training {
        let mut training = Training::new(drivers, false);
        for kept in &self.reports {
            if let Some(seen) = kept.parts.observation(&self.curve) {
                training.observe(kept.iteration, &seen);
            }
            training.boundary(&kept.readings);
        }
        training
    }
}

impl Policy for Evenstep<'_> {
    fn shares(&mut self, _iteration: usize, present: &[usize]) -> Result<Shares, SimulateError> {
        let outlooks: Vec<WorkerOutlook> = present.iter().map(|worker| self.outlook(*worker)).collect();
        let in_force = self.in_force.as_ref().filter(|(workers, _)| workers == present);
        let in_force = in_force.map(|(_, in_force)| in_force);
        let rules = Rules {
            global_batch: self.settings.global_batch,
            quantum: self.settings.quantum,
            sizes: Sizes::Any,
            min_gain: MIN_GAIN,
            iterations: 1.0,
        };
        let scenarios = self.scenarios(present);
        let plan = plan(&outlooks, &scenarios, in_force, &rules)?;
        self.in_force = Some((present.to_vec(), plan.in_force()));
        let hold = self.balance.held().and_then(|loss| plan.hold_even(loss));
        let (even, planned, is_held) = (plan.even.clone(), plan.batches.clone(), hold.is_some());
        let plan = hold.unwrap_or(plan);
        let hedges = self.hedges && !self.tail_balance.is_paused();
        let hedged = hedges.then(|| self.hedged(present, &outlooks, &plan.batches, &scenarios)).flatten();
        self.choices.push_back(Choices { even, planned, is_held, is_hedged: hedged.is_some() });
        Ok(hedged.map_or(Shares::Given(plan.batches), Shares::Hedged))
    }

    /// Ignores the first report of a worker, as the service does: a first iteration allocates, compiles and
    /// warms caches.
    fn learn(&mut self, reports: &[Report<'_>]) {
        let mut outcomes = Vec::with_capacity(reports.len());
        let mut news = Vec::with_capacity(reports.len());
        for report in reports {
            let known = &mut self.workers[report.worker];
            if std::mem::replace(&mut known.reported, true) {
                news.push(report);
                let parts = report.parts();
                let forecast = self.forecaster.forecast(&report.worker, None).map(|forecast| forecast.speed);
                parts.measure(&mut known.curve, forecast);
                known.chunks.observe(&parts);
                known.largest = known.largest.max(report.batch);
                outcomes.extend(parts.observation(&known.curve).map(|seen| (report.worker, seen)));
            }
        }
        let news_count = news.len();
        self.forecaster.observe_iteration(self.learned, &outcomes);
        for report in news {
            self.forecaster.boundary(&report.worker, &self.readings(report));
        }
        if !reports.is_empty()
            && let Some(choices) = self.choices.pop_front()
            && news_count == reports.len()
        {
            self.compare(reports, &choices);
        }
        if self.settings.networks {
            self.refit(reports);
        }
        self.learned += 1;
    }
}
