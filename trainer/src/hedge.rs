//! Options of hedged steps: whether part of an iteration is left to a shared tail, and how it is claimed.

use clap::{Args, ValueEnum};
use evenstep_protocol::Hedge;
use serde::{Deserialize, Serialize};

use crate::cli::{Policy, TrainArgs};
use crate::plan::tail::SharedTail;

/// Options of the tail.
#[derive(Debug, Clone, Args)]
pub struct HedgeArgs {
    /// Whether the predictor may leave part of an iteration to a shared tail, which whoever is free claims chunk by chunk
    #[arg(long, value_enum, default_value_t = HedgeChoice::Auto, env = "EVENSTEP_HEDGE")]
    pub hedge: HedgeChoice,
    /// No chunk of a tail has fewer samples; a multiple of --quantum [default: one quantum]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), env = "EVENSTEP_MIN_CHUNK")]
    pub min_chunk: Option<u64>,
    /// When a worker asks for its next chunk
    #[arg(long, value_enum, default_value_t = ClaimMode::Ahead, env = "EVENSTEP_CLAIM")]
    pub claim: ClaimMode,
    /// With the policy even: this share of each iteration is a tail, and nobody needs to be asked
    #[arg(long, value_name = "SHARE")]
    pub tail: Option<f64>,
}

/// Whether the predictor may hedge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HedgeChoice {
    /// Where it expects the step to be shorter for it
    Auto,
    /// Never
    Off,
}

/// When a worker asks for its next chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimMode {
    /// When it has nothing left to compute: it waits for the answer
    Need,
    /// So long before it has nothing left to compute that the answer is there in time: it rarely waits
    Ahead,
}

impl HedgeArgs {
    /// Whether the predictor may hedge iterations of a policy.
    pub fn of(&self, policy: Policy) -> Hedge {
        match self.hedge {
            HedgeChoice::Auto => policy.hedge(),
            HedgeChoice::Off => Hedge::Off,
        }
    }
}

impl TrainArgs {
    /// The tail of even splits, where one is wanted.
    pub fn even_tail(&self) -> Option<SharedTail> {
        let min_chunk = self.hedge.min_chunk.unwrap_or(self.quantum);
        self.hedge.tail.map(|share| SharedTail { share, min_chunk })
    }

    /// The rule for tails that is broken, with the values.
    pub(crate) fn wrong_tail(&self) -> Option<String> {
        let HedgeArgs { min_chunk, tail, .. } = self.hedge;
        let broken = min_chunk.filter(|chunk| !chunk.is_multiple_of(self.quantum));
        if let Some(chunk) = broken {
            return Some(format!("--min-chunk {chunk} must be a multiple of --quantum {}", self.quantum));
        }
        let share = tail?;
        if !(share > 0.0 && share <= 1.0) {
            Some(format!("--tail {share} must be above 0 and at most 1"))
        } else if !self.policy.contains(&Policy::Even) {
            Some(format!("--tail {share}: only --policy even makes a tail of its own"))
        } else {
            let unbound = |cap| {
                format!("--tail {share} with --max-local-batch {cap}: nothing bounds what a worker claims")
            };
            self.max_local_batch.map(unbound)
        }
    }
}
