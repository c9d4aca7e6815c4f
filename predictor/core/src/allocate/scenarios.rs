//! Scenarios for the next iteration, taken from the forecast errors of recent iterations.

use super::exact_split::finish_s;
use super::worker::SplitWorker;

/// Maximum number of scenarios; the newest are kept. It equals the number of residuals that the forecaster
/// keeps.
pub const MAX_SCENARIOS: usize = 128;

/// Minimum number of common iterations: fewer do not describe a joint distribution.
pub const MIN_SCENARIOS: usize = 8;

/// Maximum number of factors of a job with more than [`MIN_SCENARIOS`] scenarios: every decision reads all of them. The
/// slowest of many workers varies little from scenario to scenario, so wide jobs need fewer.
const FACTORS_MAX: usize = 1 << 18;

/// Factors by which compute can take longer than forecast: one per worker and scenario.
///
/// Each scenario is a past iteration, so workers that slow down together also do so in the scenarios.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scenarios {
    workers: usize,
    /// The factors of all workers in the first scenario, then in the second, and so on.
    factors: Vec<f64>,
}

impl Scenarios {
    /// Builds scenarios from the residuals of each worker with their iterations, by rank.
    ///
    /// Each worker's residuals are in ascending order of iterations. Iterations that some workers lack are ignored;
    /// residuals of different iterations are never combined. See [`Self::from_residuals`].
    pub fn joined(residuals: &[impl AsRef<[(u64, f64)]>]) -> Self {
        let Some((first, others)) = residuals.split_first() else { return Self::default() };
        let mut common: Vec<u64> = first.as_ref().iter().map(|(iteration, _)| *iteration).collect();
        for worker in others.iter().map(AsRef::as_ref) {
            // Most often all workers have reported the same iterations.
            if !worker.iter().map(|(iteration, _)| iteration).eq(&common) {
                common = matching(worker, &common).map(|(iteration, _)| iteration).collect();
            }
        }
        let count = count(common.len(), residuals.len());
        let common = &common[common.len() - count..];
        let columns =
            residuals.iter().map(|worker| matching(worker.as_ref(), common).map(|(_, residual)| residual));
        Self::from_columns(count, columns)
    }

    /// Builds scenarios from the residuals of each worker, by rank.
    ///
    /// A residual is actual minus forecast log speed; it must be finite. Each worker's residuals are ordered
    /// from oldest to newest, and the newest residuals of all workers belong to the same iteration, as do those
    /// before them. The result is empty if fewer than [`MIN_SCENARIOS`] iterations are common to all workers.
    pub fn from_residuals(residuals: &[impl AsRef<[f64]>]) -> Self {
        let common = residuals.iter().map(|worker| worker.as_ref().len()).min().unwrap_or(0);
        let count = count(common, residuals.len());
        Self::from_columns(
            count,
            residuals.iter().map(|worker| {
                let worker = worker.as_ref();
                worker[worker.len() - count..].iter().copied()
            }),
        )
    }

    fn from_columns(count: usize, columns: impl ExactSizeIterator<Item = impl Iterator<Item = f64>>) -> Self {
        let workers = columns.len();
        let mut factors = vec![0.0; count * workers];
        for (rank, residuals) in columns.enumerate() {
            for (row, residual) in factors.chunks_exact_mut(workers).zip(residuals) {
                row[rank] = (-residual).exp();
            }
        }
        Self { workers, factors }
    }

    /// Number of scenarios.
    pub fn len(&self) -> usize {
        self.factors.len().checked_div(self.workers).unwrap_or(0)
    }

    /// Whether there are no scenarios. The forecast is then treated as exact.
    pub fn is_empty(&self) -> bool {
        self.factors.is_empty()
    }

    /// Returns the factors of each scenario, by rank.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.factors.chunks_exact(self.workers.max(1))
    }

    /// Returns the mean step time over the scenarios in seconds, or the forecast step time without scenarios.
    /// Shares and batches are by rank.
    pub fn expected_finish(&self, shares: &[SplitWorker], batches: &[u64]) -> f64 {
        let (sum, count) = self
            .finishes(shares, batches)
            .fold((0.0, 0u32), |(sum, count), finish_s| (sum + finish_s, count + 1));
        if count == 0 { finish_s(shares, batches) } else { sum / f64::from(count) }
    }

    /// Returns the step time in each scenario, in seconds.
    pub fn finishes<'a>(
        &'a self,
        shares: &'a [SplitWorker],
        batches: &[u64],
    ) -> impl Iterator<Item = f64> + use<'a> {
        debug_assert!(self.is_empty() || self.workers == shares.len());
        let compute_s: Vec<f64> =
            shares.iter().zip(batches).map(|(share, batch)| share.curve.time(*batch)).collect();
        // `f64::max` is avoided because it handles NaN: a split calls this several hundred thousand times.
        self.rows().map(move |factors| {
            let each = factors.iter().zip(&compute_s);
            each.map(|(factor, compute_s)| factor * compute_s)
                .fold(0.0, |latest_s, finish_s| if finish_s > latest_s { finish_s } else { latest_s })
        })
    }
}

/// Returns the number of scenarios from this many common iterations of this many workers.
fn count(common: usize, workers: usize) -> usize {
    let most = (FACTORS_MAX / workers.max(1)).clamp(MIN_SCENARIOS, MAX_SCENARIOS);
    if common < MIN_SCENARIOS { 0 } else { common.min(most) }
}

/// Returns the residuals whose iterations are in a list; both are in ascending order.
fn matching<'a>(residuals: &'a [(u64, f64)], iterations: &'a [u64]) -> impl Iterator<Item = (u64, f64)> + 'a {
    let mut rest = iterations.iter().copied().peekable();
    residuals.iter().copied().filter(move |(iteration, _)| {
        while rest.next_if(|other| other < iteration).is_some() {}
        rest.next_if_eq(iteration).is_some()
    })
}
