//! The models of a job's workers.

mod ahead;
mod learn;

pub use ahead::Ahead;

use std::collections::BTreeMap;
use std::sync::Arc;

use evenstep_protocol::{WorkerId, driver};
use serde::{Deserialize, Serialize};

use super::balance::{Balance, ITERATIONS_MAX, TailBalance};
use super::open::{Closed, OpenIterations};
use super::plans::PlannedWork;
use super::report::drivers;
use super::work::Work;
use super::worker::WorkerModel;
use crate::curve::{Curve, CurveLearner, Uncertain};
use crate::forecast::nonlinear::FittedExpert;
use crate::forecast::{self, Earlier, Forecast, JobForecaster};
use crate::hedge::ClaimCost;
use crate::hedge::learner::CLAIM_FIRST_S;
use crate::learning_rate::GradientNorms;
use crate::shared::SharedMap;

/// Time that a counter is busy with one addition, in seconds, unless a claim takes less: 50,000 claims per
/// second. One store on loopback handles more.
const CLAIM_BUSY_S: f64 = 2e-5;

/// Approximate memory of the models of one worker, in bytes.
const MODEL_BYTES: u64 = 56 << 10;

/// The forecaster of a job and the models of its workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Models {
    forecaster: JobForecaster<WorkerId>,
    workers: SharedMap<WorkerId, WorkerModel>,
    open: OpenIterations,
    /// Number of planned iterations whose shares varied to learn batch curves.
    probes: u64,
    /// The latest planned iteration whose shares varied on purpose.
    newest_probe: Option<u64>,
    /// Number of iterations that were learned.
    learned: u64,
    /// The first of them whose shares again follow forecasts that the latest probe did not disturb.
    undisturbed: u64,
    /// The work of a sample.
    work: Work,
    /// Gains and losses of planned shares.
    balance: Balance,
    /// Gains and losses of tails.
    tail_balance: TailBalance,
    /// Mean number of iterations that a reported one stands for.
    stride: f64,
    /// The latest iteration that was learned.
    newest_closed: Option<u64>,
    /// Number of changes since the models were created or read.
    #[serde(skip)]
    revision: u64,
}

/// The state of a worker's forecasts and its other models; either may be missing.
pub(super) type StoredWorker = (Option<Arc<forecast::Worker>>, Option<Arc<WorkerModel>>);

/// Results of learning that the models do not keep.
#[derive(Debug, Default)]
pub struct Learned<'a> {
    /// The iterations that were learned, in order.
    pub closed: Vec<Closed<'a>>,
    /// Gradient norms of complete iterations, in order.
    pub gradients: Vec<(u64, GradientNorms)>,
}

impl Default for Models {
    fn default() -> Self {
        Self::new()
    }
}

impl Models {
    /// Creates models without observations.
    pub fn new() -> Self {
        Self {
            forecaster: JobForecaster::new(drivers()),
            workers: SharedMap::default(),
            open: OpenIterations::default(),
            probes: 0,
            newest_probe: None,
            learned: 0,
            undisturbed: 0,
            work: Work::default(),
            balance: Balance::default(),
            tail_balance: TailBalance::default(),
            stride: 1.0,
            newest_closed: None,
            revision: 0,
        }
    }

    /// Whether stored models are usable: their parts belong together, and every number is in its range.
    pub(super) fn is_valid(&self) -> bool {
        self.forecaster.is_valid()
            && self.workers.values().all(WorkerModel::is_valid)
            && self.open.is_valid()
            && self.work.is_valid()
            && self.balance.is_valid()
            && self.tail_balance.is_valid()
            && (1.0..=ITERATIONS_MAX).contains(&self.stride)
    }

    /// Takes the models of all workers out, to store them in parts.
    pub(super) fn take_workers(&mut self) -> BTreeMap<WorkerId, StoredWorker> {
        let mut stored: BTreeMap<WorkerId, StoredWorker> = BTreeMap::new();
        for (worker, known) in self.forecaster.take_workers() {
            stored.entry(worker).or_default().0 = Some(known);
        }
        for (worker, known) in std::mem::take(&mut self.workers) {
            stored.entry(worker).or_default().1 = Some(known);
        }
        stored
    }

