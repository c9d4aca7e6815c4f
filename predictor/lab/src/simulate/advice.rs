//! The recommendation: use evenstep, keep an even split, or remove the slowest worker.

use std::fmt;

use evenstep_report::text::seconds;

use super::summary::mean;
use super::walk::Run;

/// Smallest share of the step that a recommendation must save. Smaller savings are within what a simulation
/// leaves out.
const MIN_SAVING: f64 = 0.01;

/// The recommendation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Split the global batch with evenstep.
    UseEvenstep,
    /// Split it evenly, as in training without evenstep.
    LeaveAlone,
    /// Remove the slowest worker, and split the batch evenly over the others.
    DropSlowest,
}

impl Advice {
    /// Name in the JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UseEvenstep => "use_evenstep",
            Self::LeaveAlone => "leave_alone",
            Self::DropSlowest => "drop_slowest",
        }
    }
}

/// Comparison of the three options.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The recommendation.
    pub advice: Advice,
    /// Mean step under evenstep, in seconds.
    pub evenstep_s: f64,
    /// Mean step under an even split, in seconds.
    pub even_s: f64,
    /// The worker that was slowest in the warm-up, and the mean step of an even split without it, in seconds.
    /// `None` if no worker is slower than the others.
    pub without_slowest: Option<(String, f64)>,
}

impl Verdict {
    /// Selects the simplest option that no other beats by 1 %. An even split is simpler than evenstep, and
    /// evenstep is simpler than removing a worker.
    pub fn of(evenstep: &Run, even: &Run, without: Option<(String, &Run)>) -> Self {
        let (evenstep_s, even_s) = (mean(&evenstep.step_time_s), mean(&even.step_time_s));
        let without_slowest = without.map(|(worker, run)| (worker, mean(&run.step_time_s)));
        let without_s = without_slowest.as_ref().map_or(f64::INFINITY, |(_, mean_s)| *mean_s);
        let enough = evenstep_s.min(even_s).min(without_s) / (1.0 - MIN_SAVING);
        let advice = if even_s <= enough {
            Advice::LeaveAlone
        } else if evenstep_s <= enough {
            Advice::UseEvenstep
        } else {
            Advice::DropSlowest
        };
        Self { advice, evenstep_s, even_s, without_slowest }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let saves = |time_s: f64| 100.0 * (1.0 - time_s / self.even_s);
        let ours = saves(self.evenstep_s);
        match (self.advice, &self.without_slowest) {
            (Advice::UseEvenstep, _) => write!(f, "Use evenstep: it saves {ours:.1} % of the step")?,
            (Advice::DropSlowest, Some((worker, without_s))) => {
                write!(
                    f,
                    "Remove {worker}: an even split without it saves {:.1} % of the step",
                    saves(*without_s)
                )?;
            }
            _ if ours > 0.0 => write!(f, "Keep the even split: evenstep would save {ours:.1} % of the step")?,
            _ => write!(f, "Keep the even split: evenstep would add {:.1} % to the step", -ours)?,
        }
        let (evenstep, even) = (seconds(self.evenstep_s), seconds(self.even_s));
        write!(f, " (mean step {evenstep} with evenstep, {even} with an even split")?;
        if let Some((worker, without_s)) = &self.without_slowest {
            write!(f, ", {} without {worker}", seconds(*without_s))?;
        }
        f.write_str(")")
    }
}
