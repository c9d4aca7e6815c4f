//! How the learning rate follows the global batch where this run knows it best: by the predictor's own formulas.
//!
//! What the predictor answers counts. Until it answers for a changed number of workers, and where it is not asked or away,
//! all ranks work the course out alike from what they were at, the batch and the position in the data.

use std::fmt;

use clap::{Args, ValueEnum};
use evenstep_core::learning_rate::{Change, RampLength, Rule};
use evenstep_protocol::{LearningRateRule, LearningRateSettings};

use crate::plan::Rate;

/// The most epochs of warm-up, as the predictor takes them.
const WARMUP_EPOCHS_MAX: f64 = 1e6;

/// Options of the rule.
#[derive(Debug, Clone, Args)]
pub struct LearningRateOptions {
    /// How the learning rate follows when the global batch grows and shrinks; see --per-worker-batch
    #[arg(long, value_enum, default_value_t = RuleChoice::DynamicSgd, env = "EVENSTEP_RULE")]
    pub rule: RuleChoice,
    /// With --rule dynamic-sgd: iterations of a ramp, 0 for none [default: 8 times the growth]
    #[arg(long)]
    pub ramp_iterations: Option<u64>,
    /// With --rule legw: epochs of warm-up at the batch that the learning rate was chosen for
    #[arg(long)]
    pub warmup_epochs: Option<f64>,
}

/// Rules by which the learning rate follows. With k the global batch over the one that it was chosen for:
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RuleChoice {
    /// It never changes
    None,
    /// Times k, at once
    Linear,
    /// Times the root of k, at once
    Sqrt,
    /// Times k, ramped up, snapped down
    DynamicSgd,
    /// Times the root of k, after a warm-up whose epochs grow with k
    Legw,
    /// By the gain that the noise of the gradients allows, 1 to k: the predictor works it out
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
    /// The rule that is broken, with the values.
    pub fn wrong(&self) -> Option<String> {
        let Self { rule, ramp_iterations, warmup_epochs } = self;
        match (rule, ramp_iterations, warmup_epochs) {
            (RuleChoice::DynamicSgd, _, None) => None,
            (RuleChoice::Legw, None, Some(epochs)) if (0.0..=WARMUP_EPOCHS_MAX).contains(epochs) => None,
            (RuleChoice::Legw, None, Some(epochs)) => {
                Some(format!("--warmup-epochs {epochs} must be 0 to {WARMUP_EPOCHS_MAX}"))
            }
            (RuleChoice::Legw, None, None) => Some("--rule legw needs --warmup-epochs".to_owned()),
            (_, Some(iterations), _) => {
                Some(format!("--ramp-iterations {iterations}: only --rule dynamic-sgd has a ramp"))
            }
            (_, None, Some(epochs)) => {
                Some(format!("--warmup-epochs {epochs}: only --rule legw has a warm-up"))
            }
            (_, None, None) => None,
        }
    }

    /// As the predictor calls the rule.
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

    /// The settings for the predictor, in a run over so many samples an epoch.
    pub fn settings(&self, dataset_samples: u64) -> LearningRateSettings {
        LearningRateSettings {
            ramp_iterations: self.ramp_iterations,
            warmup_epochs: self.warmup_epochs,
            dataset_samples: (self.rule == RuleChoice::Legw).then_some(dataset_samples),
        }
    }

    /// Whether it needs the norms of gradients.
    pub fn needs_norms(&self) -> bool {
        self.rule == RuleChoice::Adascale
    }

    /// The rule in a run over so many samples an epoch.
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

    /// The rate from an iteration on whose global batch may be another one than that before it. `before` is what was in
    /// force; none at the begin of a run.
    pub fn rate(&self, before: Option<Rate>, begin: Beginning) -> Rate {
        let Beginning { iteration, global_batch, base_global_batch, samples, dataset_samples } = begin;
        let law = self.law(dataset_samples);
        if let (Rule::AdaScale, Some(before)) = (law, before) {
            // What the gradients allow at this batch is not known here, only that it lies between 1 and the scale.
            let scale = global_batch as f64 / base_global_batch as f64;
            return before.at(iteration).clamp(scale.min(1.0), scale.max(1.0)).into();
        }
        let multiplier = before.map(|before| before.at(iteration));
        let course: Rate =
            law.course(&Change { iteration, multiplier, global_batch, base_global_batch, samples }).into();
        // Where a course ends depends on the batch alone: with the same end the batch has not changed.
        before.filter(|before| before.end() == course.end()).unwrap_or(course)
    }
}

/// An iteration with which workers begin to train together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beginning {
    /// The iteration.
    pub iteration: u64,
    /// Samples of a whole iteration from then on.
    pub global_batch: u64,
    /// What the learning rate was chosen for.
    pub base_global_batch: u64,
    /// Samples trained before it.
    pub samples: u64,
    /// Samples of an epoch.
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

    fn begin(iteration: u64, global_batch: u64) -> Beginning {
        Beginning { iteration, global_batch, base_global_batch: 100, samples: 0, dataset_samples: 1000 }
    }

    /// The golden of Dynamic SGD, fourfold over 32 iterations: a ramp up, restarted inside, and a snap down.
    #[test]
    fn a_run_follows_dynamic_sgd_alone() {
        let rule = rule(RuleChoice::DynamicSgd);
        let first = rule.rate(None, begin(0, 100));
        assert_eq!(first.at(7), 1.0);
        let grown = rule.rate(Some(first), begin(10, 400));
        for (gone, multiplier) in [(0, 1.0), (1, 1.09375), (8, 1.75), (16, 2.5), (31, 3.90625), (32, 4.0)] {
            assert_eq!(grown.at(10 + gone), multiplier, "{gone} iterations on");
        }
        assert_eq!(rule.rate(Some(grown), begin(18, 400)), grown, "others of the same number change nothing");
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
        assert_eq!(grown(RuleChoice::Adascale).at(10), 1.0, "a gain of 1 is what is known");
        let shrunk = rule(RuleChoice::Adascale).rate(Some(3.5.into()), begin(10, 200));
        assert_eq!(shrunk.at(10), 2.0, "no gain is above the scale");
        // 10 epochs of 1000 samples at a batch of 100: the warm-up takes 100 iterations, the first is one step in.
        let legw = rule(RuleChoice::Legw).rate(None, begin(0, 100));
        assert_eq!((legw.at(0), legw.at(99), legw.at(500)), (0.01, 1.0, 1.0));
    }

    #[test]
    fn settings_of_other_rules_are_refused() {
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
