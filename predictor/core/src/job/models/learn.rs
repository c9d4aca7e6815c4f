//! Learns from the reports of iterations.

use std::borrow::Cow;
use std::sync::Arc;

use evenstep_protocol::{WorkerId, WorkerReport};

use super::super::compare::compared;
use super::super::open::Closed;
use super::super::others::{Compared, others};
use super::super::plans::PlannedWorker;
use super::super::report::{gradient_norms, parts, readings, signs};
use super::super::worker::DeviceOf;
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

/// A report to learn from.
struct Lesson<'a> {
    report: &'a WorkerReport,
    /// The forecast of its speed; `None` if a probe disturbed it.
    forecast: Option<f64>,
    /// Whether the curve learns, and whether the worker is compared with others.
    is_learned: bool,
}

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
        device: DeviceOf<'_>,
    ) -> Learned<'a> {
        let mut learned = Learned::default();
        self.revision += u64::from(!reports.is_empty());
        for closed in self.open.take(reports) {
            self.learn_iteration(closed, attempts, device, &mut learned);
        }
        learned
    }

    pub(super) fn learn_iteration<'a>(
        &mut self,
        closed: Closed<'a>,
        attempts: &Attempts,
        device: DeviceOf<'_>,
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
        let usable = self.take(reports, device);
        let is_usable = usable.len() == reports.len();
        let outcomes = self.measure(&usable, &closed, device);
        self.forecaster.observe_iteration(iteration, &outcomes);
        let drivers = self.forecaster.drivers();
        let readings = parallel::map(&usable, |(worker, report)| (*worker, readings(drivers, report)));
        self.forecaster.boundaries(&readings);
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
        device: DeviceOf<'_>,
    ) -> Vec<(&'a WorkerId, &'a WorkerReport)> {
        let by_worker: Vec<(&WorkerId, (&WorkerReport, Option<PlannedWorker>))> =
            reports.iter().map(|(report, planned)| (&report.worker, (&**report, *planned))).collect();
        parallel::insert(&mut self.workers, by_worker.iter().map(|(worker, _)| *worker), Arc::default);
        let taken = parallel::update(&mut self.workers, &by_worker, |known, (report, planned)| {
            let known = Arc::make_mut(known);
            let newest = known.newest;
            let is_new = newest.is_none_or(|newest| report.iteration > newest);
            let is_other = is_new && known.take(report, *planned, device);
            (*report, is_new && newest.is_some(), is_other)
        });
        let mut usable = Vec::with_capacity(taken.len());
        for (worker, (report, is_usable, is_other)) in taken {
            if is_other {
                self.forecaster.age(worker);
            }
            if is_usable {
                usable.push((worker, report));
            }
        }
        usable
    }

    /// Updates the curves with the reports of an iteration. Returns the observations in sample equivalents of the curves.
    fn measure<'a>(
        &mut self,
        reports: &[(&'a WorkerId, &'a WorkerReport)],
        closed: &Closed<'_>,
        device: DeviceOf<'_>,
    ) -> Vec<(WorkerId, Observation)> {
        let (forecaster, is_disturbed) = (&self.forecaster, self.learned < self.undisturbed);
        let work = self.work.log();
        let workers: Vec<&WorkerId> = reports.iter().map(|(worker, _)| *worker).collect();
        // The shares of a probe do not follow forecasts. If the curve was not known, its speeds change with the shares, and
        // so do the forecasts after it.
        let last = forecaster.expected(&workers).into_iter();
        let last: Vec<Option<Forecast>> = last.map(|known| Some(known?.forecast)).collect();
        // A probe is there to learn from it.
        let learned =
            if closed.is_probe { vec![true; workers.len()] } else { self.turns(reports, &workers, &last) };
        let lesson = |(rank, (worker, report)): (usize, &(&'a WorkerId, &'a WorkerReport))| {
            let forecast = last[rank].filter(|_| !is_disturbed).map(|forecast| forecast.speed);
            (*worker, Lesson { report, forecast, is_learned: learned[rank] })
        };
        let lessons: Vec<(&WorkerId, Lesson<'_>)> = reports.iter().enumerate().map(lesson).collect();
        let measured = parallel::update(&mut self.workers, &lessons, |known, lesson| {
            let Lesson { report, forecast, is_learned } = *lesson;
            let known = Arc::make_mut(known);
            let parts = parts(report);
            let before = parts.observation(&known.curve)?;
            if !is_learned {
                return Some((before, None));
            }
            known.measure(&parts, forecast);
            let observation = parts.observation(&known.curve)?;
            let pace = Pace {
                iteration: report.iteration,
                log_speed: (observation.speed().ln() + work).clamp(-LOG_SPEED_MAX, LOG_SPEED_MAX),
                samples: parts.units(),
                compute_s: report.compute_time_s,
                readings: signs(report),
            };
            let own = known.watch.ratio_to_best(&pace, &known.curve);
            Some((observation, Some((pace, own, known.watch.vote(&pace, own)))))
        });
        let (mut observations, mut compared) = (Vec::new(), Vec::new());
        for (worker, measured) in measured {
            let Some((observation, learned)) = measured else { continue };
            observations.push((worker.clone(), observation));
            if let Some((pace, own, vote)) = learned {
                compared.push(Compared { worker, pace, own, vote });
            }
        }
        self.watch(&compared, closed.is_complete, device);
        observations
    }

    /// Returns which of these workers teach their curves and are compared with each other: all, unless there are very many. Then
    /// all have their turns, and those that may be slow, or surprise, have more of them.
    fn turns(
        &self,
        reports: &[(&WorkerId, &WorkerReport)],
        workers: &[&WorkerId],
        last: &[Option<Forecast>],
    ) -> Vec<bool> {
        if workers.len() <= WIDE {
            return vec![true; workers.len()];
        }
        let known = parallel::find(&self.workers, workers);
        let is_special = |rank: usize| {
            let (Some(known), Some(forecast)) = (known[rank], last[rank]) else { return true };
            let surprises = |seen: Observation| {
                (seen.speed() / forecast.speed).ln().abs() > SURPRISE * (forecast.upper / forecast.speed).ln()
            };
            known.watch.suspects() || parts(reports[rank].1).observation(&known.curve).is_some_and(surprises)
        };
        let special: Vec<bool> = (0..reports.len()).map(is_special).collect();
        let count = special.iter().filter(|special| **special).count();
        let [first, others] = [count, workers.len()].map(|of| Turns::new(of, WIDE / 2, self.learned));
        let mut at = 0;
        let has_turn = |(rank, is_special): (usize, bool)| {
            at += usize::from(is_special);
            others.has(rank) || is_special && first.has(at - 1)
        };
        special.into_iter().enumerate().map(has_turn).collect()
    }

    /// Looks for stragglers among the workers of an iteration.
    fn watch(&mut self, compared: &[Compared<'_>], is_complete: bool, device: DeviceOf<'_>) {
        // Few workers of an incomplete iteration may be the slow ones.
        let votes: Vec<Option<Vote>> = compared.iter().map(|one| one.vote).collect();
        let common = if is_complete || compared.len() > 2 { self.work.observe(&votes) } else { 0.0 };
        let others = others(compared, common, &self.workers, device);
        let seen: Vec<(&WorkerId, _)> =
            compared.iter().zip(&others).map(|(one, others)| (one.worker, (one, others))).collect();
        parallel::update(&mut self.workers, &seen, |known, (one, others)| {
            Arc::make_mut(known).watch.observe(&one.pace, one.own, others);
        });
    }
}
