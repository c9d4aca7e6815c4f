//! The learning rate as a function of the global batch, computed locally with the predictor's formulas.
//!
//! The predictor's response has priority. All ranks compute the same course from the previous course, the
//! batch and the position in the data:
//!
//! - until the predictor responds for a changed number of workers
//! - if the predictor is not used or unreachable

use std::fmt;

use clap::ValueEnum;
use evenstep_protocol::LearningRateRule;
use evenstep_rules::learning_rate::{Change, RampLength, Rule};

use crate::plan::Rate;

/// Learning-rate rules. k is the global batch divided by the batch that the learning rate was chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RuleChoice {
    /// Constant
    None,
    /// Multiplied by k, without a ramp
    Linear,
    /// Multiplied by the square root of k, without a ramp
    Sqrt,
    /// Multiplied by k; increases as a ramp, decreases at once
    DynamicSgd,
    /// Multiplied by the gain that the gradient noise allows, 1 to k, as computed by the predictor
    Adascale,
}

impl fmt::Display for RuleChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |rule| f.write_str(rule.get_name()))
    }
}

impl RuleChoice {
    /// Returns the rule's value in the protocol.
    pub fn named(self) -> LearningRateRule {
        match self {
            Self::None => LearningRateRule::None,
            Self::Linear => LearningRateRule::Linear,
            Self::Sqrt => LearningRateRule::Sqrt,
            Self::DynamicSgd => LearningRateRule::DynamicSgd,
            Self::Adascale => LearningRateRule::Adascale,
        }
    }

    /// Returns whether the rule needs gradient norms.
    pub fn needs_norms(self) -> bool {
        self == Self::Adascale
    }

    fn law(self) -> Rule {
        match self {
            Self::None => Rule::None,
            Self::Linear => Rule::Linear,
            Self::Sqrt => Rule::Sqrt,
            Self::DynamicSgd => Rule::DynamicSgd { ramp: RampLength::default() },
            Self::Adascale => Rule::AdaScale,
        }
    }

    /// Returns the rate from an iteration on whose global batch may differ from the previous one. `before` is
    /// the rate in force, absent at the start of a run.
    pub fn rate(self, before: Option<Rate>, begin: GroupStart) -> Rate {
        let GroupStart { iteration, global_batch, base_global_batch } = begin;
        let law = self.law();
        if let (Rule::AdaScale, Some(before)) = (law, before) {
            // The gain that the gradients allow at this batch is unknown here; it lies between 1 and the
            // scale.
            let scale = global_batch as f64 / base_global_batch as f64;
            return before.at(iteration).clamp(scale.min(1.0), scale.max(1.0)).into();
        }
        let multiplier = before.map(|before| before.at(iteration));
        // Only the rule legw, which the trainer does not have, depends on the samples so far.
        let change = Change { iteration, multiplier, global_batch, base_global_batch, samples: 0 };
        let course: Rate = law.course(&change).into();
        // The end of a course depends only on the batch: the same end means the same batch.
        before.filter(|before| before.end() == course.end()).unwrap_or(course)
    }
}

/// First iteration that a set of workers trains together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupStart {
    /// The iteration.
    pub iteration: u64,
    /// Samples of a full iteration from then on.
    pub global_batch: u64,
    /// The batch that the learning rate was chosen for.
    pub base_global_batch: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(iteration: u64, global_batch: u64) -> GroupStart {
        GroupStart { iteration, global_batch, base_global_batch: 100 }
    }

    /// Reference values of Dynamic SGD, growing fourfold over 32 iterations: a ramp up, a restart inside it,
    /// and a drop.
    #[test]
    fn a_run_follows_dynamic_sgd_alone() {
        let rule = RuleChoice::DynamicSgd;
        let first = rule.rate(None, begin(0, 100));
        assert_eq!(first.at(7), 1.0);
        let grown = rule.rate(Some(first), begin(10, 400));
        for (gone, multiplier) in [(0, 1.0), (1, 1.09375), (8, 1.75), (16, 2.5), (31, 3.90625), (32, 4.0)] {
            assert_eq!(grown.at(10 + gone), multiplier, "after {gone} iterations");
        }
        assert_eq!(
            rule.rate(Some(grown), begin(18, 400)),
            grown,
            "the same number of other workers changes nothing"
        );
        let further = rule.rate(Some(grown), begin(18, 700));
        assert_eq!((further.at(18), further.at(34), further.at(50)), (1.75, 4.375, 7.0));
        let shrunk = rule.rate(Some(grown), begin(18, 50));
        assert_eq!((shrunk.at(18), shrunk.at(99)), (0.5, 0.5));
    }

    #[test]
    fn the_other_rules_are_followed_as_far_as_they_can_be() {
        let grown = |choice: RuleChoice| choice.rate(Some(1.0.into()), begin(10, 400));
        assert_eq!(grown(RuleChoice::None).at(10), 1.0);
        assert_eq!(grown(RuleChoice::Linear).at(10), 4.0);
        assert_eq!(grown(RuleChoice::Sqrt).at(10), 2.0);
        assert_eq!(grown(RuleChoice::Adascale).at(10), 1.0, "only a gain of 1 is known");
        let shrunk = RuleChoice::Adascale.rate(Some(3.5.into()), begin(10, 200));
        assert_eq!(shrunk.at(10), 2.0, "no gain is above the scale");
    }
}
