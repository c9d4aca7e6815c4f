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
const BLOCKS: [usize; 3] = [32, 16, 8];

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
pub struct Speedup {
    /// Mean step of the other way divided by the mean step.
    pub ratio: f64,
    /// Lower bound of the interval.
    pub lower: f64,
    /// Upper bound of the interval.
    pub upper: f64,
}

impl Speedup {
    /// Compares two runs over the same iterations; `None` with fewer than 8 iterations.
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
        let (all, width) = (sum(&pairs), BLOCKS.map(width).into_iter().fold(0.0, f64::max));
        let ratio = all.0 / all.1;
        Some(Self { ratio, lower: ratio - width, upper: ratio + width })
    }

    /// Whether the interval is above 1, and the ratio saves enough.
    fn is_worth_it(&self) -> bool {
        self.lower > 1.0 && 1.0 - 1.0 / self.ratio >= MIN_SAVING
    }
}

impl fmt::Display for Speedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}x as fast ({:.2}x to {:.2}x)", self.ratio, self.lower, self.upper)
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
    pub speedup: Option<Speedup>,
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
    /// The recommended way compared with an even split if half of the time of an even share did not depend on the batch; `None` if
    /// the batch curve is known, or an even split is recommended.
    pub half_fixed: Option<Speedup>,
}

impl Verdict {
    /// Selects the simplest way to run that no other beats. One that is less simple must save 1 % of the step, and the interval of
    /// its comparison must not contain an equal step.
    ///
    /// `others` are in order of simplicity. A worker is removed if the run names it.
    pub fn of(even: &Run, others: &[(&Run, Option<String>)]) -> Self {
        let way = |(run, without): &(&Run, Option<String>)| Way {
            advice: match (without, run.policy) {
                (Some(_), _) => Advice::DropSlowest,
                (None, PolicyName::Evenstep) => Advice::UseHedgedSteps,
                (None, PolicyName::Base) => Advice::UseEvenstep,
                (None, _) => Advice::LeaveAlone,
            },
            policy: run.policy,
            without: without.clone(),
            mean_step_time_s: mean(&run.step_time_s),
            speedup: Speedup::of(run, even),
        };
        let runs: Vec<(&Run, Option<String>)> =
            std::iter::once((even, None)).chain(others.iter().cloned()).collect();
        let mut best = 0;
        for (at, (run, _)) in runs.iter().enumerate() {
            if Speedup::of(run, runs[best].0).is_some_and(|speedup| speedup.is_worth_it()) {
                best = at;
            }
        }
        let ways: Vec<Way> = runs.iter().map(way).collect();
        let text = words(&ways, best, even.step_time_s.len());
        Self { best: ways[best].advice, text, ways, half_fixed: None }
    }

    /// The recommended way.
    pub fn best_way(&self) -> &Way {
        self.ways.iter().find(|way| way.advice == self.best).unwrap_or(&self.ways[0])
    }

    /// Compares the recommended way with an even split in runs of the same workers, half of whose time for an even share does not depend on the batch.
    pub fn compare_half_fixed(&mut self, runs: &[Run]) {
        let of = |policy: PolicyName| runs.iter().find(|run| run.policy == policy);
        let best = of(self.best_way().policy).zip(of(PolicyName::Even));
        self.half_fixed =
            best.filter(|_| self.best != Advice::LeaveAlone).and_then(|(best, even)| Speedup::of(best, even));
    }
}

/// The recommendation in one line.
fn words(ways: &[Way], best: usize, iterations: usize) -> String {
    let than = "as an even split";
    match (&ways[best], ways[best].speedup) {
        (_, None) => format!(
            "Keep the even split: {iterations} iterations are too few to show that anything is faster"
        ),
        (way @ Way { without: Some(worker), .. }, Some(speedup)) if way.advice == Advice::DropSlowest => {
            format!("Remove {worker}: an even split without it is {speedup} {than}")
        }
        (way, Some(speedup)) if best > 0 => format!("Use {way}: {speedup} {than}"),
        _ => {
            let other = |way: &Way| way.speedup.map(|speedup| format!("{way} is {speedup}"));
            let others: Vec<String> = ways[1..].iter().filter_map(other).collect();
            format!("Keep the even split: {}", others.join(", "))
        }
    }
}
