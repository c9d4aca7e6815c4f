//! Validation of option values that depend on each other.

use super::options::{Options, StepOptions};
use crate::plan::{GLOBAL_BATCH_MAX, Policy};

/// Invalid combination of option values. The message names the values and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidArgs(pub String);

impl Options {
    /// Checks the option values for this number of workers.
    ///
    /// # Errors
    /// Returns the first broken rule, with the values.
    pub fn check(&self, world_size: usize) -> Result<(), InvalidArgs> {
        let mut policies = self.policy.clone();
        policies.sort();
        policies.dedup();
        let wrong = if policies.len() != self.policy.len() {
            format!("--policy {:?}: each policy may appear only once; remove the repetition", self.policy)
        } else if let Some(wrong) = self.out_of_range().or_else(|| self.broken_batch_rule(world_size as u64))
        {
            wrong
        } else if let Some(wrong) = self.broken_tail_rule() {
            wrong
        } else if let Some(wrong) = self.step.wrong() {
            wrong
        } else {
            return self.check_elastic(world_size);
        };
        Err(InvalidArgs(wrong))
    }

    fn check_elastic(&self, world_size: usize) -> Result<(), InvalidArgs> {
        let fewest = u64::from(self.min_workers);
        let wrong = if !self.elastic {
            if self.min_workers == 1 {
                return Ok(());
            }
            format!("--min-workers {fewest}: requires --elastic")
        } else if self.policy.len() > 1 {
            format!("--elastic with --policy {:?}: an elastic run has exactly one policy", self.policy)
        } else if fewest > world_size as u64 {
            format!("--min-workers {fewest}: must be at most the number of workers, {world_size}")
        } else {
            return Ok(());
        };
        Err(InvalidArgs(wrong))
    }

    /// Returns the first value out of its range. The command line cannot produce most of them; the builder can.
    fn out_of_range(&self) -> Option<String> {
        let zero = [
            ("micro-batch", Some(self.micro_batch)),
            ("quantum", Some(self.quantum)),
            ("global-batch", self.global_batch),
            ("per-worker-batch", self.per_worker_batch),
            ("checkpoint-every", self.checkpoint_every),
        ]
        .into_iter()
        .find(|(_, value)| *value == Some(0));
        if let Some((name, _)) = zero {
            Some(format!("--{name} 0: must be at least 1"))
        } else if let Some(batch) = self.global_batch.filter(|batch| *batch > GLOBAL_BATCH_MAX) {
            Some(format!("--global-batch {batch}: must be at most {GLOBAL_BATCH_MAX}"))
        } else {
            (self.resume && self.checkpoint_dir.is_none())
                .then(|| "--resume: requires --checkpoint-dir".to_owned())
        }
    }

    /// Returns the broken rule for batches, with the values.
    fn broken_batch_rule(&self, workers: u64) -> Option<String> {
        let (base, quantum) = (self.base_batch(workers as usize), self.quantum);
        if !base.is_multiple_of(quantum) {
            return Some(format!("--global-batch {base} must be a multiple of --quantum {quantum}"));
        }
        let Some(each) = self.per_worker_batch else {
            return (base / quantum < workers).then(|| {
                format!(
                    "--global-batch {base} must be at least --quantum {quantum} for each of {workers} workers"
                )
            });
        };
        if !each.is_multiple_of(quantum) {
            Some(format!("--per-worker-batch {each} must be a multiple of --quantum {quantum}"))
        } else if each.saturating_mul(workers) > GLOBAL_BATCH_MAX {
            Some(format!(
                "--per-worker-batch {each}: with {workers} workers the global batch exceeds {GLOBAL_BATCH_MAX}"
            ))
        } else {
            None
        }
    }

    /// Returns the broken rule for tails, with the values.
    fn broken_tail_rule(&self) -> Option<String> {
        let share = self.tail?;
        if !(share > 0.0 && share <= 1.0) {
            Some(format!("--tail {share} must be above 0 and at most 1"))
        } else if !self.policy.contains(&Policy::Even) {
            Some(format!("--tail {share}: requires --policy even"))
        } else {
            None
        }
    }
}

impl StepOptions {
    /// Returns the broken rule for the optimizer step, with the value.
    pub fn wrong(&self) -> Option<String> {
        if !(self.lr.is_finite() && self.lr >= 0.0) {
            return Some(format!("--lr {} must be a finite number of at least 0", self.lr));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_only_the_builder_can_set_are_checked() {
        type Change = fn(&mut Options);
        let changes: [(&str, Change); 7] = [
            ("--micro-batch 0", |options| options.micro_batch = 0),
            ("--quantum 0", |options| options.quantum = 0),
            ("--global-batch 0", |options| options.global_batch = Some(0)),
            ("--global-batch 16777217", |options| options.global_batch = Some((1 << 24) + 1)),
            ("--per-worker-batch 0", |options| options.per_worker_batch = Some(0)),
            ("--checkpoint-every 0", |options| options.checkpoint_every = Some(0)),
            ("--resume", |options| options.resume = true),
        ];
        for (named, change) in changes {
            let mut options = Options::parse([""; 0]).unwrap();
            assert_eq!(options.check(2), Ok(()));
            change(&mut options);
            let error = options.check(2).unwrap_err().to_string();
            assert!(error.starts_with(named), "{error}");
        }
    }
}
