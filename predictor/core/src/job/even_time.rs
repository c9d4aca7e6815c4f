//! The time that an iteration would have taken with even shares.
//!
//! Each worker would have computed its even share under the contention that it had: its measured time, times the ratio of
//! the curve at the even share and at its own. If it claimed chunks of a tail, this is the time of its local batch, because
//! chunks are separate passes. The slowest of these times is the time of the iteration. The ratio is a mean
//! over all forms that the curve may have. The doubt is how much these forms disagree.

use evenstep_protocol::{WorkerId, WorkerReport};

use super::bounds::{Bounds, fit_floors};
use super::models::{Models, ratio};
use super::open::Closed;
use super::report::parts;
use super::state::JobState;
use crate::allocate::even;
use crate::curve::Uncertain;
use crate::parallel;

/// Standard normal quantiles in equal steps of probability: the points at which the joint distribution of the workers'
/// ratios is evaluated. Their variance is 1.
const QUANTILES: [f64; 16] = [
    -1.945, -1.375, -1.052, -0.807, -0.600, -0.414, -0.242, -0.080, 0.080, 0.242, 0.414, 0.600, 0.807, 1.052,
    1.375, 1.945,
];

/// The time of an iteration with even shares, and its measured time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvenTime {
    /// The iteration.
    pub iteration: u64,
    /// Time at which the slowest worker finished its compute, since the begin of the iteration, in seconds.
    pub finish_s: f64,
    /// The same with even shares, in seconds.
    pub even_finish_s: f64,
    /// Standard deviation of the latter in seconds, because the curves are not known exactly.
    pub doubt_s: f64,
}

/// One worker: the time before its compute, its compute time, and the ratio of its compute time with an even share.
#[derive(Debug, Clone, Copy)]
pub(super) struct EvenWork {
    pub before_s: f64,
    pub compute_s: f64,
    pub ratio: Uncertain,
}

impl EvenWork {
    /// Returns the time at which it finishes, if its compute takes this many times as long.
    pub fn finish_s(&self, ratio: f64) -> f64 {
        self.before_s + ratio * self.compute_s
    }
}

/// Returns the time of the slowest worker with even shares.
///
/// The doubts about the curves of different workers are independent, so each worker takes the points of its distribution
/// in another order.
pub(super) fn slowest(workers: &[EvenWork]) -> Uncertain {
    let points = QUANTILES.len();
    let mut latest = [0.0; QUANTILES.len()];
    for (rank, work) in workers.iter().enumerate() {
        for (at, latest) in latest.iter_mut().enumerate() {
            // An odd factor makes a permutation of the points.
            let quantile = QUANTILES[(at * (2 * rank + 1) + rank) % points];
            let ratio = (work.ratio.mean + quantile * work.ratio.deviation).max(0.0);
            let finish_s = work.finish_s(ratio);
            if finish_s > *latest {
                *latest = finish_s;
            }
        }
    }
    let mean = latest.iter().sum::<f64>() / points as f64;
    let variance = latest.iter().map(|finish_s| (finish_s - mean).powi(2)).sum::<f64>() / points as f64;
    Uncertain { mean, deviation: variance.sqrt() }
}

impl JobState {
    /// Returns the time with even shares of an iteration; `None` if it is not known.
    ///
    /// The samples that were reported are divided among the workers that reported and those that the plan gave no samples.
    pub(super) fn even_time(&self, closed: &Closed<'_>) -> Option<EvenTime> {
        let (iteration, models) = (closed.iteration, self.current_models());
        let idle = || closed.idle.iter().map(|(worker, _)| worker);
        let reports = closed.reports.iter().map(|(report, _)| &**report);
        let measured: Vec<&WorkerReport> = reports.filter(|report| report.local_batch > 0).collect();
        let workers: Vec<&WorkerId> = measured.iter().map(|report| &report.worker).collect();
        let known = models.of(&workers);
        let states: Vec<_> = parallel::find(&self.workers, &workers).into_iter().zip(&known).collect();
        let mut bounds = parallel::map(&states, |(state, known)| self.bounds_by(*state, **known));
        bounds.extend(idle().map(|worker| self.bounds(worker)));
        let units = parallel::map(&measured, |report| parts(report).units());
        let samples = units.into_iter().fold(0, u64::saturating_add);
        let even = self.even_shares(bounds, samples)?;
        let (own, others) = even.split_at(measured.len());
        let compared: Vec<_> = measured.iter().zip(own).zip(known).collect();
        let mut works = parallel::map(&compared, |((report, even), known)| {
            let (samples, compute_s) = base(report);
            EvenWork { before_s: before_s(report), compute_s, ratio: ratio(*known, samples, **even) }
        });
        // Without the time of the whole step, the step time lacks the waits for claims, too.
        let is_whole = measured.iter().any(|report| report.step_time_s.is_some());
        let finish_s = |report: &&WorkerReport| match is_whole {
            true => took_s(report),
            false => before_s(report) + report.compute_time_s,
        };
        let finish_s = measured.iter().map(finish_s).fold(0.0, f64::max);
        // A paused worker has no samples with even shares either.
        for (worker, even) in idle().zip(others).filter(|(_, even)| **even > 0) {
            works.push(expected(models, worker, self.bounds(worker).micro_batch, *even)?);
        }
        let is_finite = works.iter().all(|work| (work.ratio.mean * work.ratio.deviation).is_finite());
        let even = slowest(&works);
        let is_known = is_finite && finish_s > 0.0 && even.mean.is_finite() && even.deviation.is_finite();
        is_known.then_some(EvenTime {
            iteration,
            finish_s,
            even_finish_s: even.mean,
            doubt_s: even.deviation,
        })
    }

