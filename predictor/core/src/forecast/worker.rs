//! The forecaster of one worker: experts, their mix, and the interval.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::arx::{ArxInputs, ArxSettings, PooledArx, PooledRow, PooledWorker};
use super::change::{ChangePoint, Lead, Move};
use super::expert::{Expert, ExpertKind, Inputs, Next};
use super::inputs::History;
use super::interval::AdaptiveInterval;
use super::missing_readings::Prepared;
use super::mix::Mix;
use super::nonlinear::FittedExpert;
use super::value::{COVERAGE, ExpertRecord, Forecast};
use crate::series::{COUNT_MAX, DriverSet, LEARNABLE, LOG_SPEED_MAX, Observation};

/// Share of an earlier worker's evidence that a new worker starts with. It is enough to skip the first
/// hundred iterations, and small enough that differences are learned quickly.
const WARM_START_TRUST: f64 = 0.1;

/// State of one measured worker. It is created with the first observation, so a forecast always exists.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerForecaster {
    history: History,
    /// Inputs of the ARX models, one for each base that they deviate from.
    inputs: Vec<ArxInputs>,
    experts: Vec<(ExpertKind, Expert)>,
    mix: Mix,
    /// Whether the forecast follows the change point instead of the mix.
    lead: Lead,
    /// The latest number of samples.
    batch: f64,
    /// The latest observation if it was a jump: the next one tells whether it lasts.
    jump: Option<Jump>,
    interval: AdaptiveInterval,
    observations: u64,
    /// Forecasts of the next iteration with the batch of the latest one. `None` after a change of what they depend on.
    #[serde(skip)]
    usual: Option<Usual>,
    /// Memory for the next ones.
    #[serde(skip)]
    spare: Option<Usual>,
}

/// An observation far from its forecast.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Jump {
    iteration: u64,
    log_speed: f64,
    /// Seconds that the iteration took longer than forecast.
    excess_s: f64,
}

/// An iteration of a worker to learn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lesson<'a> {
    pub iteration: u64,
    pub observation: &'a Observation,
    /// Slope of the loss at the forecast; `None` for squared error.
    pub slope: Option<f64>,
    /// Whether the experts are scored, and the pooled model learns.
    pub is_scored: bool,
}

/// Forecasts of the next iteration with one batch, computed once for all readers: a request reads them several times, and
/// the models of many workers do not fit into the caches of a processor.
#[derive(Debug, Clone, Default)]
struct Usual {
    next: Next,
    /// By expert, in log speed.
    experts: Vec<f64>,
    /// Number of updates of the pool that the forecasts of pooled experts are from.
    pool_updates: u64,
    mixed: f64,
}

impl WorkerForecaster {
    pub fn new(roster: &[ExpertKind], drivers: &DriverSet, pool: &PooledArx, first: &Observation) -> Self {
        let log_speed = first.speed().ln();
        let expert = |kind: &ExpertKind| Some((*kind, Expert::new(*kind, drivers, pool, log_speed)?));
        let experts: Vec<(ExpertKind, Expert)> = roster.iter().filter_map(expert).collect();
        Self {
            history: History::new(log_speed, first.batch),
            inputs: inputs(roster, drivers, log_speed),
            batch: first.batch,
            mix: Mix::new(&experts.iter().map(|(kind, _)| kind.prior()).collect::<Vec<_>>()),
            experts,
            lead: Lead::new(),
            jump: None,
            interval: AdaptiveInterval::new(COVERAGE),
            observations: 1,
            usual: None,
            spare: None,
        }
    }

    /// Whether stored models of a worker are usable with this pooled model; see [`Expert::is_valid`].
    pub fn is_valid(&self, drivers: &DriverSet, pool: Option<&PooledArx>) -> bool {
        let is_valid =
            |(kind, expert): &(ExpertKind, Expert)| kind.is_valid() && expert.is_valid(*kind, drivers, pool);
        let has_inputs = |settings: &ArxSettings| self.inputs.iter().any(|inputs| inputs.serves(settings));
        self.history.is_valid()
            && self.inputs.len() <= self.experts.len()
            && self.inputs.iter().all(|inputs| inputs.is_valid(drivers))
            && self
                .experts
                .iter()
                .filter_map(|(kind, _)| kind.own_arx())
                .all(|settings| has_inputs(&settings))
            && self.interval.is_valid()
            && self.lead.is_valid()
            && self.jump.is_none_or(|jump| jump.is_valid())
            && LEARNABLE.contains(&self.batch)
            && self.observations <= COUNT_MAX
            && !self.experts.is_empty()
            && self.experts.iter().all(is_valid)
            && self.mix.is_valid(self.experts.len())
    }

