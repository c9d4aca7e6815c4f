//! How the coming iteration may differ from its forecast: as recent ones did.

use super::exact_split::finish_s;
use super::worker::{Communication, Share};

/// The most scenarios that are kept: the newest. As many as the forecaster keeps residuals.
pub const MAX_SCENARIOS: usize = 128;

/// Fewer iterations in common say too little of a joint distribution.
pub const MIN_SCENARIOS: usize = 8;

/// Factors by which compute may take longer than forecast: one for each worker in each scenario. Workers that slow down
/// together do so in the scenarios too: a scenario is an iteration that was.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scenarios {
    workers: usize,
    /// Row by row: the factors of all workers in a scenario.
    factors: Vec<f64>,
}

impl Scenarios {
    /// From the residuals of each worker, by rank: actual less forecast log speed, finite, the oldest first. Each
    /// worker's newest belongs to the same iteration; what only some workers have is left out. None where fewer than
    /// [`MIN_SCENARIOS`] iterations are common to all.
    pub fn from_residuals(residuals: &[impl AsRef<[f64]>]) -> Self {
        let common = residuals.iter().map(|worker| worker.as_ref().len()).min().unwrap_or(0);
        let count = common.min(MAX_SCENARIOS);
        if count < MIN_SCENARIOS {
            return Self::default();
        }
        let factor = |worker: &[f64], back: usize| (-worker[worker.len() - back]).exp();
        let rows = (1..=count).rev();
        let factors =
            rows.flat_map(|back| residuals.iter().map(move |worker| factor(worker.as_ref(), back))).collect();
        Self { workers: residuals.len(), factors }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.factors.len().checked_div(self.workers).unwrap_or(0)
    }

    /// Whether there are none: the forecast is taken as certain.
    pub fn is_empty(&self) -> bool {
        self.factors.is_empty()
    }

    /// The factors of each scenario, by rank.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.factors.chunks_exact(self.workers.max(1))
    }

    /// The mean over scenarios of the time of the step; without scenarios the time of the step as forecast.
    /// Shares and batches are by rank.
    pub fn expected_finish(&self, shares: &[Share], batches: &[u64]) -> f64 {
        let (sum, count) = self
            .finishes(shares, batches)
            .fold((0.0, 0u32), |(sum, count), finish_s| (sum + finish_s, count + 1));
        if count == 0 { finish_s(shares, batches) } else { sum / f64::from(count) }
    }

    /// The time of the step in each scenario.
    pub fn finishes<'a>(
        &'a self,
        shares: &'a [Share],
        batches: &[u64],
    ) -> impl Iterator<Item = f64> + use<'a> {
        debug_assert!(self.is_empty() || self.workers == shares.len());
        let compute_s: Vec<f64> =
            shares.iter().zip(batches).map(|(share, batch)| share.curve.time(*batch)).collect();
        // Columns, and no `f64::max`, which minds NaN: splits call this some hundred thousand times.
        let communication: Vec<Communication> = shares.iter().map(|share| share.communication).collect();
        self.rows().map(move |factors| {
            let each = factors.iter().zip(&compute_s).zip(&communication);
            each.map(|((factor, compute_s), communication)| communication.finish_s(factor * compute_s))
                .fold(0.0, |latest_s, finish_s| if finish_s > latest_s { finish_s } else { latest_s })
        })
    }
}
