//! Plans the batches of an iteration from forecasts, and gives the reason: a pure function of its input.
//!
//! A plan minimises the expected time of the slowest worker over the joint distribution of forecast errors
//! ([`Scenarios`]). The plan in force is kept unless a change gains enough (`hysteresis`). An unmeasured
//! worker gets a cautious share. A [`probe`] varies the shares on purpose.

mod outlook;
mod rules;

mod hysteresis;

mod measure;
mod probe;

#[cfg(test)]
mod tests;

use crate::allocate::{
    Infeasible, Scenarios, SizesError, SplitWorker, allocate_distinct_sizes, allocate_expected,
    allocate_sizes, even,
};
use crate::curve::Curve;

pub use measure::measure;
pub use outlook::{Measured, WorkerOutlook};
pub use probe::{CHANGE, probe};
pub use rules::{MAX_BATCH_GROWTH, MIN_GAIN, Rules, Sizes};

use hysteresis::Gain;

/// The plan in force: the most recent batches for the same workers in the same order.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    /// Samples by rank.
    pub batches: Vec<u64>,
    /// Speeds by rank for which the batches were planned; `None` after a cold start.
    pub speeds: Option<Vec<f64>>,
    /// Sum of the certain gains of better batches since then, as a share of a step.
    pub lost: f64,
}

/// Batches of an iteration, with the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// Samples by rank; their sum is the global batch.
    pub batches: Vec<u64>,
    /// Speeds by rank for which the batches were planned; `None` at a cold start.
    pub speeds: Option<Vec<f64>>,
    /// Sum of the certain gains of better batches since these were planned, as a share of a step.
    pub lost: f64,
    /// The decision and its reason.
    pub reason: Reason,
    /// Expected time of the slowest worker, in seconds.
    pub step_time_s: Option<f64>,
    /// Expected time of the slowest worker under an even split, in seconds.
    pub even_step_time_s: Option<f64>,
    /// The even split, by rank, as far as the rule for sizes allows it.
    pub even: Vec<u64>,
}

impl Split {
    /// Returns the even split instead of this plan, because plans lost this share of the step; `None` if the plan is the even
    /// split, or while a worker is unmeasured.
    pub fn hold_even(&self, loss: f64) -> Option<Self> {
        let step_time_s = Some(self.even_step_time_s?);
        let holds = self.batches != self.even && self.step_time_s.is_some();
        let (batches, reason) = (self.even.clone(), Reason::HoldsEven { loss });
        holds.then(|| Self { batches, reason, step_time_s, ..self.clone() })
    }

    /// Returns the part of the plan that the next iteration needs as its plan in force.
    pub fn in_force(&self) -> InForce {
        InForce { batches: self.batches.clone(), speeds: self.speeds.clone(), lost: self.lost }
    }
}

/// Error of a plan: the rules and bounds leave no split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unplannable {
    /// The floors add up to more, or the caps to less, than the global batch.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// The global batch cannot be split into allowed sizes.
    #[error(transparent)]
    Sizes(#[from] SizesError),
}

/// The reason for a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// Some workers are unmeasured.
    Unmeasured {
        /// Number of unmeasured workers.
        workers: usize,
    },
    /// The shares differ from the plan on purpose.
    Probing {
        /// How uncertain the time with even shares is, as a share of it.
        doubt: f64,
    },
    /// Workers without samples get the smallest batch, so that they are measured.
    MeasuresIdle {
        /// Number of them.
        workers: usize,
    },
    /// The first plan from measured speeds, or the first for a new set of workers or bounds.
    FirstMeasured,
    /// The worker whose expected speed changed most since the plan in force was made.
    SpeedChanged {
        /// Rank of the worker.
        rank: usize,
        /// Ratio of the new to the old speed.
        ratio: f64,
    },
    /// The shares are even again: the plan in force is not faster.
    Even,
    /// Planned shares are used again, because they would have been faster than the even ones that were held.
    Resumed,
    /// Even shares are used, because planned ones were slower.
    HoldsEven {
        /// Their loss as a share of the step time.
        loss: f64,
    },
    /// The best plan equals the plan in force.
    Unchanged,
    /// The plan in force was kept: it has lost less than a change costs.
    Held {
        /// Gain of the better plan as a share of the step time.
        gain: f64,
        /// Sum of such gains since the plan in force was made.
        lost: f64,
    },
}