    /// Adds a fitted network to the experts, or replaces the previous one. Its weight follows from its error on held-out rows.
    pub fn install(&mut self, network: FittedExpert) {
        self.usual = None;
        let evidence = network.evidence(self.interval.residuals());
        let network = Expert::Narx(Box::new(network));
        let at = self.experts.iter().position(|(kind, _)| *kind == ExpertKind::Narx);
        match at.and_then(|at| self.experts.get_mut(at)) {
            Some((_, expert)) => *expert = network,
            None => {
                self.experts.push((ExpertKind::Narx, network));
                self.mix.add_expert();
            }
        }
        self.mix.judge(at.unwrap_or(self.experts.len() - 1), evidence);
    }

    /// Returns the fitted network.
    pub fn network(&self) -> Option<&FittedExpert> {
        self.experts.iter().find_map(|(_, expert)| match expert {
            Expert::Narx(network) => Some(&**network),
            _ => None,
        })
    }

    /// Sets the drivers read before the next iteration.
    pub fn boundary(&mut self, pool: &PooledArx, drivers: &[Option<f64>]) {
        self.history.boundary(drivers);
        let spare = self.usual.take().or(self.spare.take());
        self.usual = Some(self.next(pool, self.history.batch(), spare.unwrap_or_default()));
    }

    /// Computes the forecasts of the next iteration.
    fn next(&self, pool: &PooledArx, batch: f64, mut usual: Usual) -> Usual {
        let next = &mut usual.next;
        next.batch = batch;
        next.has_own = self.has_own(pool);
        if next.has_own {
            next.own.resize_with(self.inputs.len(), Prepared::default);
            for (inputs, prepared) in self.inputs.iter().zip(&mut next.own) {
                inputs.prepare(&self.history, batch, prepared);
            }
        }
        if let Some(share) = self.pooled() {
            pool.prepare(share, &self.history, batch, next.pooled.get_or_insert_default());
        }
        self.forecast_next(pool, &mut usual);
        usual
    }

    fn pooled(&self) -> Option<&PooledWorker> {
        self.experts.iter().find_map(|(_, expert)| match expert {
            Expert::Pooled(share) => Some(&**share),
            _ => None,
        })
    }

    /// Whether the worker's own ARX models forecast and learn.
    fn has_own(&self, pool: &PooledArx) -> bool {
        !(pool.is_alone() && self.pooled().is_some())
    }

    /// Computes the forecasts from the inputs.
    fn forecast_next(&self, pool: &PooledArx, usual: &mut Usual) {
        let Usual { next, experts, .. } = usual;
        if let Some((share, prepared)) = self.pooled().zip(next.pooled.as_ref()) {
            next.pooled_forecast = pool.predict(share, prepared, &self.history);
        }
        let next = &*next;
        let forecast = |(kind, expert): &(ExpertKind, Expert)| {
            expert.predict(&self.history, inputs_of(&self.inputs, next, *kind), next)
        };
        experts.clear();
        experts.extend(self.experts.iter().map(forecast));
        usual.mixed = self.combine(&usual.experts);
        usual.pool_updates = pool.updates();
    }

    /// Prepares the next iteration of `batch` samples: returns the forecast of its log speed. Afterwards [`Self::observe`] learns it.
    pub fn expect(&mut self, pool: &PooledArx, batch: f64) -> f64 {
        let usual = match self.usual.take() {
            Some(usual) if usual.is_for(pool, batch) && usual.next.has_own == self.has_own(pool) => usual,
            Some(usual) if usual.next.has_own != self.has_own(pool) => self.next(pool, batch, usual),
            Some(mut usual) => {
                usual.next.batch = batch;
                for (inputs, prepared) in self.inputs.iter().zip(&mut usual.next.own) {
                    inputs.set_batch(prepared, &self.history, batch);
                }
                if let Some((share, prepared)) = self.pooled().zip(usual.next.pooled.as_mut()) {
                    pool.set_batch(share, prepared, &self.history, batch);
                }
                self.forecast_next(pool, &mut usual);
                usual
            }
            None => {
                let spare = self.spare.take().unwrap_or_default();
                self.next(pool, batch, spare)
            }
        };
        let mixed = usual.mixed;
        self.usual = Some(usual);
        mixed
    }

    pub fn combine(&self, expected: &[f64]) -> f64 {
        let mixed = self.mix.combine(expected);
        match self.change_at().and_then(|at| expected.get(at)) {
            Some(level) => mixed + self.lead.weight() * (level - mixed),
            None => mixed,
        }
    }

