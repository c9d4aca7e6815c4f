//! From forecasts to the batches of an iteration, with the reason: a plain function of its input.

use crate::allocate::{Infeasible, Share, allocate, even};
use crate::curve::Curve;
use crate::forecast::Forecast;

/// What is known of one worker when an iteration is planned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerOutlook {
    /// Its expected speed; `None` while it is unmeasured.
    pub forecast: Option<Forecast>,
    /// It takes at least this many samples.
    pub floor: u64,
    /// It takes at most this many samples.
    pub cap: Option<u64>,
}

/// The plan in force: what the same workers, in the same order, were given last.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    /// Samples by rank.
    pub batches: Vec<u64>,
    /// Speeds by rank that the batches were made for; `None` after a cold start.
    pub speeds: Option<Vec<f64>>,
}

/// The rules of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// Samples to share out.
    pub global_batch: u64,
    /// Every batch is a multiple of this (but one, where the global batch is none).
    pub quantum: u64,
    /// Hold the plan in force while a new one would shorten the predicted step by less than this share.
    pub min_gain: f64,
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

/// Why an iteration was planned as it was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// So many workers are unmeasured.
    Unmeasured {
        /// How many.
        workers: usize,
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
    /// The best plan is the one in force.
    Unchanged,
    /// A better plan would gain less than the rules ask for.
    GainTooSmall {
        /// The share of the step that it would have saved.
        gain: f64,
    },
}

/// Plans an iteration.
///
/// # Errors
/// [`Infeasible`] where the bounds cannot hold the global batch.
pub fn plan(workers: &[WorkerOutlook], in_force: Option<&InForce>, rules: Rules) -> Result<Plan, Infeasible> {
    let Rules { global_batch, quantum, .. } = rules;
    let bounds: Vec<(u64, Option<u64>)> = workers.iter().map(|worker| (worker.floor, worker.cap)).collect();
    let even_batches = even(&bounds, global_batch, quantum)?;
    let unmeasured = workers.iter().filter(|worker| worker.forecast.is_none()).count();
    let speeds: Vec<f64> = workers.iter().filter_map(|worker| Some(worker.forecast?.speed)).collect();
    if unmeasured > 0 {
        let reason = Reason::Unmeasured { workers: unmeasured };
        return Ok(Plan {
            batches: even_batches,
            speeds: None,
            reason,
            step_time_s: None,
            even_step_time_s: None,
        });
    }

    let shares: Vec<Share> = workers
        .iter()
        .zip(&speeds)
        .map(|(worker, speed)| Share {
            floor: worker.floor,
            cap: worker.cap,
            ..Share::new(Curve::at_speed(*speed))
        })
        .collect();
    let finish = |batches: &[u64]| {
        shares.iter().zip(batches).map(|(share, batch)| share.finish_s(*batch)).fold(0.0, f64::max)
    };
    let best = allocate(&shares, global_batch, quantum)?;
    let (best_s, even_s) = (finish(&best), finish(&even_batches));

    let held = in_force.filter(|in_force| allowed(&in_force.batches, &bounds, global_batch, quantum));
    let reason = match held {
        None => Reason::FirstMeasured,
        Some(held) if held.batches == best => Reason::Unchanged,
        Some(held) => {
            let gain = 1.0 - best_s / finish(&held.batches);
            match (&held.speeds, gain < rules.min_gain) {
                (Some(_), true) => Reason::GainTooSmall { gain },
                (Some(before), false) => most_changed(before, &speeds),
                (None, _) => Reason::FirstMeasured,
            }
        }
    };
    let (batches, made_for) = match (&reason, held) {
        // The speeds stay those that the batches were made for, so that slow drift adds up until it is worth a change.
        (Reason::GainTooSmall { .. }, Some(held)) => (held.batches.clone(), held.speeds.clone()),
        _ => (best, Some(speeds)),
    };
    let step_time_s = Some(finish(&batches));
    Ok(Plan { batches, speeds: made_for, reason, step_time_s, even_step_time_s: Some(even_s) })
}

