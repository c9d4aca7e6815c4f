//! The metric that matters: how long would the steps have taken, had the allocation believed these forecasts?
//!
//! At each tick the global batch is split by the forecast speeds; each worker then takes its share at the speed that was
//! recorded, and the step lasts as long as the slowest. The oracle splits by the recorded speeds themselves. A better
//! error is hardly a faster step: the maximum over workers is ruled by the misses.

use crate::allocate::{Infeasible, Share, allocate};
use crate::curve::Curve;

/// Share of the steps that lie at or under the "p95".
const HIGH_QUANTILE: f64 = 0.95;

/// Step times over the oracle's: 1 is perfect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Regret {
    /// The mean over steps.
    pub mean_over_oracle: f64,
    /// 95 % of the steps are at or under this.
    pub p95_over_oracle: f64,
}

impl Regret {
    /// Of step times over the oracle's; `None` where there are none.
    pub fn of(over_oracle: &[f64]) -> Option<Self> {
        let n = over_oracle.len();
        let mut sorted = over_oracle.to_vec();
        sorted.sort_by(f64::total_cmp);
        let rank = (HIGH_QUANTILE * n as f64).ceil() as usize;
        Some(Self {
            mean_over_oracle: over_oracle.iter().sum::<f64>() / n as f64,
            p95_over_oracle: *sorted.get(rank.max(1) - 1)?,
        })
    }
}

/// How long a step takes whose shares follow `believed` speeds, over how long it takes when they follow the `actual` ones.
/// All speeds are positive and finite, one for each worker.
///
/// # Errors
/// [`Infeasible`] where there are no workers.
pub fn over_oracle(actual: &[f64], believed: &[f64], global_batch: u64) -> Result<f64, Infeasible> {
    Ok(step_s(actual, believed, global_batch)? / step_s(actual, actual, global_batch)?)
}

fn step_s(actual: &[f64], believed: &[f64], global_batch: u64) -> Result<f64, Infeasible> {
    let share =
        |speed: &f64| Share { curve: Curve::at_speed(*speed), communication_s: 0.0, floor: 0, cap: None };
    let shares: Vec<Share> = believed.iter().map(share).collect();
    let batches = allocate(&shares, global_batch, 1)?;
    Ok(batches.iter().zip(actual).map(|(batch, speed)| *batch as f64 / speed).fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By hand: 90 samples at speeds 10 and 20 take 3 s split 30/60; split evenly, 45/10 = 4.5 s; split the wrong way
    /// round, 60/10 = 6 s.
    #[test]
    fn the_slowest_rules_the_step() {
        let actual = [10.0, 20.0];
        assert_eq!(over_oracle(&actual, &[1.0, 2.0], 90).unwrap(), 1.0);
        assert_eq!(over_oracle(&actual, &[7.0, 7.0], 90).unwrap(), 1.5);
        assert_eq!(over_oracle(&actual, &[2.0, 1.0], 90).unwrap(), 2.0);
        assert!(over_oracle(&[], &[], 90).is_err());
    }

    #[test]
    fn the_high_quantile_is_a_step_that_was() {
        let steps: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        assert_eq!(Regret::of(&steps), Some(Regret { mean_over_oracle: 10.5, p95_over_oracle: 19.0 }));
        assert_eq!(Regret::of(&[2.0]), Some(Regret { mean_over_oracle: 2.0, p95_over_oracle: 2.0 }));
        assert_eq!(Regret::of(&[]), None);
    }

    proptest! {
        /// Nobody beats the oracle, and the unit of the forecasts is no matter.
        #[test]
        fn the_oracle_is_the_best(
            speeds in prop::collection::vec((0.1f64..100.0, 0.1f64..100.0), 1..12), batch in 1u64..2000
        ) {
            let (actual, believed): (Vec<f64>, Vec<f64>) = speeds.into_iter().unzip();
            let ours = over_oracle(&actual, &believed, batch).unwrap();
            prop_assert!(ours >= 1.0 - 1e-12, "{ours}");
            let scaled: Vec<f64> = believed.iter().map(|speed| speed * 1024.0).collect();
            prop_assert_eq!(over_oracle(&actual, &scaled, batch).unwrap(), ours);
        }
    }
}
