//! The recommendation: which way to run.

use std::fmt;

use evenstep_core::ratio::half_width;
use serde::Serialize;

use super::settings::PolicyName;
use super::summary::mean;
use super::walk::Run;

/// Smallest share of the step that a recommendation must save. Smaller savings are within what a simulation
/// leaves out.
const MIN_SAVING: f64 = 0.01;
/// Minimum number of iterations for a recommendation.
const ITERATIONS_MIN: usize = 8;
/// Numbers of blocks of iterations whose variation gives intervals. The widest counts, because a change of conditions may last
/// longer than a short block.
const BLOCKS: [usize; 3] = [16, 8, 4];

/// The recommendation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Split the global batch evenly, as in training without evenstep.
    LeaveAlone,
    /// Split it with evenstep, with shares that are fixed before the iteration, as `job.loader` does.
    UseEvenstep,
    /// Split it with evenstep, with hedged steps, as `job.steps` does.
    UseHedgedSteps,
    /// Remove the slowest worker, and split the batch evenly over the others.
    DropSlowest,
}

/// Ratio of the speed to the speed of another way to run, with a 90 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gain {
    /// Mean step of the other way divided by the mean step.
    pub ratio: f64,
    /// Lower bound of the interval.
    pub lower: f64,
    /// Upper bound of the interval.
    pub upper: f64,
}

impl Gain {
    /// Compares two runs over the same iterations; `None` with fewer than 8 iterations, or sums that are not finite.
    fn of(run: &Run, than: &Run) -> Option<Self> {
        let pairs: Vec<(f64, f64)> =
            than.step_time_s.iter().copied().zip(run.step_time_s.iter().copied()).collect();
        if pairs.len() < ITERATIONS_MIN {
            return None;
        }
        let sum = |pairs: &[(f64, f64)]| {
            pairs.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1))
        };
        let width = |blocks: usize| {
            let blocks: Vec<(f64, f64)> = pairs.chunks(pairs.len().div_ceil(blocks)).map(sum).collect();
            half_width(&blocks)
        };
        let (all, widths) = (sum(&pairs), BLOCKS.map(width));
        let (ratio, width) = (all.0 / all.1, widths.into_iter().fold(0.0, f64::max));
        let is_known = ratio.is_finite() && widths.iter().all(|width| width.is_finite());
        is_known.then_some(Self { ratio, lower: (ratio - width).max(0.0), upper: ratio + width })
    }

    /// Whether the interval is above 1, and the ratio saves enough.
    fn is_worth_it(&self) -> bool {
        self.lower > 1.0 && 1.0 - 1.0 / self.ratio >= MIN_SAVING
    }
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gain {:.2}x ({:.2}x to {:.2}x)", self.ratio, self.lower, self.upper)
    }
}

/// A way to run, compared with an even split.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Way {
    /// The recommendation to run this way.
    pub advice: Advice,
    /// Its policy.
    pub policy: PolicyName,
    /// The worker that is removed.
    pub without: Option<String>,
    /// Mean step in seconds.
    pub mean_step_time_s: f64,
    /// Comparison with the even split; `None` with fewer than 8 iterations.
    pub gain: Option<Gain>,
}

/// The run of a way.
#[derive(Debug, Clone)]
pub struct WayRun<'a> {
    /// The run.
    pub run: &'a Run,
    /// The worker that is removed.
    pub without: Option<String>,
}

impl WayRun<'_> {
    fn way(&self, even: &Self) -> Way {
        Way {
            advice: match (&self.without, self.run.policy) {
                (Some(_), _) => Advice::DropSlowest,
                (None, PolicyName::Evenstep) => Advice::UseHedgedSteps,
                (None, PolicyName::Base) => Advice::UseEvenstep,
                (None, _) => Advice::LeaveAlone,
            },
            policy: self.run.policy,
            without: self.without.clone(),
            mean_step_time_s: mean(&self.run.step_time_s),
            gain: Gain::of(self.run, even.run),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.without, self.advice) {
            (Some(worker), _) => write!(f, "even split without {worker}"),
            (None, Advice::UseEvenstep) => f.write_str("evenstep (job.loader)"),
            (None, Advice::UseHedgedSteps) => f.write_str("evenstep with hedged steps (job.steps)"),
            (None, _) => f.write_str("even split"),
        }
    }
}

/// Comparison of the ways to run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The recommendation.
    pub best: Advice,
    /// The recommendation in one line.
    pub text: String,
    /// The ways to run, in order of simplicity. The first one is the even split.
    pub ways: Vec<Way>,
    /// Gain of the oracle if half of the time of an even share did not depend on the batch; `None` if the batch curve is known.
    pub most_if_half_fixed: Option<f64>,
}

impl Verdict {
    /// Selects the simplest way to run that no other beats. One that is less simple must save 1 % of the step, and the interval of
    /// its comparison must not contain an equal step.
    ///
    /// `ways` are in order of simplicity, from the even split on. `half_fixed` are the even split and the oracle with the same
    /// workers, if half of the time of an even share did not depend on the batch.
    pub fn of(ways: &[WayRun<'_>], half_fixed: Option<(&Run, &Run)>) -> Option<Self> {
        let even = ways.first()?;
        let beats = |at: usize, best: usize| {
            Gain::of(ways[at].run, ways[best].run).is_some_and(|gain| gain.is_worth_it())
        };
        let best = (0..ways.len()).fold(0, |best, at| if beats(at, best) { at } else { best });
        let found: Vec<Way> = ways.iter().map(|way| way.way(even)).collect();
        Some(Self {
            best: found[best].advice,
            text: words(&found, best, even.run.step_time_s.len()),
            ways: found,
            most_if_half_fixed: half_fixed
                .map(|(even, oracle)| mean(&even.step_time_s) / mean(&oracle.step_time_s)),
        })
    }
}

/// The recommendation in one line.
fn words(ways: &[Way], best: usize, iterations: usize) -> String {
    match (&ways[best], ways[best].gain) {
        (_, None) => format!(
            "Keep the even split: {iterations} iterations are too few to show that anything is faster"
        ),
        (way @ Way { without: Some(worker), .. }, Some(gain)) if way.advice == Advice::DropSlowest => {
            format!("Remove {worker}: {gain} with an even split over the others")
        }
        (way, Some(gain)) if best > 0 => format!("Use {way}: {gain} over an even split"),
        _ => {
            let other = |way: &Way| way.gain.map(|gain| format!("{gain} with {way}"));
            let others: Vec<String> = ways[1..].iter().filter_map(other).collect();
            format!("Keep the even split: {}", others.join(", "))
        }
    }
}