/// Whether the batches in force are still a legal answer.
fn allowed(batches: &[u64], bounds: &[(u64, Option<u64>)], global_batch: u64, quantum: u64) -> bool {
    batches.len() == bounds.len()
        && batches.iter().sum::<u64>() == global_batch
        && batches.iter().filter(|batch| *batch % quantum != 0).count()
            <= usize::from(!global_batch.is_multiple_of(quantum))
        && batches
            .iter()
            .zip(bounds)
            .all(|(batch, (floor, cap))| batch >= floor && cap.is_none_or(|cap| *batch <= cap))
}

fn most_changed(before: &[f64], now: &[f64]) -> Reason {
    let ratios = now.iter().zip(before).map(|(now, before)| now / before).enumerate();
    let largest = ratios.max_by(|a, b| a.1.ln().abs().total_cmp(&b.1.ln().abs()).then(b.0.cmp(&a.0)));
    largest.map_or(Reason::FirstMeasured, |(rank, ratio)| Reason::SpeedChanged { rank, ratio })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(speed: f64) -> WorkerOutlook {
        let forecast = Forecast { speed, lower: speed * 0.9, upper: speed * 1.1 };
        WorkerOutlook { forecast: Some(forecast), floor: 1, cap: None }
    }

    const RULES: Rules = Rules { global_batch: 120, quantum: 1, min_gain: 0.05 };

    fn in_force(plan: &Plan) -> InForce {
        InForce { batches: plan.batches.clone(), speeds: plan.speeds.clone() }
    }

    #[test]
    fn even_until_all_are_measured() {
        let unmeasured = WorkerOutlook { forecast: None, ..at(1.0) };
        let plan = plan(&[at(1.0), at(9.0), unmeasured], None, RULES).unwrap();
        assert_eq!(plan.batches, [40, 40, 40]);
        assert_eq!(plan.reason, Reason::Unmeasured { workers: 1 });
        assert_eq!((plan.step_time_s, plan.speeds), (None, None));
    }

    #[test]
    fn follows_the_speeds_and_names_who_moved() {
        let first = plan(&[at(10.0), at(10.0)], None, RULES).unwrap();
        assert_eq!((first.batches.as_slice(), first.reason), ([60, 60].as_slice(), Reason::FirstMeasured));
        let next = plan(&[at(10.0), at(5.0)], Some(&in_force(&first)), RULES).unwrap();
        assert_eq!(next.batches, [80, 40]);
        assert_eq!(next.reason, Reason::SpeedChanged { rank: 1, ratio: 0.5 });
        assert_eq!((next.step_time_s, next.even_step_time_s), (Some(8.0), Some(12.0)));
    }

    /// Each drift alone is under the minimum gain; together they are not.
    #[test]
    fn small_gains_are_held_and_drift_adds_up() {
        let mut last = plan(&[at(10.0), at(10.0)], None, RULES).unwrap();
        let drifted = plan(&[at(10.0), at(9.4)], Some(&in_force(&last)), RULES).unwrap();
        assert!(matches!(drifted.reason, Reason::GainTooSmall { gain } if gain > 0.0 && gain < 0.05));
        assert_eq!(drifted.batches, last.batches);
        assert_eq!(drifted.speeds, last.speeds);
        last = plan(&[at(10.0), at(8.5)], Some(&in_force(&drifted)), RULES).unwrap();
        assert!(
            matches!(last.reason, Reason::SpeedChanged { rank: 1, ratio } if (ratio - 0.85).abs() < 1e-12)
        );
    }

    #[test]
    fn a_plan_that_breaks_new_bounds_is_never_held() {
        let first = plan(&[at(10.0), at(10.0)], None, RULES).unwrap();
        let capped = WorkerOutlook { cap: Some(58), ..at(10.0) };
        let next = plan(&[capped, at(10.0)], Some(&in_force(&first)), RULES).unwrap();
        assert_eq!((next.batches.as_slice(), next.reason), ([58, 62].as_slice(), Reason::FirstMeasured));
        let smaller = Rules { global_batch: 100, ..RULES };
        assert_eq!(plan(&[at(10.0), at(10.0)], Some(&in_force(&first)), smaller).unwrap().batches, [50, 50]);
    }

    #[test]
    fn caps_that_cannot_hold_the_batch_are_an_error() {
        let capped = WorkerOutlook { cap: Some(50), ..at(10.0) };
        assert_eq!(plan(&[capped, capped], None, RULES).unwrap_err().caps, Some(100));
    }
}
