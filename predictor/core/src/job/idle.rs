//! Workers that the plan gives no samples: nothing measures them, so they get the smallest batch now and then.

use std::collections::{BTreeMap, BTreeSet};

use evenstep_protocol::WorkerId;

use super::known::Known;
use super::state::JobState;
use crate::allocate::{Scenarios, SplitWorker};
use crate::forecast::Forecast;
use crate::plan::{Reason, Rules, Sizes, Split, WorkerOutlook, measure};

/// Number of iterations after which a worker without samples is measured again, and from which on its forecast fades.
const WAIT_MIN: u64 = 32;
/// Ratio of a wait to the one before, if the measurement made no difference.
const WAIT_GROWTH: u64 = 2;
/// Cost of measurements, as a share of all steps, at which waits stop growing, if the worker is as slow as before and reports. The
/// shorter waits before cost more, and [`WAIT_MIN`] may cost less.
const COST: f64 = 0.02;
/// Number of iterations in which a forecast without measurements fades to a third.
const FADE: f64 = 64.0;

impl JobState {
    /// Returns the plan with the smallest batch for each worker without samples that was not measured for long; `None` if there is
    /// no such worker.
    pub(super) fn measure_idle(
        &self,
        known: &[Known<'_>],
        planned: &Split,
        outlooks: &[WorkerOutlook],
        scenarios: &Scenarios,
        rules: &Rules,
        iteration: u64,
    ) -> Option<Split> {
        let (models, smallest, step_s) = (self.current_models(), smallest(rules)?, planned.step_time_s?);
        // Reports of the latest measurement may be missing. The models that are ahead would hide that.
        if self.models.open_probes() > 0 {
            return None;
        }
        let idle: BTreeSet<&WorkerId> = self.models.idle_before(iteration).collect();
        let is_due = |(rank, now): (usize, &Known<'_>)| {
            let can = outlooks[rank].cap.is_none_or(|cap| cap >= smallest);
            let is_idle = can && planned.batches[rank] == 0 && idle.contains(now.id);
            let known = is_idle.then(|| self.models.worker(now.id)).flatten()?;
            let measured_s = now.expected(None)?.1.time(smallest);
            let affordable = models.stride() * ((measured_s / step_s - 1.0) / COST).max(0.0);
            let has_reported = known.newest == known.seen;
            let most = if has_reported { affordable as u64 } else { u64::MAX };
            let wait = known.gap.saturating_mul(WAIT_GROWTH).min(most).max(WAIT_MIN);
            (iteration.saturating_sub(known.seen?) >= wait).then_some(rank)
        };
        let due: Vec<usize> = known.iter().enumerate().filter_map(is_due).collect();
        if due.is_empty() {
            return None;
        }
        let batches = measure(outlooks, &planned.batches, &due, smallest, rules)?;
        let workers = due.iter().filter(|rank| batches[**rank] > 0).count();
        let shares: Vec<SplitWorker> = outlooks.iter().map(WorkerOutlook::share).collect::<Option<_>>()?;
        let step_time_s = Some(scenarios.expected_finish(&shares, &batches));
        Some(Split { batches, reason: Reason::MeasuresIdle { workers }, step_time_s, ..planned.clone() })
    }

    /// Lets the forecasts of workers without samples return to the mean of the workers on the same kind of device, or of all, and
    /// widens them. No share follows such a forecast.
    pub(super) fn fade_idle(&self, live: &[Known<'_>], outlooks: &mut [WorkerOutlook], iteration: u64) {
        let models = self.current_models();
        let shares = self.last_allocation.iter().flat_map(|last| &last.allocations);
        let unused = shares.filter(|share| share.local_batch == 0 && share.pool.is_none());
        let age = |id: &WorkerId| Some(iteration.saturating_sub(models.worker(id)?.newest?));
        let idle: BTreeMap<&WorkerId, u64> = unused
            .filter_map(|share| Some((&share.worker, age(&share.worker)?)))
            .filter(|(_, age)| *age > WAIT_MIN)
            .collect();
        if idle.is_empty() {
            return;
        }
        let mut sums: BTreeMap<Option<&str>, (f64, f64)> = BTreeMap::new();
        for (known, outlook) in live.iter().zip(outlooks.iter()) {
            let Some(measured) = outlook.measured.as_ref().filter(|_| !idle.contains_key(known.id)) else {
                continue;
            };
            let device = known.device();
            for group in [None, device].into_iter().take(1 + usize::from(device.is_some())) {
                let (sum, count) = sums.entry(group).or_default();
                *sum += measured.forecast.speed.ln();
                *count += 1.0;
            }
        }
        for (known, outlook) in live.iter().zip(outlooks) {
            let peers = sums.get(&known.device()).or_else(|| sums.get(&None));
            if let (Some(age), Some((sum, count)), Some(measured)) =
                (idle.get(known.id), peers, &mut outlook.measured)
            {
                let forecast = faded(measured.forecast, sum / count, age - WAIT_MIN);
                measured.curve = measured.curve.clone().scaled(measured.forecast.speed / forecast.speed);
                measured.forecast = forecast;
            }
        }
    }
}

/// Returns the smallest batch that measures a worker.
fn smallest(rules: &Rules) -> Option<u64> {
    match &rules.sizes {
        Sizes::Allowed(sizes) => sizes.iter().copied().find(|size| *size > 0),
        _ => Some(rules.quantum),
    }
}

/// Returns a forecast after this number of iterations without measurements. `peers` is the log speed that it returns to. The interval
/// covers both.
fn faded(forecast: Forecast, peers: f64, iterations: u64) -> Forecast {
    let rest = (-(iterations as f64) / FADE).exp();
    let distance = (peers - forecast.speed.ln()) * (1.0 - rest);
    let factor = distance.exp();
    let wider = distance.abs().exp();
    Forecast {
        speed: forecast.speed * factor,
        lower: forecast.lower * factor / wider,
        upper: forecast.upper * factor * wider,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_without_measurements_returns_to_the_others() {
        let own = Forecast { speed: 5.0, lower: 4.0, upper: 6.0 };
        assert_eq!(faded(own, 100f64.ln(), 0), own);
        let mut before = own;
        for iterations in [10, 50, 200, 10_000] {
            let after = faded(own, 100f64.ln(), iterations);
            assert!(after.speed > before.speed && after.speed <= 100.0 + 1e-9, "{after:?}");
            assert!(after.upper / after.lower > before.upper / before.lower, "{after:?}");
            assert!(after.lower <= own.speed && own.speed <= after.upper, "{after:?}");
            before = after;
        }
        assert!((before.speed - 100.0).abs() < 1e-9);
    }
}
