//! Learns from the reports of iterations.

use std::borrow::Cow;
use std::collections::BTreeMap;

use evenstep_protocol::{WorkerId, WorkerReport};

use super::super::compare::compared;
use super::super::open::Closed;
use super::super::others::{Compared, others};
use super::super::plans::PlannedWorker;
use super::super::report::{gradient_norms, parts, readings, signs};
use super::super::state::WorkerState;
use super::super::worker::WorkerModel;
use super::{Learned, Models};
use crate::attempts::Attempts;
use crate::forecast::{Forecast, WIDE};
use crate::parallel::{self, Turns};
use crate::series::{LOG_SPEED_MAX, Observation};
use crate::straggler::{Pace, Vote};

/// Number of iterations after a probe whose forecasts it disturbs: the averages of the forecaster forget it by then.
const DISTURBED: u64 = 8;

/// Half widths of the interval of its forecast by which a speed surprises.
const SURPRISE: f64 = 1.5;

/// Weight of an iteration in the mean number of iterations that one stands for.
const STRIDE_WEIGHT: f64 = 0.1;

/// A report whose speed may be learned.
struct Usable<'a> {
    report: &'a WorkerReport,
    state: Option<&'a WorkerState>,
    readings: Vec<Option<f64>>,
    /// The observation in sample equivalents of the curve before it; `None` if no speed can be learned.
    before: Option<Observation>,
    /// Whether the worker may be slow.
    is_suspect: bool,
}

/// Usable reports, with the positions of their workers in the models.
type AllUsable<'a> = (Vec<usize>, Vec<Usable<'a>>);

