//! The learning rate as a function of the global batch, computed locally with the predictor's formulas.
//!
//! The predictor's response has priority. All ranks compute the same course from the previous course, the
//! batch and the position in the data:
//!
//! - until the predictor responds for a changed number of workers
//! - if the predictor is not used or unreachable

use std::fmt;

use clap::{Args, ValueEnum};
use evenstep_core::learning_rate::{Change, RampLength, Rule};
use evenstep_protocol::{LearningRateRule, LearningRateSettings};

use crate::plan::Rate;

/// Largest number of warm-up epochs that the predictor accepts.
const WARMUP_EPOCHS_MAX: f64 = 1e6;

/// Options of the learning-rate rule.
#[derive(Debug, Clone, Args)]
pub struct LearningRateOptions {
    /// How the learning rate follows a changing global batch; see --per-worker-batch
    #[arg(long, value_enum, default_value_t = RuleChoice::DynamicSgd, env = "EVENSTEP_RULE")]
    pub rule: RuleChoice,
    /// With --rule dynamic-sgd: iterations of a ramp, 0 for none [default: 8 times the growth]
    #[arg(long)]
    pub ramp_iterations: Option<u64>,
    /// With --rule legw: epochs of warm-up at the batch that --lr was chosen for
    #[arg(long)]
    pub warmup_epochs: Option<f64>,
}

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
    /// Multiplied by the square root of k, after a warm-up whose epochs grow with k
    Legw,
    /// Multiplied by the gain that the gradient noise allows, 1 to k, as computed by the predictor
    Adascale,
}

impl fmt::Display for LearningRateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rule) = self.rule.to_possible_value() {
            f.write_str(rule.get_name())?;
        }
        if let Some(iterations) = self.ramp_iterations {
            write!(f, " --ramp-iterations {iterations}")?;
        }
        if let Some(epochs) = self.warmup_epochs {
            write!(f, " --warmup-epochs {epochs}")?;
        }
        Ok(())
    }
}

impl LearningRateOptions {
    /// Returns the broken rule, with the values.
    pub fn wrong(&self) -> Option<String> {
        let Self { rule, ramp_iterations, warmup_epochs } = self;
        match (rule, ramp_iterations, warmup_epochs) {
            (RuleChoice::DynamicSgd, _, None) => None,
            (RuleChoice::Legw, None, Some(epochs)) if (0.0..=WARMUP_EPOCHS_MAX).contains(epochs) => None,
            (RuleChoice::Legw, None, Some(epochs)) => {
                Some(format!("--warmup-epochs {epochs} must be 0 to {WARMUP_EPOCHS_MAX}"))
            }
            (RuleChoice::Legw, None, None) => Some("--rule legw requires --warmup-epochs".to_owned()),
            (_, Some(iterations), _) => {
                Some(format!("--ramp-iterations {iterations}: requires --rule dynamic-sgd"))
            }
            (_, None, Some(epochs)) => {
                Some(format!("--warmup-epochs {epochs}: allowed only with --rule legw"))
            }
            (_, None, None) => None,
        }
    }

    /// Returns the rule's value in the protocol.
    pub fn named(&self) -> LearningRateRule {
        match self.rule {
            RuleChoice::None => LearningRateRule::None,
            RuleChoice::Linear => LearningRateRule::Linear,
            RuleChoice::Sqrt => LearningRateRule::Sqrt,
            RuleChoice::DynamicSgd => LearningRateRule::DynamicSgd,
            RuleChoice::Legw => LearningRateRule::Legw,
            RuleChoice::Adascale => LearningRateRule::Adascale,
        }
    }

    /// Returns the settings for the predictor, in a run with `dataset_samples` samples per epoch.
    pub fn settings(&self, dataset_samples: u64) -> LearningRateSettings {
        LearningRateSettings {
            ramp_iterations: self.ramp_iterations,
            warmup_epochs: self.warmup_epochs,
            dataset_samples: (self.rule == RuleChoice::Legw).then_some(dataset_samples),
        }
    }

    /// Returns whether the rule needs gradient norms.
    pub fn needs_norms(&self) -> bool {
        self.rule == RuleChoice::Adascale
    }

