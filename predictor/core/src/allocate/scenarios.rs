//! Scenarios for the next iteration, taken from the forecast errors of recent iterations.

use super::exact_split::finish_s;
use super::worker::SplitWorker;

/// Maximum number of scenarios; the newest are kept. It equals the number of residuals that the forecaster
/// keeps.
pub const MAX_SCENARIOS: usize = 128;

/// Minimum number of iterations: fewer do not describe a joint distribution. A worker with fewer residuals borrows from other workers.
pub const MIN_SCENARIOS: usize = 8;

/// Maximum number of factors of a job with more than [`MIN_SCENARIOS`] scenarios: every decision reads all of them. The
/// slowest of many workers varies little from scenario to scenario, so wide jobs need fewer.
const FACTORS_MAX: usize = 1 << 18;

/// A part of a step that does not depend on the batch.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pause {
    scenario: usize,
    rank: usize,
    seconds: f64,
}

/// Residuals of one worker: actual minus forecast log speed with their iterations, oldest first.
pub type Residuals<'a> = &'a [(u64, f64)];

/// Possible next iterations: for each worker a factor by which compute takes longer than forecast, and pauses in seconds.
///
/// Each scenario is a past iteration, so workers that slow down together also do so in the scenarios.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scenarios {
    workers: usize,
    /// The factors of all workers in the first scenario, then in the second, and so on.
    factors: Vec<f64>,
    /// The iteration of each scenario; empty if it is not known.
    iterations: Vec<u64>,
    /// In ascending order of scenarios.
    pauses: Vec<Pause>,
}