    /// Puts the stored models of a worker back.
    pub(super) fn put_worker(
        &mut self,
        worker: WorkerId,
        forecaster: Option<forecast::Worker>,
        model: Option<WorkerModel>,
    ) {
        if let Some(known) = forecaster {
            self.forecaster.put_worker(worker.clone(), known);
        }
        if let Some(known) = model {
            self.workers.insert(worker, known);
        }
    }

    /// Returns the forecaster.
    pub fn forecaster(&self) -> &JobForecaster<WorkerId> {
        &self.forecaster
    }

    /// Returns the models of a worker, except its forecast; `None` before its first report.
    pub fn worker(&self, worker: &WorkerId) -> Option<&WorkerModel> {
        self.workers.get(worker)
    }

    /// Returns the number of changes since the models were created or read. Equal numbers mean equal models.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the first iteration whose reports can still be learned.
    pub fn next_iteration(&self) -> u64 {
        self.open.next()
    }

    /// Returns a worker's forecast for the next iteration, in sample equivalents, and its curve (time over
    /// batch size) for micro-batches of this size.
    pub fn expected(&self, worker: &WorkerId, micro_batch: Option<u64>) -> Option<(Forecast, Curve)> {
        let forecast = self.forecaster.forecast(worker, None)?;
        Some((forecast, self.workers.get(worker)?.curve.curve_with(forecast.speed, micro_batch)))
    }

    /// Returns the cost of a claim: the mean over the workers.
    pub fn claim_cost(&self) -> ClaimCost {
        let sum: f64 = self.workers.values().map(|worker| worker.chunks.claim_s()).sum();
        let latency_s = if self.workers.len() == 0 { CLAIM_FIRST_S } else { sum / self.workers.len() as f64 };
        ClaimCost { latency_s, busy_s: latency_s.min(CLAIM_BUSY_S) }
    }

    /// Skips iterations before this one, whose reports are not known any more. What follows does not stand for them.
    pub fn skip_until(&mut self, iteration: u64) {
        if self.newest_closed.is_some_and(|newest| newest < iteration) {
            self.newest_closed = iteration.checked_sub(1);
        }
    }

    /// Sets the plan of an iteration, which tells whose reports to wait for and how to learn them.
    pub fn plan(&mut self, iteration: u64, work: PlannedWork) {
        self.revision += u64::from(self.open.plan(iteration, work));
    }

    /// Sets the plan of an iteration to the one that holds.
    pub fn repeat_plan(&mut self, iteration: u64) {
        self.open.repeat_plan(iteration);
    }

    /// Returns the iteration after all that were carried out; see `OpenIterations`.
    pub fn carried_out(&self) -> u64 {
        self.open.carried_out()
    }

    /// Returns the iteration after all that are closed or that some worker has reported.
    pub fn reported(&self) -> u64 {
        self.open.reported()
    }

    /// Counts a planned iteration whose shares vary on purpose, unless it was counted before. If it measures workers without
    /// samples, it is no probe.
    pub fn count_probe(&mut self, iteration: u64) {
        self.revision += 1;
        let planned = self.open.planned(iteration);
        let has_samples = |worker: &WorkerId| planned.is_some_and(|plan| plan.workers.contains_key(worker));
        let measured: Vec<WorkerId> =
            self.idle_before(iteration).filter(|worker| has_samples(worker)).cloned().collect();
        if self.newest_probe.is_none_or(|newest| iteration > newest) {
            self.newest_probe = Some(iteration);
            self.probes = self.probes.saturating_add(u64::from(measured.is_empty()));
        }
        for worker in measured {
            if let Some(known) = self.workers.get_mut(&worker) {
                known.see(iteration, true);
            }
        }
    }

    /// Returns the workers without samples by the plan before an iteration.
    pub fn idle_before(&self, iteration: u64) -> impl Iterator<Item = &WorkerId> {
        let before = iteration.checked_sub(1).and_then(|before| self.open.planned(before));
        before.into_iter().flat_map(|plan| &plan.idle).map(|(worker, _)| worker)
    }

    /// Returns the gains and losses of planned shares.
    pub fn balance(&self) -> &Balance {
        &self.balance
    }

    /// Returns the mean number of iterations that a reported one stands for.
    pub fn stride(&self) -> f64 {
        self.stride
    }

