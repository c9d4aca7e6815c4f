//! Step time of an allocation by the forecasts.
//!
//! At each tick the global batch is split by the forecast speeds. Each worker then computes its share at the
//! recorded speed, and the step lasts as long as the slowest. The oracle splits by the recorded speeds. A
//! lower error hardly shortens the step, because the maximum over workers depends on the large residuals.

use evenstep_core::allocate::{Infeasible, SplitWorker, allocate};
use evenstep_core::curve::Curve;

/// Quantile of `p95_over_oracle`.
const HIGH_QUANTILE: f64 = 0.95;

/// Duration of a step, and its duration under the oracle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimedStep {
    /// Seconds with shares by the forecasts.
    pub step_time_s: f64,
    /// Seconds with shares by the actual speeds.
    pub oracle_s: f64,
}

impl TimedStep {
    /// Computes a step whose shares follow the `believed` speeds and which runs at the `actual` speeds. All
    /// speeds are positive and finite, one per worker.
    ///
    /// # Errors
    /// [`Infeasible`] if there are no workers.
    pub fn of(actual: &[f64], believed: &[f64], global_batch: u64) -> Result<Self, Infeasible> {
        let step_time_s = step_s(actual, believed, global_batch)?;
        Ok(Self { step_time_s, oracle_s: step_s(actual, actual, global_batch)? })
    }

    /// Ratio of the step time to the oracle's; 1 is optimal.
    pub fn over_oracle(&self) -> f64 {
        self.step_time_s / self.oracle_s
    }
}

fn step_s(actual: &[f64], believed: &[f64], global_batch: u64) -> Result<f64, Infeasible> {
    let shares: Vec<SplitWorker> =
        believed.iter().map(|speed| SplitWorker::new(Curve::at_speed(*speed))).collect();
    let batches = allocate(&shares, global_batch, 1)?;
    Ok(batches.iter().zip(actual).map(|(batch, speed)| *batch as f64 / speed).fold(0.0, f64::max))
}

/// Step times divided by the oracle's; 1 is optimal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Regret {
    /// Mean step time divided by the oracle's mean; the mean over jobs if there are several.
    pub mean_over_oracle: f64,
    /// 95th percentile over steps of the step time divided by the oracle's.
    pub p95_over_oracle: f64,
}

impl Regret {
    /// Summarizes the steps of jobs. `None` if there is no job, or a job without steps.
    pub fn of(jobs: &[&[TimedStep]]) -> Option<Self> {
        let total = |steps: &[TimedStep], time: fn(&TimedStep) -> f64| steps.iter().map(time).sum::<f64>();
        let of_job =
            |steps: &&[TimedStep]| total(steps, |step| step.step_time_s) / total(steps, |step| step.oracle_s);
        let mut sorted: Vec<f64> =
            jobs.iter().flat_map(|steps| steps.iter().map(TimedStep::over_oracle)).collect();
        sorted.sort_by(f64::total_cmp);
        let rank = (HIGH_QUANTILE * sorted.len() as f64).ceil() as usize;
        Some(Self {
            mean_over_oracle: jobs.iter().map(of_job).sum::<f64>() / jobs.len() as f64,
            p95_over_oracle: *sorted
                .get(rank.max(1) - 1)
                .filter(|_| jobs.iter().all(|steps| !steps.is_empty()))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By hand: 90 samples at speeds 10 and 20 take 3 s if split 30/60. An even split takes 45/10 = 4.5 s.
    /// The reverse split takes 60/10 = 6 s.
    #[test]
    fn the_slowest_rules_the_step() {
        let step = |believed: [f64; 2]| TimedStep::of(&[10.0, 20.0], &believed, 90).unwrap();
        assert_eq!(step([1.0, 2.0]), TimedStep { step_time_s: 3.0, oracle_s: 3.0 });
        assert_eq!(step([7.0, 7.0]), TimedStep { step_time_s: 4.5, oracle_s: 3.0 });
        assert_eq!(step([2.0, 1.0]), TimedStep { step_time_s: 6.0, oracle_s: 3.0 });
        assert!(TimedStep::of(&[], &[], 90).is_err());
    }

    /// A mean weights long steps more. The quantile weights steps equally, and the overall result weights
    /// jobs equally.
    #[test]
    fn means_and_quantiles() {
        let step = |step_time_s: u32, oracle_s: u32| TimedStep {
            step_time_s: step_time_s.into(),
            oracle_s: oracle_s.into(),
        };
        let steps = [step(3, 1), step(9, 9)];
        assert_eq!(Regret::of(&[&steps]), Some(Regret { mean_over_oracle: 1.2, p95_over_oracle: 3.0 }));
        let many: Vec<TimedStep> = (1..=20).rev().map(|took| step(took, 1)).collect();
        assert_eq!(Regret::of(&[&many]), Some(Regret { mean_over_oracle: 10.5, p95_over_oracle: 19.0 }));
        assert_eq!(Regret::of(&[&many[10..]]).unwrap().p95_over_oracle, 10.0);
        assert_eq!(Regret::of(&[&many, &[step(1, 2)]]).unwrap().mean_over_oracle, 5.5);
        assert_eq!((Regret::of(&[]), Regret::of(&[&many, &[]])), (None, None));
    }

    proptest! {
        /// No split is faster than the oracle, and the unit of the forecasts does not matter.
        #[test]
        fn the_oracle_is_the_best(
            speeds in prop::collection::vec((0.1f64..100.0, 0.1f64..100.0), 1..12), batch in 1u64..2000
        ) {
            let (actual, believed): (Vec<f64>, Vec<f64>) = speeds.into_iter().unzip();
            let ours = TimedStep::of(&actual, &believed, batch).unwrap();
            prop_assert!(ours.over_oracle() >= 1.0 - 1e-12, "{ours:?}");
            let scaled: Vec<f64> = believed.iter().map(|speed| speed * 1024.0).collect();
            prop_assert_eq!(TimedStep::of(&actual, &scaled, batch).unwrap(), ours);
        }
    }
}
