//! From forecasts to the batches of an iteration, with the reason: a plain function of its input.
//!
//! What the plan minimises is the expected time of the slowest worker over the forecasts' joint distribution
//! ([`Scenarios`]). It holds what is in force unless a change is worth it (`hysteresis`). A worker that is unmeasured gets a careful
//! share. At the start of a job a short [`profile`] can make batch curves known.

mod outlook;
mod rules;

mod hysteresis;

pub mod profile;

#[cfg(test)]
mod tests;

use crate::allocate::{
    Infeasible, NoSplit, Scenarios, Share, allocate_expected, allocate_sizes, even, few_sizes, partition,
};
use crate::curve::Curve;

pub use outlook::{Measured, WorkerOutlook};
pub use rules::{MAX_BATCH_GROWTH, MIN_GAIN, Objective, Rules, Sizes};

use hysteresis::Gain;

/// The plan in force: what the same workers, in the same order, were given last.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    /// Samples by rank.
    pub batches: Vec<u64>,
    /// Speeds by rank that the batches were made for; `None` after a cold start.
    pub speeds: Option<Vec<f64>>,
}

/// The batches of an iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Samples by rank; their sum is the global batch.
    pub batches: Vec<u64>,
    /// The speeds they were made for; `None` at a cold start.
    pub speeds: Option<Vec<f64>>,
    /// What was decided and why.
    pub reason: Reason,
    /// Expected time of the slowest worker, in seconds.
    pub step_time_s: Option<f64>,
    /// Expected time of the slowest worker under an even split, in seconds.
    pub even_step_time_s: Option<f64>,
}

impl Plan {
    /// The plan as the one in force for the next iteration.
    pub fn in_force(&self) -> InForce {
        InForce { batches: self.batches.clone(), speeds: self.speeds.clone() }
    }
}

/// Why an iteration cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unplannable {
    /// The bounds cannot hold the global batch.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// No allowed sizes make it.
    #[error(transparent)]
    Sizes(#[from] NoSplit),
}

/// Why an iteration was planned as it was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// So many workers are unmeasured.
    Unmeasured {
        /// How many.
        workers: usize,
    },
    /// A step of the profile at the start.
    Profiling {
        /// Which, from 1.
        step: usize,
        /// Of how many.
        of: usize,
    },
    /// The first plan on measured speeds, or the first of a new set of workers or bounds.
    FirstMeasured,
    /// A worker's expected speed moved most since the plan in force was made.
    SpeedChanged {
        /// Its rank.
        rank: usize,
        /// New speed over old.
        ratio: f64,
    },
    /// Ranges were cut by what each sample costs.
    ByCost,
    /// The best plan is the one in force.
    Unchanged,
    /// A better plan would gain less than the minimum.
    Held {
        /// The share of the step that it would save.
        gain: f64,
    },
}

/// Plans the next iteration.
///
/// # Errors
/// [`Unplannable`] where the bounds cannot hold the global batch, or no allowed sizes make it.
pub fn plan(
    workers: &[WorkerOutlook],
    scenarios: &Scenarios,
    in_force: Option<&InForce>,
    rules: &Rules,
) -> Result<Plan, Unplannable> {
    let certain = Scenarios::default();
    let scenarios = match rules.objective {
        Objective::ExpectedMaximum => scenarios,
        Objective::Maximum => &certain,
    };
    let even_batches = even(&bounds(workers), rules.global_batch, rules.quantum)?;
    let unmeasured = workers.iter().filter(|worker| worker.measured.is_none()).count();
    let Some(shares) = shares(workers, &even_batches, rules.max_batch_growth) else {
        let batches = match &rules.sizes {
            Sizes::Any => even_batches,
            _ => split(&alike(workers), &Scenarios::default(), rules)?,
        };
        let reason = Reason::Unmeasured { workers: unmeasured };
        return Ok(Plan { batches, speeds: None, reason, step_time_s: None, even_step_time_s: None });
    };
    let finish = |batches: &[u64]| scenarios.expected_finish(&shares, batches);
    // Where nothing fits into the trusted region, bounds alone decide: the job must go on.
    let best = split(&shares, scenarios, rules)
        .or_else(|_| split(&untrusted(&shares, workers), scenarios, rules))?;
    let even_step_time_s = Some(finish(&even_batches));
    if unmeasured > 0 {
        let reason = Reason::Unmeasured { workers: unmeasured };
        return Ok(Plan { batches: best, speeds: None, reason, step_time_s: None, even_step_time_s: None });
    }

    let speeds: Vec<f64> =
        workers.iter().filter_map(|worker| Some(worker.measured.as_ref()?.forecast.speed)).collect();
    let held = in_force.filter(|in_force| is_legal(&in_force.batches, workers, rules));
    let change = match held {
        None => Change::To(best, Reason::FirstMeasured),
        Some(held) if held.batches == best => Change::To(best, Reason::Unchanged),
        Some(InForce { speeds: None, .. }) => Change::To(best, Reason::FirstMeasured),
        Some(held @ InForce { speeds: Some(before), batches }) => {
            let gain = Gain::of(&shares, scenarios, rules.objective, batches, &best);
            if gain.is_worth_a_change(rules.min_gain) {
                Change::To(best, most_changed(before, &speeds))
            } else {
                Change::Hold { held, gain: gain.believed.max(0.0) }
            }
        }
    };
    let (batches, made_for, reason) = match change {
        // The speeds stay those that the batches were made for, so that slow drift adds up until it is worth a change.
        Change::Hold { held, gain } => (held.batches.clone(), held.speeds.clone(), Reason::Held { gain }),
        Change::To(batches, reason) => (batches, Some(speeds), reason),
    };
    let step_time_s = Some(finish(&batches));
    Ok(Plan { batches, speeds: made_for, reason, step_time_s, even_step_time_s })
}

