//! When shares vary on purpose.

use super::bounds::Bounds;
use super::even_time::{EvenWork, slowest};
use super::known::Known;
use super::models::ratio;
use super::state::JobState;
use crate::allocate::{Scenarios, SplitWorker};
use crate::curve::Uncertain;
use crate::forecast::WIDE;
use crate::parallel;
use crate::plan::{CHANGE, MAX_BATCH_GROWTH, Reason, Split, WorkerOutlook, probe};

/// Standard deviation of the time with even shares, as a share of it, from which on shares vary.
const DOUBT_MAX: f64 = 0.01;
/// Number of iterations that vary at the start, and of allocations at least if each holds for several iterations.
const FIRST: u64 = 6;
const FIRST_MIN: f64 = 2.0;
/// Later, two in this number of iterations may vary.
const INTERVAL: u64 = 100;

impl JobState {
    /// Returns the plan with shares that vary on purpose; `None` if the batch curves are known well enough, or if enough
    /// iterations varied so far.
    pub(super) fn probe(
        &self,
        known: &[Known<'_>],
        bounds: &[Bounds],
        plan: &Split,
        outlooks: &[WorkerOutlook],
        scenarios: &Scenarios,
    ) -> Option<Split> {
        let spec = &self.spec;
        if !spec.profile || !spec.allowed_sizes.is_empty() || spec.distinct_sizes.is_some() {
            return None;
        }
        let models = self.current_models();
        let (probes, learned) = models.probes();
        // A client keeps a probe until its next report.
        let stride = models.stride();
        let first = (FIRST as f64 / stride).max(FIRST_MIN) as u64;
        if probes >= first + 2 * (learned / INTERVAL) {
            return None;
        }
        let doubt = self.doubt(known, bounds, plan, outlooks).filter(|doubt| *doubt > DOUBT_MAX)?;
        let shares: Vec<SplitWorker> = outlooks
            .iter()
            .zip(&plan.batches)
            .map(|(outlook, planned)| {
                let share = outlook.share()?;
                // A probe keeps the limit on growth, too.
                let largest = outlook.measured.as_ref()?.largest as f64 * MAX_BATCH_GROWTH;
                let trusted = (largest < u64::MAX as f64).then_some((largest as u64).max(*planned));
                Some(SplitWorker { cap: [share.cap, trusted].into_iter().flatten().min(), ..share })
            })
            .collect::<Option<_>>()?;
        let batches = probe(&shares, &plan.batches, self.quantum(), probes).ok()?;
        let step_time_s = scenarios.expected_finish(&shares, &batches);
        // Plans pay for probes with their gain over even shares. The costs of open probes are not known yet.
        let gain = plan.even_step_time_s.map_or(0.0, |even_s| 1.0 - step_time_s / even_s);
        let open = CHANGE * self.models.open_probes() as f64;
        let is_paid = models.balance().gained() >= stride * (open - gain);
        let (varies, step_time_s) = (batches != plan.batches, Some(step_time_s));
        let probing = || Split { batches, reason: Reason::Probing { doubt }, step_time_s, ..plan.clone() };
        (varies && is_paid).then(probing)
    }

    /// Returns how uncertain the time with even shares is, as a share of it; `None` while a worker is unmeasured.
    fn doubt(
        &self,
        known: &[Known<'_>],
        bounds: &[Bounds],
        plan: &Split,
        outlooks: &[WorkerOutlook],
    ) -> Option<f64> {
        let even = self.even_shares(bounds.to_vec(), plan.batches.iter().sum())?;
        let batch = |rank: usize| plan.batches[rank].max(1);
        // The compute time, and the time with an even share if that takes proportionally longer.
        let time = |(rank, outlook): (usize, &WorkerOutlook)| {
            let compute_s = outlook.measured.as_ref()?.curve.time(batch(rank));
            Some((rank, compute_s, compute_s * (even[rank] as f64 / batch(rank) as f64).max(1.0)))
        };
        let times: Vec<(usize, f64, f64)> = outlooks.iter().enumerate().map(time).collect::<Option<_>>()?;
        let mut most_s: Vec<f64> = times.iter().map(|(.., most_s)| *most_s).collect();
        let is_wide = most_s.len() > WIDE;
        let least_s =
            is_wide.then(|| *most_s.select_nth_unstable_by(WIDE, |one, other| other.total_cmp(one)).1);
        let works = parallel::map(&times, |(rank, compute_s, most_s)| {
            // The others of very many workers are not the slowest.
            let compute_s = if least_s.is_some_and(|least_s| *most_s < least_s) { 0.0 } else { *compute_s };
            let exact = Uncertain { mean: 1.0, deviation: 0.0 };
            let ratio = || ratio(known[*rank].model, batch(*rank), even[*rank]);
            EvenWork { before_s: 0.0, compute_s, ratio: if compute_s > 0.0 { ratio() } else { exact } }
        });
        let time = slowest(&works);
        Some(time.deviation / time.mean).filter(|doubt| doubt.is_finite())
    }
}