    /// Returns the even shares of workers within these bounds. Floors do not matter if there are too few samples for them.
    pub(super) fn even_shares(&self, mut bounds: Vec<Bounds>, samples: u64) -> Option<Vec<u64>> {
        fit_floors(&mut bounds, samples, self.quantum(), true);
        let bounds: Vec<(u64, Option<u64>)> =
            bounds.iter().map(|bounds| (bounds.floor, bounds.cap)).collect();
        even(&bounds, samples, self.quantum()).ok()
    }
}

/// Returns the samples and the seconds of a worker from which its time with another number of samples follows. They are of its local
/// batch, or of everything if it had no local batch.
pub(super) fn base(report: &WorkerReport) -> (u64, f64) {
    let parts = parts(report);
    let has_base = parts.base > 0 && parts.base_s > 0.0;
    if has_base { (parts.base, parts.base_s) } else { (parts.units(), report.compute_time_s) }
}

/// Returns the time at which a worker finished, in seconds.
pub(super) fn took_s(report: &WorkerReport) -> f64 {
    before_s(report) + (report.compute_time_s + parts(report).tail.claim_s)
}

/// Returns the time before the compute of a worker, in seconds.
pub(super) fn before_s(report: &WorkerReport) -> f64 {
    report.loader_wait_s.unwrap_or(0.0)
}

/// Returns the expected time of a worker that had no samples.
fn expected(models: &Models, worker: &WorkerId, micro_batch: Option<u64>, even: u64) -> Option<EvenWork> {
    let (_, curve) = models.expected(worker, micro_batch)?;
    Some(EvenWork {
        before_s: 0.0,
        compute_s: curve.time(even),
        ratio: Uncertain { mean: 1.0, deviation: 0.0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_mean_0_and_variance_1() {
        let points = QUANTILES.len() as f64;
        assert!(QUANTILES.iter().sum::<f64>().abs() < 1e-12);
        let variance = QUANTILES.iter().map(|point| point * point).sum::<f64>() / points;
        assert!((variance - 1.0).abs() < 0.01, "{variance}");
    }

    fn work(compute_s: f64, mean: f64, deviation: f64) -> EvenWork {
        EvenWork { before_s: 0.5, compute_s, ratio: Uncertain { mean, deviation } }
    }

    #[test]
    fn the_slowest_worker_with_an_even_share_counts() {
        let exact = slowest(&[work(1.0, 2.0, 0.0), work(4.0, 0.25, 0.0), work(2.0, 1.5, 0.0)]);
        assert_eq!((exact.mean, exact.deviation), (3.5, 0.0));
        let uncertain = slowest(&[work(1.0, 2.0, 0.1), work(4.0, 0.25, 0.1)]);
        assert!((uncertain.mean - 2.5).abs() < 1e-9 && (uncertain.deviation - 0.1).abs() < 1e-3);
        // Of two equal and independent normal distributions the mean of the larger value is 1/sqrt(pi) deviations above.
        let two = slowest(&[work(1.0, 2.0, 0.1), work(1.0, 2.0, 0.1)]);
        assert!((two.mean - 2.5 - 0.1 / std::f64::consts::PI.sqrt()).abs() < 0.02, "{}", two.mean);
    }
}