/// Plans the next iteration.
///
/// # Errors
/// - [`Unplannable::Infeasible`] if the bounds do not admit the global batch.
/// - [`Unplannable::Sizes`] if the global batch cannot be split into the allowed sizes, or the search for
///   such a split would take too long.
pub fn plan(
    workers: &[WorkerOutlook],
    scenarios: &Scenarios,
    in_force: Option<&InForce>,
    rules: &Rules,
) -> Result<Split, Unplannable> {
    let quantum = if matches!(rules.sizes, Sizes::Allowed(_)) { 1 } else { rules.quantum };
    let even_batches = even(&bounds(workers), rules.global_batch, quantum)?;
    let shares = shares(workers, &even_batches);
    let even = match &rules.sizes {
        Sizes::Any => even_batches,
        _ => even_split(&bounds(workers), rules)?,
    };
    // A worker that gets no samples need not be measured.
    let is_unknown = |worker: &&WorkerOutlook| worker.measured.is_none() && worker.cap != Some(0);
    let unmeasured = workers.iter().filter(is_unknown).count();
    let Some(shares) = shares else {
        let reason = Reason::Unmeasured { workers: unmeasured };
        return Ok(Split {
            batches: even.clone(),
            speeds: None,
            lost: 0.0,
            reason,
            step_time_s: None,
            even_step_time_s: None,
            even,
        });
    };
    let finish = |batches: &[u64]| scenarios.expected_finish(&shares, batches);
    // If the limits on batch growth leave no split, only the bounds apply, so that the job can continue. If the search for
    // allowed sizes is too large with the speeds of all workers, the even split does.
    let best = split(&shares, scenarios, rules)
        .or_else(|_| split(&without_growth_limit(&shares, workers), scenarios, rules))
        .unwrap_or_else(|_| even.clone());
    let even_step_time_s = Some(finish(&even));
    if unmeasured > 0 {
        let reason = Reason::Unmeasured { workers: unmeasured };
        return Ok(Split {
            batches: best,
            speeds: None,
            lost: 0.0,
            reason,
            step_time_s: None,
            even_step_time_s: None,
            even,
        });
    }

    let speed =
        |worker: &WorkerOutlook| worker.measured.as_ref().map_or(1.0, |measured| measured.forecast.speed);
    let speeds: Vec<f64> = workers.iter().map(speed).collect();
    let gain_over =
        |batches: &[u64], lost: f64| Gain::of(&shares, scenarios, [batches, &best], lost, rules.iterations);
    let is_legal = |in_force: &&InForce| is_legal(&in_force.batches, workers, rules);
    let change = match in_force.filter(is_legal) {
        Some(held) if held.batches == best => {
            Change::To(best, if held.speeds.is_some() { Reason::Unchanged } else { Reason::FirstMeasured })
        }
        Some(held) => {
            let gain = gain_over(&held.batches, held.lost);
            if gain.justifies_change(rules.min_gain) {
                let reason = held
                    .speeds
                    .as_ref()
                    .map_or(Reason::FirstMeasured, |before| most_changed(before, &speeds));
                Change::To(best, reason)
            } else if held.batches != even && finish(&even) <= finish(&held.batches) {
                Change::To(even.clone(), Reason::Even)
            } else {
                Change::Hold { held, gain }
            }
        }
        // The errors of forecasts are not known: speeds of an earlier run, or workers in their first iterations.
        None if best == even || scenarios.is_empty() => Change::To(best, Reason::FirstMeasured),
        // Without a plan in force, the shares are even until a change gains enough.
        None => {
            let gain = gain_over(&even, 0.0);
            if gain.justifies_change(rules.min_gain) {
                Change::To(best, Reason::FirstMeasured)
            } else {
                Change::To(even.clone(), Reason::Held { gain: gain.corrected.max(0.0), lost: gain.lost })
            }
        }
    };
    let (batches, made_for, lost, reason) = match change {
        // The speeds for which these batches were planned are kept, so that slow drift adds up until a change
        // is worthwhile.
        Change::Hold { held, gain } => {
            let reason = Reason::Held { gain: gain.corrected.max(0.0), lost: gain.lost };
            (held.batches.clone(), held.speeds.clone().or(Some(speeds)), gain.lost, reason)
        }
        Change::To(batches, reason) => (batches, Some(speeds), 0.0, reason),
    };
    let step_time_s = Some(finish(&batches));
    Ok(Split { batches, speeds: made_for, lost, reason, step_time_s, even_step_time_s, even })
}

enum Change<'a> {
    To(Vec<u64>, Reason),
    Hold { held: &'a InForce, gain: Gain },
}