    fn change_at(&self) -> Option<usize> {
        self.experts.iter().position(|(kind, _)| *kind == ExpertKind::ChangePoint)
    }

    fn change_point(&mut self) -> Option<&mut ChangePoint> {
        self.experts.iter_mut().find_map(|(_, expert)| match expert {
            Expert::ChangePoint(change) => Some(change),
            _ => None,
        })
    }

    /// Follows a jump at once. Averages do not learn from it before the next observation has confirmed it, so that a pause leaves
    /// no trace in them. Returns whether the observation is a jump that may be over in the next iteration.
    fn follow(&mut self, expected: &[f64], iteration: u64, observation: &Observation) -> bool {
        let log_speed = observation.speed().ln();
        let residual = log_speed - self.combine(expected);
        let mix_residual = log_speed - self.mix.combine(expected);
        let Some(own) = self.change_at().and_then(|at| expected.get(at)) else {
            self.interval.score(iteration, residual);
            return false;
        };
        let own_residual = log_speed - own;
        let batch_change = (observation.batch / self.batch).ln();
        self.batch = observation.batch;
        let Some(change) = self.change_point() else { return false };
        let (deviation, before) = (change.deviation(), change.level());
        let (is_missed, is_mix_wrong) =
            (change.is_jump(residual, batch_change), change.is_jump(mix_residual, batch_change));
        let moved = change.update(log_speed, batch_change);
        let is_followed = moved != Move::Stays && change.level() != before;
        let was_jump = self.jump.take();
        self.lead.compare(own_residual / deviation, mix_residual / deviation);
        // A jump that the change point does not follow either is probably a pause.
        if is_mix_wrong && (is_followed || was_jump.is_some()) {
            self.lead.take();
        }
        match (moved, was_jump) {
            (Move::Returns, Some(jump)) => self.interval.pause(jump.iteration, jump.excess_s),
            (_, Some(_)) | (Move::Returns, None) if is_mix_wrong => self.interval.restart(),
            _ => {}
        }
        // The size of a jump is not the size of an error.
        if !is_missed || moved == Move::Stays && was_jump.is_none() {
            self.interval.score(iteration, residual);
        }
        let is_open = moved == Move::Leaves && is_mix_wrong;
        if is_open {
            let excess_s = observation.compute_time_s * (1.0 - residual.min(0.0).exp());
            self.jump = Some(Jump { iteration, log_speed, excess_s });
        }
        is_open
    }

    /// Scores the forecasts by squared error or by a loss with this slope, then updates the worker's own models. Returns the
    /// row for the model that all workers share, if it learns from this iteration.
    pub fn observe(&mut self, pool: &PooledArx, lesson: Lesson<'_>) -> Option<PooledRow> {
        let batch = lesson.observation.batch;
        let usual = self.usual.take().filter(|usual| usual.is_for(pool, batch));
        let mut usual = match usual {
            Some(usual) => usual,
            None => self.next(pool, batch, Usual::default()),
        };
        let row = self.learn(pool, &mut usual, lesson);
        self.spare = Some(usual);
        row
    }

    fn learn(&mut self, pool: &PooledArx, usual: &mut Usual, lesson: Lesson<'_>) -> Option<PooledRow> {
        let Lesson { iteration, observation, slope, is_scored } = lesson;
        let Usual { next, experts: expected, .. } = usual;
        self.observations += 1;
        let log_speed = observation.speed().ln();
        if self.follow(expected, iteration, observation) {
            return None;
        }
        match slope {
            // The averages follow a jump, each in its own time; that is no record.
            _ if self.lead.leads() || !is_scored => {}
            Some(slope) => self.mix.score_by(expected, log_speed, slope),
            None => self.mix.score(expected, log_speed),
        }
        for (kind, expert) in &mut self.experts {
            expert.update(inputs_of(&self.inputs, next, *kind), log_speed);
        }
        if next.has_own {
            let prepared = self.inputs.iter_mut().zip(&mut next.own);
            prepared.for_each(|(inputs, prepared)| inputs.learn(prepared, log_speed));
        } else {
            self.inputs.iter_mut().for_each(|inputs| inputs.follow(log_speed));
        }
        let share = self.experts.iter_mut().find_map(|(_, expert)| match expert {
            Expert::Pooled(share) => Some(share),
            _ => None,
        });
        let row = share.zip(next.pooled.as_mut()).map(|(share, prepared)| {
            let target = pool.observe(share, prepared, log_speed);
            is_scored.then(|| PooledRow { inputs: prepared.inputs.clone(), target })
        });
        self.history.observe(log_speed, observation.batch);
        row.flatten()
    }