impl Scenarios {
    /// Builds scenarios from the residuals of each worker with their iterations, by rank.
    ///
    /// The scenarios are the iterations that at least half of the workers have a residual of. A missing one is drawn from the
    /// worker's own others, or from another worker in the same iteration while it has few. `None` stands for a worker
    /// without work, whose forecast does not matter.
    pub fn joined(residuals: &[Option<Residuals<'_>>]) -> Self {
        let iterations = shared_iterations(residuals);
        let count = count(iterations.len(), residuals.len());
        let iterations = &iterations[iterations.len() - count..];
        let workers = residuals.len();
        let mut factors = vec![f64::NAN; count * workers];
        for (rank, residuals) in residuals.iter().enumerate() {
            let known = residuals.unwrap_or_default();
            let cells = factors.iter_mut().skip(rank).step_by(workers.max(1));
            let latest = &known[known.len().saturating_sub(count)..];
            if latest.iter().map(|(iteration, _)| iteration).eq(iterations) {
                cells.zip(latest).for_each(|(cell, (_, residual))| *cell = (-residual).exp());
                continue;
            }
            let earlier =
                known.partition_point(|(other, _)| iterations.first().is_some_and(|first| other < first));
            let mut rest = known[earlier..].iter().peekable();
            for (cell, iteration) in cells.zip(iterations) {
                while rest.next_if(|(other, _)| other < iteration).is_some() {}
                let own = rest.next_if(|(other, _)| other == iteration);
                let drawn = || match residuals {
                    None => Some(0.0),
                    Some(own) if own.len() < MIN_SCENARIOS => None,
                    Some(own) => own.get(draw(*iteration, rank, own.len())).map(|(_, residual)| *residual),
                };
                if let Some(residual) = own.map(|(_, residual)| *residual).or_else(drawn) {
                    *cell = (-residual).exp();
                }
            }
        }
        let is_worker: Vec<bool> = residuals.iter().map(Option::is_some).collect();
        for (row, iteration) in factors.chunks_exact_mut(workers.max(1)).zip(iterations) {
            borrow(row, *iteration, &is_worker);
        }
        Self { workers, factors, iterations: iterations.to_vec(), pauses: Vec::new() }
    }

    /// Adds the pauses of each worker, in seconds with their iterations, by rank; `None` for a worker without work.
    ///
    /// If more than half of the workers pause in one iteration, for example for a checkpoint, it is a pause of the job: no split
    /// shortens it, and the differences in its length are noise.
    #[must_use]
    pub fn with_pauses(mut self, pauses: &[Option<Residuals<'_>>]) -> Self {
        for (rank, pauses) in pauses.iter().enumerate() {
            for (iteration, seconds) in pauses.unwrap_or_default() {
                if let Ok(scenario) = self.iterations.binary_search(iteration) {
                    self.pauses.push(Pause { scenario, rank, seconds: *seconds });
                }
            }
        }
        self.pauses.sort_by_key(|pause| (pause.scenario, pause.rank));
        let workers = pauses.iter().flatten().count();
        let by_scenario = self.pauses.chunk_by(|one, other| one.scenario == other.scenario);
        self.pauses = by_scenario.filter(|paused| 2 * paused.len() <= workers).flatten().copied().collect();
        self
    }

    /// Returns the pauses of a scenario: ranks and seconds.
    pub(crate) fn pauses(&self, scenario: usize) -> impl Iterator<Item = (usize, f64)> {
        let first = self.pauses.partition_point(|pause| pause.scenario < scenario);
        let of = self.pauses[first..].iter().take_while(move |pause| pause.scenario == scenario);
        of.map(|pause| (pause.rank, pause.seconds))
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
        Self { workers, factors, iterations: Vec::new(), pauses: Vec::new() }
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

    /// Returns the mean step time over the scenarios in seconds, with pauses, or the forecast step time without scenarios.
    /// Shares and batches are by rank.
    pub fn expected_finish(&self, shares: &[SplitWorker], batches: &[u64]) -> f64 {
        if self.is_empty() {
            return finish_s(shares, batches);
        }
        let mut sum: f64 = self.finishes(shares, batches).sum();
        if !self.pauses.is_empty() {
            let compute_s = |rank: usize| shares[rank].curve.time(batches[rank]);
            let steps = self.finishes(shares, batches).zip(self.rows()).enumerate();
            sum = steps
                .map(|(scenario, (step_s, factors))| {
                    let paused = self.pauses(scenario);
                    // A worker without samples delays no other.
                    paused.filter(|(rank, _)| batches[*rank] > 0).fold(step_s, |step_s, (rank, pause_s)| {
                        step_s.max(factors[rank] * compute_s(rank) + pause_s)
                    })
                })
                .sum();
        }
        sum / self.len() as f64
    }

    /// Returns the step time in each scenario without pauses, in seconds: no split shortens them.
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

/// Returns the iterations that at least half of the workers have a residual of, in ascending order. They are iterations of the worker
/// with the most residuals in the shortest time.
fn shared_iterations(residuals: &[Option<Residuals<'_>>]) -> Vec<u64> {
    let working = || residuals.iter().copied().flatten();
    let first = |residuals: &Residuals<'_>| residuals.first().map_or(0, |(iteration, _)| *iteration);
    let Some(fullest) = working().max_by_key(|residuals| (residuals.len(), first(residuals))) else {
        return Vec::new();
    };
    let is_whole = fullest.is_sorted_by(|one, next| one.0.checked_add(1) == Some(next.0));
    let mut others = vec![0usize; fullest.len()];
    let (mut workers, mut all) = (0, 0);
    for worker in working() {
        workers += 1;
        // Most often all workers have reported the same iterations, without a gap.
        let ends =
            |residuals: Residuals<'_>| [residuals.first(), residuals.last()].map(|end| end.map(|end| end.0));
        let is_same = || is_whole || worker.iter().zip(fullest).all(|(own, other)| own.0 == other.0);
        if worker.len() == fullest.len() && ends(worker) == ends(fullest) && is_same() {
            all += 1;
            continue;
        }
        let mut rest = worker.iter().peekable();
        for (count, (iteration, _)) in others.iter_mut().zip(fullest) {
            while rest.next_if(|(other, _)| other < iteration).is_some() {}
            *count += usize::from(rest.next_if(|(other, _)| other == iteration).is_some());
        }
    }
    let are_enough = |count: usize| 2 * (count + all) >= workers;
    let counted = fullest.iter().zip(others).filter(|(_, count)| are_enough(*count));
    counted.map(|((iteration, _), _)| *iteration).collect()
}

/// Replaces missing factors by those of other workers in the same scenario.
fn borrow(row: &mut [f64], iteration: u64, is_worker: &[bool]) {
    if row.iter().all(|factor| !factor.is_nan()) {
        return;
    }
    let known = row.iter().zip(is_worker).filter(|(factor, is_worker)| **is_worker && !factor.is_nan());
    let known: Vec<f64> = known.map(|(factor, _)| *factor).collect();
    for (rank, factor) in row.iter_mut().enumerate().filter(|(_, factor)| factor.is_nan()) {
        *factor = known.get(draw(iteration, rank, known.len())).copied().unwrap_or(1.0);
    }
}

/// Returns a position below `len` that looks random, always the same for an iteration and a rank.
fn draw(iteration: u64, rank: usize, len: usize) -> usize {
    // Knuth's multiplicative hash.
    let mixed = (iteration ^ (rank as u64) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 33) as usize % len.max(1)
}
