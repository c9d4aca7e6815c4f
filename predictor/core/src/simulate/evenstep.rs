//! The service's own way: its forecasts, its networks, its plans.

use super::SimulateError;
use super::policy::{Policy, Report, Settings};
use super::world::{BARRIER_WAIT, World};
use crate::forecast::batch::Narx;
use crate::forecast::nonlinear::{FittedExpert, Training};
use crate::forecast::{ExpertKind, JobForecaster};
use crate::plan::{InForce, Rules, WorkerOutlook, plan};
use crate::series::{DriverSet, Observation};

/// New observations after which a worker's network is fitted again, as in the service.
const REFIT_OBSERVATIONS: u64 = 200;

/// Fits networks, in the order given; where one cannot be fitted there is none.
pub type Fitter<'a> = &'a (dyn Fn(&[&Training]) -> Vec<Option<FittedExpert>> + Sync);

/// Fits one network, as the service does.
pub fn fit_one(training: &Training) -> Option<FittedExpert> {
    training.fit(&Narx::refit()).ok()
}

pub(super) struct Evenstep<'a> {
    settings: Settings,
    forecaster: JobForecaster<usize>,
    workers: Vec<Known>,
    in_force: Option<(Vec<usize>, InForce)>,
    fitter: Fitter<'a>,
}

/// What is kept of a worker beside its models.
struct Known {
    reported: bool,
    fitted_at: u64,
    training: Training,
}

impl<'a> Evenstep<'a> {
    pub fn new(world: &World, settings: &Settings, fitter: Fitter<'a>) -> Self {
        let drivers = DriverSet::new(world.drivers.iter().map(String::as_str).chain([BARRIER_WAIT]));
        let known = |_| Known { reported: false, fitted_at: 0, training: Training::new(&drivers) };
        Self {
            settings: *settings,
            workers: (0..world.workers.len()).map(known).collect(),
            forecaster: JobForecaster::with(drivers.clone(), ExpertKind::roster(&drivers), settings.loss),
            in_force: None,
            fitter,
        }
    }

    /// Fits the networks that are due.
    fn refit(&mut self) {
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
        let trainings: Vec<&Training> = due.iter().map(|worker| &self.workers[*worker].training).collect();
        for (worker, network) in due.iter().zip((self.fitter)(&trainings)) {
            if let Some(network) = network {
                self.forecaster.install(worker, network);
            }
        }
    }
}

impl Policy for Evenstep<'_> {
    fn shares(&mut self, _iteration: usize, present: &[usize]) -> Result<Vec<u64>, SimulateError> {
        let Settings { global_batch, quantum, min_gain, .. } = self.settings;
        let outlook = |worker: &usize| WorkerOutlook {
            forecast: self.forecaster.forecast(worker, None),
            floor: quantum,
            cap: None,
        };
        let outlooks: Vec<WorkerOutlook> = present.iter().map(outlook).collect();
        let in_force = self.in_force.as_ref().filter(|(workers, _)| workers == present);
        let rules = Rules { global_batch, quantum, min_gain };
        let plan = plan(&outlooks, in_force.map(|(_, in_force)| in_force), rules)?;
        let batches = plan.batches.clone();
        self.in_force = Some((present.to_vec(), InForce { batches: plan.batches, speeds: plan.speeds }));
        Ok(batches)
    }

    /// As in the service, the first report of a worker is left out: a first iteration allocates, compiles and warms caches.
    fn learn(&mut self, reports: &[Report<'_>]) {
        let mut outcomes = Vec::with_capacity(reports.len());
        let mut news = Vec::with_capacity(reports.len());
        for report in reports {
            let known = &mut self.workers[report.worker];
            if std::mem::replace(&mut known.reported, true) {
                news.push(report);
                if let Some(seen) = Observation::new(report.batch as f64, report.compute_time_s) {
                    outcomes.push((report.worker, seen));
                    if self.settings.networks {
                        known.training.observe(&seen);
                    }
                }
            }
        }
        self.forecaster.observe(&outcomes);
        for report in news {
            let mut readings = report.drivers.to_vec();
            readings.resize(self.forecaster.drivers().len() - 1, None);
            readings.push(Some(report.barrier_wait_s));
            self.forecaster.boundary(&report.worker, &readings);
            if self.settings.networks {
                self.workers[report.worker].training.boundary(&readings);
            }
        }
        if self.settings.networks {
            self.refit();
        }
    }
}