    pub fn observations(&self) -> u64 {
        self.observations
    }

    pub fn forecast(&self, pool: &PooledArx, batch: Option<f64>) -> Forecast {
        let batch = batch.unwrap_or(self.history.batch());
        self.interval_around(self.usual(pool, batch).mixed)
    }

    /// Returns the forecasts of the next iteration of `batch` samples.
    fn usual(&self, pool: &PooledArx, batch: f64) -> Cow<'_, Usual> {
        match self.usual.as_ref().filter(|usual| usual.is_for(pool, batch)) {
            Some(usual) => Cow::Borrowed(usual),
            None => Cow::Owned(self.next(pool, batch, Usual::default())),
        }
    }

    fn interval_around(&self, log_speed: f64) -> Forecast {
        let half_width = self.interval.half_width();
        Forecast {
            speed: log_speed.exp(),
            lower: (log_speed - half_width).exp(),
            upper: (log_speed + half_width).exp(),
        }
    }

    /// Returns the pauses of the latest iterations, in seconds, with their iterations, oldest first.
    pub fn pauses(&self) -> &[(u64, f64)] {
        self.interval.pauses()
    }

    /// Returns the residuals of the latest forecasts in log speed (actual minus forecast) with their iterations, oldest
    /// first.
    pub fn residuals(&self) -> &[(u64, f64)] {
        self.interval.residuals()
    }

    pub fn records(&self, pool: &PooledArx) -> Vec<ExpertRecord> {
        let usual = self.usual(pool, self.history.batch());
        let record = |(i, (kind, _)): (usize, &(ExpertKind, Expert))| ExpertRecord {
            name: kind.to_string(),
            speed: usual.experts[i].exp(),
            weight: self.weight(i),
            log_rmse: self.mix.log_rmse(i),
        };
        self.experts.iter().enumerate().map(record).collect()
    }

    /// Returns the weight of an expert in the forecast.
    fn weight(&self, i: usize) -> f64 {
        let lead = self.change_at().map_or(0.0, |_| self.lead.weight());
        let own = if self.change_at() == Some(i) { lead } else { 0.0 };
        (1.0 - lead) * self.mix.weights()[i] + own
    }

    pub fn last_speed(&self) -> f64 {
        self.jump.map_or(self.history.last(), |jump| jump.log_speed).exp()
    }

    /// Starts from an earlier worker's models; the level remains the worker's own.
    pub fn warm_start(&mut self, earlier: &Self) {
        self.usual = None;
        // A network is fitted to one worker, so it is not transferred; only the experts before it are.
        self.mix.warm_start(&earlier.mix);
        self.lead = earlier.lead;
        for (inputs, earlier) in self.inputs.iter_mut().zip(&earlier.inputs) {
            inputs.warm_start(earlier);
        }
        for (kind, expert) in &mut self.experts {
            if let Some((_, earlier)) = earlier.experts.iter().find(|(other, _)| other == kind) {
                expert.warm_start(earlier, WARM_START_TRUST);
            }
        }
    }
}

impl Usual {
    /// Whether these are the forecasts with this batch and the present pool.
    fn is_for(&self, pool: &PooledArx, batch: f64) -> bool {
        self.next.batch.to_bits() == batch.to_bits() && self.pool_updates == pool.updates()
    }
}

/// Returns the inputs of the ARX models among these experts.
fn inputs(roster: &[ExpertKind], drivers: &DriverSet, first: f64) -> Vec<ArxInputs> {
    let mut all: Vec<ArxSettings> = roster.iter().filter_map(|kind| kind.own_arx()).collect();
    all.sort_by_key(|settings| std::cmp::Reverse(settings.groups));
    let mut inputs: Vec<ArxInputs> = Vec::new();
    for settings in all {
        if !inputs.iter().any(|inputs| inputs.serves(&settings)) {
            inputs.push(ArxInputs::new(&settings, drivers, first));
        }
    }
    inputs
}

/// Returns the inputs of an expert.
fn inputs_of<'a>(inputs: &'a [ArxInputs], next: &'a Next, kind: ExpertKind) -> Inputs<'a> {
    let settings = kind.own_arx().filter(|_| next.has_own)?;
    inputs.iter().zip(&next.own).find(|(inputs, _)| inputs.serves(&settings))
}

impl Jump {
    fn is_valid(&self) -> bool {
        self.log_speed.abs() <= LOG_SPEED_MAX && self.excess_s.abs() <= *LEARNABLE.end()
    }
}