    /// Returns the gains and losses of tails.
    pub fn tail_balance(&self) -> &TailBalance {
        &self.tail_balance
    }

    /// Returns the number of iterations whose shares varied to learn batch curves, and of all that were learned.
    pub fn probes(&self) -> (u64, u64) {
        (self.probes, self.learned)
    }

    /// Returns the number of iterations whose shares vary on purpose and that are not learned yet.
    pub fn open_probes(&self) -> usize {
        self.open.probes()
    }

    /// Returns the models of these workers, which are in ascending order, as [`Self::worker`].
    pub(super) fn of(&self, workers: &[&WorkerId]) -> Vec<Option<&WorkerModel>> {
        self.workers.find(workers)
    }

    /// Returns the number of a worker's reports that each driver was missing from.
    pub fn missing(&self, worker: &WorkerId) -> BTreeMap<String, u64> {
        let counts = self.workers.get(worker).map(|known| &known.missing[..]).unwrap_or_default();
        let missing = driver::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
        missing.map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    /// Whether the worker has models.
    pub fn knows(&self, worker: &WorkerId) -> bool {
        self.workers.contains_key(worker)
    }

    /// Sets the starting point of an unmeasured worker: the models of a worker on the same kind of device.
    pub fn warm_start(&mut self, worker: &WorkerId, earlier: Earlier) {
        self.revision += 1;
        self.forecaster.warm_start(worker, earlier);
    }

    /// Returns the approximate memory of the models, of plans and of waiting reports, in bytes.
    pub fn bytes(&self) -> u64 {
        self.workers.len() as u64 * MODEL_BYTES + self.open.bytes()
    }

    /// Returns the number of observations of all workers.
    pub fn observations(&self) -> u64 {
        self.workers.keys().map(|worker| self.forecaster.observations(worker)).sum()
    }

    /// Returns up to `most` workers with `every` or more new observations since the last fit of their network, those with the
    /// most new ones, with their curves.
    pub fn due_refits(&mut self, every: u64, most: usize) -> Vec<(WorkerId, CurveLearner)> {
        let (mut due, mut again) = (Vec::new(), Vec::new());
        for (worker, known) in self.workers.keys().zip(self.workers.values()) {
            let observations = self.forecaster.observations(worker);
            let new = observations.checked_sub(known.fitted_at).unwrap_or_else(|| {
                again.push(worker.clone());
                observations
            });
            if new >= every {
                due.push((new, worker, &known.curve));
            }
        }
        due.sort_by_key(|(new, _, _)| std::cmp::Reverse(*new));
        let due =
            due.into_iter().take(most).map(|(_, worker, curve)| (worker.clone(), curve.clone())).collect();
        // The count of a worker that was away starts again.
        for worker in again {
            self.revision += 1;
            self.workers.get_mut(&worker).into_iter().for_each(|known| known.fitted_at = 0);
        }
        due
    }

    /// Records that the networks of these workers were fitted, or that no fit was possible.
    pub fn record_refits(&mut self, due: &[(WorkerId, CurveLearner)]) {
        for (worker, _) in due {
            if let Some(known) = self.workers.get_mut(worker) {
                self.revision += 1;
                known.fitted_at = self.forecaster.observations(worker);
            }
        }
    }

    /// Adds fitted networks to the experts of their workers.
    pub fn install(&mut self, networks: Vec<(WorkerId, FittedExpert)>) {
        for (worker, network) in networks {
            self.revision += 1;
            self.forecaster.install(&worker, network);
        }
    }
}

/// Returns the compute time of `to` samples over that of `from` samples of a worker with these models, under the same contention.
pub fn ratio(known: Option<&WorkerModel>, from: u64, to: u64) -> Uncertain {
    match known {
        Some(known) => known.curve.ratio(from, to),
        None => CurveLearner::new().ratio(from, to),
    }
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::WorkerReport;

    use super::*;
    use crate::attempts::Attempts;
    use crate::job::plans::{Choices, PlannedWorker};
    use crate::job::write_models;

    /// The budget for memory depends on this estimate.
    #[test]
    fn the_size_of_models_is_close_to_that_of_their_numbers() {
        let ids: Vec<WorkerId> =
            (0..8).map(|number| WorkerId::new(format!("node/{number}")).unwrap()).collect();
        let mut models = Models::new();
        for iteration in 0..200 {
            let planned = |id: &WorkerId| {
                (
                    id.clone(),
                    PlannedWorker {
                        joined: Some(1),
                        micro_batch: None,
                        choices: Choices { own: 8, even: 8, held: None, without_tail: None },
                    },
                )
            };
            let workers = ids.iter().map(planned).collect();
            models.plan(iteration, PlannedWork { workers, samples: 64, ..PlannedWork::default() });
            let drivers = evenstep_protocol::driver::ALL.map(|name| (name.to_owned(), iteration as f64));
            let report = |id: &WorkerId| WorkerReport {
                drivers: drivers.clone().into(),
                ..WorkerReport::new(id.clone(), iteration, 8 + iteration % 3, 0.1)
            };
            models.learn(&ids.iter().map(report).collect::<Vec<_>>(), &Attempts::default(), &BTreeMap::new());
        }
        let encoded = encoded(&models) as f64;
        let ratio = models.bytes() as f64 / encoded;
        assert!((0.8..2.0).contains(&ratio), "{ratio}: {encoded} bytes of 8 workers");
    }

    fn encoded(models: &Models) -> usize {
        write_models(models).map(|part| part.unwrap().len()).sum()
    }

    #[test]
    fn plans_and_waiting_reports_have_a_size() {
        let ids: Vec<WorkerId> =
            (0..8).map(|number| WorkerId::new(format!("node/{number}")).unwrap()).collect();
        let mut models = Models::new();
        let mut before = (models.bytes(), encoded(&models) as u64);
        for iteration in 0..4 {
            let planned = |id: &WorkerId| {
                (
                    id.clone(),
                    PlannedWorker {
                        joined: Some(iteration),
                        micro_batch: None,
                        choices: Choices { own: 8, even: 8, held: None, without_tail: None },
                    },
                )
            };
            let workers = ids.iter().map(planned).collect();
            models.plan(iteration, PlannedWork { workers, samples: 64, ..PlannedWork::default() });
            let drivers = evenstep_protocol::driver::ALL.map(|name| (name.to_owned(), 0.125));
            let report = |id: &WorkerId| WorkerReport {
                drivers: drivers.clone().into(),
                ..WorkerReport::new(id.clone(), iteration, 8, 0.1)
            };
            models.learn(
                &ids[1..].iter().map(report).collect::<Vec<_>>(),
                &Attempts::default(),
                &BTreeMap::new(),
            );
            let after = (models.bytes(), encoded(&models) as u64);
            let [grown, encoded] = [after.0 - before.0, after.1 - before.1];
            assert!((encoded..8 * encoded).contains(&grown), "{grown} bytes for {encoded} encoded bytes");
            before = after;
        }
    }

    /// The observation count of a worker that was away starts again, so its next network is due after as many
    /// observations.
    #[test]
    fn a_network_fit_is_due_after_n_observations_also_for_returning_workers() {
        let worker = WorkerId::new("node/0").unwrap();
        let mut models = Models::new();
        let mut newest = 0;
        let mut learn = |models: &mut Models, count: u64, joined: u64| {
            for iteration in newest..newest + count {
                let planned = PlannedWorker {
                    joined: Some(joined),
                    micro_batch: None,
                    choices: Choices { own: 8, even: 8, held: None, without_tail: None },
                };
                let workers = BTreeMap::from([(worker.clone(), planned)]);
                models.plan(iteration, PlannedWork { workers, samples: 64, ..PlannedWork::default() });
                models.learn(
                    &[WorkerReport::new(worker.clone(), iteration, 8, 0.1)],
                    &Attempts::default(),
                    &BTreeMap::new(),
                );
            }
            newest += count;
        };
        let due = |models: &mut Models| {
            let due = models.due_refits(20, 8);
            assert_eq!(models.due_refits(20, 8).len(), due.len(), "due until the fit is recorded");
            models.record_refits(&due);
            !due.is_empty()
        };
        learn(&mut models, 20, 1);
        assert!(!due(&mut models), "the first report is not used");
        learn(&mut models, 1, 1);
        assert!(due(&mut models) && !due(&mut models));
        learn(&mut models, 19, 3);
        assert!(!due(&mut models));
        learn(&mut models, 1, 3);
        assert!(due(&mut models), "20 observations after it rejoined");
    }
}
