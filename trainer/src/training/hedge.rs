//! Options of hedged steps: whether part of an iteration is left to a shared tail, and how it is claimed.

use clap::{Args, ValueEnum};
use evenstep_protocol::Hedge;

use crate::claims::ClaimMode;
use crate::plan::Policy;

/// Options of the tail.
#[derive(Debug, Clone, Args)]
pub struct HedgeOptions {
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

impl HedgeOptions {
    /// Whether the predictor may hedge iterations of a policy.
    pub fn of(&self, policy: Policy) -> Hedge {
        match self.hedge {
            HedgeChoice::Auto => policy.hedge(),
            HedgeChoice::Off => Hedge::Off,
        }
    }
}