    /// Returns the rule in a run with `dataset_samples` samples per epoch.
    fn law(&self, dataset_samples: u64) -> Rule {
        match self.rule {
            RuleChoice::None => Rule::None,
            RuleChoice::Linear => Rule::Linear,
            RuleChoice::Sqrt => Rule::Sqrt,
            RuleChoice::DynamicSgd => Rule::DynamicSgd {
                ramp: self.ramp_iterations.map_or_else(RampLength::default, RampLength::Iterations),
            },
            RuleChoice::Legw => {
                Rule::Legw { warmup_epochs: self.warmup_epochs.unwrap_or_default(), dataset_samples }
            }
            RuleChoice::Adascale => Rule::AdaScale,
        }
    }

    /// Returns the rate from an iteration on whose global batch may differ from the previous one. `before` is
    /// the rate in force, absent at the start of a run.
    pub fn rate(&self, before: Option<Rate>, begin: GroupStart) -> Rate {
        let GroupStart { iteration, global_batch, base_global_batch, samples, dataset_samples } = begin;
        let law = self.law(dataset_samples);
        if let (Rule::AdaScale, Some(before)) = (law, before) {
            // The gain that the gradients allow at this batch is unknown here; it lies between 1 and the
            // scale.
            let scale = global_batch as f64 / base_global_batch as f64;
            return before.at(iteration).clamp(scale.min(1.0), scale.max(1.0)).into();
        }
        let multiplier = before.map(|before| before.at(iteration));
        let course: Rate =
            law.course(&Change { iteration, multiplier, global_batch, base_global_batch, samples }).into();
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
    /// Samples trained before it.
    pub samples: u64,
    /// Samples per epoch.
    pub dataset_samples: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(rule: RuleChoice) -> LearningRateOptions {
        LearningRateOptions {
            rule,
            ramp_iterations: None,
            warmup_epochs: (rule == RuleChoice::Legw).then_some(10.0),
        }
    }

    fn begin(iteration: u64, global_batch: u64) -> GroupStart {
        GroupStart { iteration, global_batch, base_global_batch: 100, samples: 0, dataset_samples: 1000 }
    }

    /// Reference values of Dynamic SGD, growing fourfold over 32 iterations: a ramp up, a restart inside it,
    /// and a drop.
    #[test]
    fn a_run_follows_dynamic_sgd_alone() {
        let rule = rule(RuleChoice::DynamicSgd);
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
        let at_once = LearningRateOptions { ramp_iterations: Some(0), ..rule };
        assert_eq!(at_once.rate(Some(first), begin(10, 400)).at(10), 4.0);
    }

    #[test]
    fn the_other_rules_are_followed_as_far_as_they_can_be() {
        let grown = |choice| rule(choice).rate(Some(1.0.into()), begin(10, 400));
        assert_eq!(grown(RuleChoice::None).at(10), 1.0);
        assert_eq!(grown(RuleChoice::Linear).at(10), 4.0);
        assert_eq!(grown(RuleChoice::Sqrt).at(10), 2.0);
        assert_eq!(grown(RuleChoice::Adascale).at(10), 1.0, "only a gain of 1 is known");
        let shrunk = rule(RuleChoice::Adascale).rate(Some(3.5.into()), begin(10, 200));
        assert_eq!(shrunk.at(10), 2.0, "no gain is above the scale");
        // 10 epochs of 1000 samples at a batch of 100: the warm-up takes 100 iterations; the first is one
        // step into it.
        let legw = rule(RuleChoice::Legw).rate(None, begin(0, 100));
        assert_eq!((legw.at(0), legw.at(99), legw.at(500)), (0.01, 1.0, 1.0));
    }

    #[test]
    fn settings_of_other_rules_are_rejected() {
        let wrong = |rule, ramp_iterations, warmup_epochs| {
            LearningRateOptions { rule, ramp_iterations, warmup_epochs }.wrong().unwrap_or_default()
        };
        assert_eq!(wrong(RuleChoice::DynamicSgd, Some(0), None), "");
        assert_eq!(wrong(RuleChoice::Legw, None, Some(0.5)), "");
        for (rule, ramp, warmup, word) in [
            (RuleChoice::Linear, Some(3), None, "--ramp-iterations 3"),
            (RuleChoice::DynamicSgd, None, Some(1.0), "--warmup-epochs 1"),
            (RuleChoice::Legw, Some(3), Some(1.0), "--ramp-iterations"),
            (RuleChoice::Legw, None, None, "--warmup-epochs"),
            (RuleChoice::Legw, None, Some(f64::NAN), "--warmup-epochs NaN"),
        ] {
            let wrong = wrong(rule, ramp, warmup);
            assert!(wrong.contains(word), "{rule:?}: {wrong}");
        }
    }
}