fn bounds(workers: &[WorkerOutlook]) -> Vec<(u64, Option<u64>)> {
    workers.iter().map(|worker| (worker.floor, worker.cap)).collect()
}

/// Returns the best split under the rule for sizes.
fn split(shares: &[SplitWorker], scenarios: &Scenarios, rules: &Rules) -> Result<Vec<u64>, Unplannable> {
    let Rules { global_batch, quantum, sizes, .. } = rules;
    match sizes {
        Sizes::Any => Ok(allocate_expected(shares, scenarios, *global_batch, *quantum)?),
        Sizes::Allowed(sizes) => {
            // A worker whose cap is 0 computes nothing, whether or not 0 is an allowed size.
            let is_idle = |share: &SplitWorker| share.cap == Some(0);
            let active: Vec<SplitWorker> = shares.iter().filter(|share| !is_idle(share)).cloned().collect();
            let mut batches = allocate_sizes(&active, *global_batch, sizes)?.into_iter();
            let batch = |share: &SplitWorker| if is_idle(share) { 0 } else { batches.next().unwrap_or(0) };
            Ok(shares.iter().map(batch).collect())
        }
        Sizes::Distinct(distinct) => Ok(allocate_distinct_sizes(shares, *global_batch, *quantum, *distinct)?),
    }
}

/// Returns the even split within floors and caps, by rank, as far as the rule for sizes allows it.
///
/// # Errors
/// As [`plan`].
pub fn even_split(bounds: &[(u64, Option<u64>)], rules: &Rules) -> Result<Vec<u64>, Unplannable> {
    if rules.sizes == Sizes::Any {
        return Ok(even(bounds, rules.global_batch, rules.quantum)?);
    }
    let equal = |(floor, cap): &(u64, Option<u64>)| SplitWorker {
        floor: *floor,
        cap: *cap,
        ..SplitWorker::new(Curve::at_speed(1.0))
    };
    split(&bounds.iter().map(equal).collect::<Vec<_>>(), &Scenarios::default(), rules)
}

/// Returns each worker as an input of a split; `None` if no worker is measured.
///
/// An unmeasured worker is assumed to be as slow as the slowest measured worker, and gets at most an even
/// share. A measured worker gets at most [`MAX_BATCH_GROWTH`] times the largest batch it was measured at, or an
/// even share if that is more.
fn shares(workers: &[WorkerOutlook], even: &[u64]) -> Option<Vec<SplitWorker>> {
    let measured =
        || workers.iter().zip(even).filter_map(|(worker, even)| Some((worker.measured.as_ref()?, *even)));
    let slowest = measured()
        .max_by(|(a, x), (b, y)| a.curve.time(*x).total_cmp(&b.curve.time(*y)))
        .map(|(measured, _)| &measured.curve)?;
    let share = |(worker, even): (&WorkerOutlook, &u64)| {
        let (curve, trusted) = match &worker.measured {
            Some(measured) => {
                (&measured.curve, (measured.largest as f64 * MAX_BATCH_GROWTH).max(*even as f64))
            }
            None => (slowest, *even as f64),
        };
        // A bound above the range of integers is no bound.
        let trusted = (trusted < u64::MAX as f64).then_some(trusted as u64);
        SplitWorker {
            curve: curve.clone(),
            floor: worker.floor,
            cap: [worker.cap, trusted.map(|most| most.max(worker.floor))].into_iter().flatten().min(),
        }
    };
    Some(workers.iter().zip(even).map(share).collect())
}

/// Returns the same shares without the limits on batch growth.
fn without_growth_limit(shares: &[SplitWorker], workers: &[WorkerOutlook]) -> Vec<SplitWorker> {
    let share =
        |(share, worker): (&SplitWorker, &WorkerOutlook)| SplitWorker { cap: worker.cap, ..share.clone() };
    shares.iter().zip(workers).map(share).collect()
}

/// Returns whether the batches in force still satisfy all rules and bounds.
fn is_legal(batches: &[u64], workers: &[WorkerOutlook], rules: &Rules) -> bool {
    let Rules { global_batch, quantum, sizes, .. } = rules;
    let odd = batches.iter().filter(|batch| *batch % quantum != 0).count();
    let sized = match sizes {
        Sizes::Any => odd <= usize::from(!global_batch.is_multiple_of(*quantum)),
        Sizes::Allowed(sizes) => batches
            .iter()
            .zip(workers)
            .all(|(batch, worker)| sizes.contains(batch) || (*batch == 0 && worker.cap == Some(0))),
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