impl Models {
    /// Learns from reports, in any order. Reports of incomplete iterations are kept; see `job::open`.
    ///
    /// Speeds are not learned from two kinds of reports:
    ///
    /// - The first report of a worker, since a first iteration allocates, compiles and warms caches.
    /// - A report that is not newer than the newest one of its worker.
    pub fn learn<'a>(
        &mut self,
        reports: &'a [WorkerReport],
        attempts: &Attempts,
        joined: &BTreeMap<WorkerId, WorkerState>,
    ) -> Learned<'a> {
        let mut learned = Learned::default();
        self.revision += u64::from(!reports.is_empty());
        for closed in self.open.take(reports) {
            self.learn_iteration(closed, attempts, joined, &mut learned);
        }
        learned
    }

    pub(super) fn learn_iteration<'a>(
        &mut self,
        closed: Closed<'a>,
        attempts: &Attempts,
        joined: &BTreeMap<WorkerId, WorkerState>,
        learned: &mut Learned<'a>,
    ) {
        let (iteration, reports) = (closed.iteration, &closed.reports);
        // Positions that a return skipped were no iterations.
        let skipped = attempts.first(iteration).saturating_sub(1);
        let since = self.newest_closed.map_or(1, |newest| iteration.saturating_sub(newest.max(skipped)));
        self.newest_closed = Some(iteration);
        if let Some(norms) =
            gradient_norms(reports.iter().map(|(report, _)| &**report)).filter(|_| closed.is_complete)
        {
            learned.gradients.push((iteration, norms));
        }
        self.learned = self.learned.saturating_add(1);
        if closed.is_probe {
            self.undisturbed = self.learned.saturating_add(1 + DISTURBED);
        }
        let (positions, usable) = self.take(reports, joined);
        let is_usable = usable.len() == reports.len();
        let workers: Vec<&WorkerId> = usable.iter().map(|one| &one.report.worker).collect();
        let forecasters = self.forecaster.positions(&workers);
        let seen = self.measure(&positions, &usable, &forecasters, &closed);
        let known = forecasters.iter().zip(seen).filter_map(|(at, seen)| Some((*at, seen?)));
        let (observed, seen): (Vec<usize>, Vec<Observation>) = known.unzip();
        self.forecaster.observe_at(iteration, &observed, &seen);
        let readings: Vec<&[Option<f64>]> = usable.iter().map(|one| &one.readings[..]).collect();
        self.forecaster.boundaries(&forecasters, &readings);
        // A first report includes costs of the start.
        if let Some(compared) = compared(self, &closed, since).filter(|_| is_usable) {
            self.balance.observe(&compared);
            self.tail_balance.observe(compared.tail, compared.iterations);
            self.stride += STRIDE_WEIGHT * (compared.iterations - self.stride);
        }
        learned.closed.push(closed);
    }

    /// Updates all models except the speed. Returns the reports that may be used to learn the speed.
    fn take<'a>(
        &mut self,
        reports: &'a [(Cow<'_, WorkerReport>, Option<PlannedWorker>)],
        joined: &'a BTreeMap<WorkerId, WorkerState>,
    ) -> AllUsable<'a> {
        let workers: Vec<&WorkerId> = reports.iter().map(|(report, _)| &report.worker).collect();
        let positions = self.workers.positions(&workers, WorkerModel::default);
        let states = parallel::find(joined, &workers);
        let given: Vec<_> = reports.iter().zip(states).collect();
        let drivers = self.forecaster.drivers();
        let taken = self.workers.update(&positions, &given, |known, ((report, planned), state)| {
            let newest = known.newest;
            let is_new = newest.is_none_or(|newest| report.iteration > newest);
            let readings = readings(drivers, report);
            let is_other = is_new && known.take(report, *planned, *state, &readings);
            let usable = (is_new && newest.is_some()).then(|| Usable {
                report,
                state: *state,
                readings,
                before: parts(report).observation(&known.curve),
                is_suspect: known.watch.suspects(),
            });
            (usable, is_other)
        });
        let (mut places, mut usable) = (Vec::new(), Vec::with_capacity(taken.len()));
        for ((position, worker), (one, is_other)) in positions.into_iter().zip(workers).zip(taken) {
            if is_other {
                self.forecaster.age(worker);
            }
            if let Some(one) = one {
                places.push(position);
                usable.push(one);
            }
        }
        (places, usable)
    }

    /// Updates the curves with the reports of an iteration. Returns the observations in sample equivalents of the curves.
    fn measure(
        &mut self,
        positions: &[usize],
        usable: &[Usable<'_>],
        forecasters: &[usize],
        closed: &Closed<'_>,
    ) -> Vec<Option<Observation>> {
        let is_disturbed = self.learned < self.undisturbed;
        let work = self.work.log();
        // The shares of a probe do not follow forecasts. If the curve was not known, its speeds change with the shares, and
        // so do the forecasts after it.
        let last = self.forecaster.forecasts(forecasters);
        let mut observations: Vec<Option<Observation>> = usable.iter().map(|one| one.before).collect();
        // A probe is there to learn from it.
        let learned = if closed.is_probe { vec![true; usable.len()] } else { self.turns(usable, &last) };
        let learned: Vec<usize> =
            (0..usable.len()).filter(|rank| learned[*rank] && observations[*rank].is_some()).collect();
        let lesson = |rank: &usize| {
            (usable[*rank].report, last[*rank].filter(|_| !is_disturbed).map(|forecast| forecast.speed))
        };
        let lessons: Vec<_> = learned.iter().map(lesson).collect();
        let places: Vec<usize> = learned.iter().map(|rank| positions[*rank]).collect();
        let measured = self.workers.update(&places, &lessons, |known, (report, forecast)| {
            let parts = parts(report);
            known.measure(&parts, *forecast);
            let observation = parts.observation(&known.curve)?;
            let pace = Pace {
                iteration: report.iteration,
                log_speed: (observation.speed().ln() + work).clamp(-LOG_SPEED_MAX, LOG_SPEED_MAX),
                samples: parts.units(),
                compute_s: report.compute_time_s,
                readings: signs(report),
            };
            let own = known.watch.ratio_to_best(&pace, &known.curve);
            Some((observation, pace, own, known.watch.vote(&pace, own)))
        });
        let mut compared = Vec::new();
        for (rank, measured) in learned.into_iter().zip(measured) {
            observations[rank] = measured.map(|(observation, ..)| observation);
            if let Some((_, pace, own, vote)) = measured {
                compared.push(Compared { at: positions[rank], state: usable[rank].state, pace, own, vote });
            }
        }
        self.watch(&compared, closed.is_complete);
        observations
    }

    /// Returns which of these workers teach their curves and are compared with each other: all, unless there are very many. Then
    /// all have their turns, and those that may be slow, or surprise, have more of them.
    fn turns(&self, usable: &[Usable<'_>], last: &[Option<Forecast>]) -> Vec<bool> {
        if usable.len() <= WIDE {
            return vec![true; usable.len()];
        }
        let is_special = |(one, forecast): (&Usable<'_>, &Option<Forecast>)| {
            let Some(forecast) = forecast else { return true };
            let surprises = |seen: Observation| {
                (seen.speed() / forecast.speed).ln().abs() > SURPRISE * (forecast.upper / forecast.speed).ln()
            };
            one.is_suspect || one.before.is_some_and(surprises)
        };
        let special: Vec<bool> = usable.iter().zip(last).map(is_special).collect();
        let count = special.iter().filter(|special| **special).count();
        let [first, others] = [count, usable.len()].map(|of| Turns::new(of, WIDE / 2, self.learned));
        let mut at = 0;
        let has_turn = |(rank, is_special): (usize, bool)| {
            at += usize::from(is_special);
            others.has(rank) || is_special && first.has(at - 1)
        };
        special.into_iter().enumerate().map(has_turn).collect()
    }

    /// Looks for stragglers among the workers of an iteration.
    fn watch(&mut self, compared: &[Compared<'_>], is_complete: bool) {
        // Few workers of an incomplete iteration may be the slow ones.
        let votes: Vec<Option<Vote>> = compared.iter().map(|one| one.vote).collect();
        let common = if is_complete || compared.len() > 2 { self.work.observe(&votes) } else { 0.0 };
        let others = others(compared, common, &self.workers);
        let positions: Vec<usize> = compared.iter().map(|one| one.at).collect();
        let seen: Vec<_> = compared.iter().zip(others).collect();
        self.workers.update(&positions, &seen, |known, (one, others)| {
            known.watch.observe(&one.pace, one.own, others);
        });
    }
}