enum Change<'a> {
    To(Vec<u64>, Reason),
    Hold { held: &'a InForce, gain: f64 },
}

/// Plans an iteration whose samples cost differently, in their order: contiguous ranges of balanced finish times. What is in
/// force cannot be held: each iteration has other samples.
///
/// # Errors
/// As [`plan`].
pub fn plan_by_cost(workers: &[WorkerOutlook], costs: &[f64], rules: &Rules) -> Result<Plan, Unplannable> {
    let even_batches = even(&bounds(workers), rules.global_batch, rules.quantum)?;
    let measured = shares(workers, &even_batches, f64::INFINITY);
    let is_measured = measured.is_some();
    let shares = measured.unwrap_or_else(|| alike(workers));
    let batches = partition(&shares, costs)?;
    let step_time_s = is_measured.then(|| {
        let mut from = 0;
        let finish = |(share, batch): (&Share, &u64)| {
            let range = &costs[from..from + *batch as usize];
            from += *batch as usize;
            share.communication.finish_s(share.curve.time_of(range.iter().sum()))
        };
        shares.iter().zip(&batches).map(finish).fold(0.0, f64::max)
    });
    Ok(Plan { batches, speeds: None, reason: Reason::ByCost, step_time_s, even_step_time_s: None })
}

fn bounds(workers: &[WorkerOutlook]) -> Vec<(u64, Option<u64>)> {
    workers.iter().map(|worker| (worker.floor, worker.cap)).collect()
}

/// The best split by the rule for sizes. At the ragged end of an epoch, where no allowed sizes or few of them add up, any do.
fn split(shares: &[Share], scenarios: &Scenarios, rules: &Rules) -> Result<Vec<u64>, Unplannable> {
    let Rules { global_batch, quantum, sizes, .. } = rules;
    match sizes {
        Sizes::Any => Ok(allocate_expected(shares, scenarios, *global_batch, *quantum)?),
        Sizes::Allowed(sizes) => Ok(allocate_sizes(shares, *global_batch, sizes)?),
        Sizes::Distinct(distinct) => Ok(few_sizes(shares, *global_batch, *quantum, *distinct)?),
    }
}

/// All workers with the same speed, within their bounds.
fn alike(workers: &[WorkerOutlook]) -> Vec<Share> {
    let share = |worker: &WorkerOutlook| Share {
        floor: worker.floor,
        cap: worker.cap,
        ..Share::new(Curve::at_speed(1.0))
    };
    workers.iter().map(share).collect()
}

/// What the split sees of each worker; `None` where nobody is measured. An unmeasured worker is taken for as slow as the slowest
/// of the others, and gets no more than an even share. A measured one gets at most
/// `max_batch_growth` times the largest batch it was measured at, or an even share if that is more.
fn shares(workers: &[WorkerOutlook], even: &[u64], max_batch_growth: f64) -> Option<Vec<Share>> {
    let measured =
        || workers.iter().zip(even).filter_map(|(worker, even)| Some((worker.measured.as_ref()?, *even)));
    let slowest = measured()
        .max_by(|(a, x), (b, y)| a.curve.time(*x).total_cmp(&b.curve.time(*y)))
        .map(|(measured, _)| &measured.curve)?;
    let share = |(worker, even): (&WorkerOutlook, &u64)| {
        let (curve, trusted) = match &worker.measured {
            Some(measured) => {
                (&measured.curve, (measured.largest as f64 * max_batch_growth).max(*even as f64))
            }
            None => (slowest, *even as f64),
        };
        // A bound beyond what integers hold is none.
        let trusted = (trusted < u64::MAX as f64).then_some(trusted as u64);
        Share {
            curve: curve.clone(),
            communication: worker.communication,
            floor: worker.floor,
            cap: [worker.cap, trusted.map(|most| most.max(worker.floor))].into_iter().flatten().min(),
        }
    };
    Some(workers.iter().zip(even).map(share).collect())
}

/// The same shares without the trusted region.
fn untrusted(shares: &[Share], workers: &[WorkerOutlook]) -> Vec<Share> {
    let share = |(share, worker): (&Share, &WorkerOutlook)| Share { cap: worker.cap, ..share.clone() };
    shares.iter().zip(workers).map(share).collect()
}

/// Whether the batches in force are still a legal answer.
fn is_legal(batches: &[u64], workers: &[WorkerOutlook], rules: &Rules) -> bool {
    let Rules { global_batch, quantum, sizes, .. } = rules;
    let odd = batches.iter().filter(|batch| *batch % quantum != 0).count();
    let sized = match sizes {
        Sizes::Any => odd <= usize::from(!global_batch.is_multiple_of(*quantum)),
        Sizes::Allowed(sizes) => batches.iter().all(|batch| sizes.contains(batch)),
        Sizes::Distinct(distinct) => {
            odd <= usize::from(!global_batch.is_multiple_of(*quantum))
                && batches.iter().collect::<std::collections::BTreeSet<_>>().len() <= *distinct
        }
    };
    sized
        && batches.len() == workers.len()
        && batches.iter().sum::<u64>() == *global_batch
        && batches
            .iter()
            .zip(workers)
            .all(|(batch, worker)| *batch >= worker.floor && worker.cap.is_none_or(|cap| *batch <= cap))
}

fn most_changed(before: &[f64], now: &[f64]) -> Reason {
    let ratios = now.iter().zip(before).map(|(now, before)| now / before).enumerate();
    let largest = ratios.max_by(|a, b| a.1.ln().abs().total_cmp(&b.1.ln().abs()).then(b.0.cmp(&a.0)));
    largest.map_or(Reason::FirstMeasured, |(rank, ratio)| Reason::SpeedChanged { rank, ratio })
}
