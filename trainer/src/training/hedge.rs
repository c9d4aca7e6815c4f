//! Options of hedged steps: whether an iteration has a shared tail, and how workers claim chunks of it.

use clap::{Args, ValueEnum};
use evenstep_protocol::Hedge;

use crate::claims::ClaimMode;
use crate::plan::Policy;

/// Options of the shared tail.
#[derive(Debug, Clone, Args)]
pub struct HedgeOptions {
    /// Whether the predictor may leave part of an iteration to a shared tail, claimed chunk by chunk
    #[arg(long, value_enum, default_value_t = HedgeChoice::Auto, env = "EVENSTEP_HEDGE")]
    pub hedge: HedgeChoice,
    /// Minimum samples per chunk of a tail; a multiple of --quantum [default: one quantum]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), env = "EVENSTEP_MIN_CHUNK")]
    pub min_chunk: Option<u64>,
    /// When a worker requests its next chunk
    #[arg(long, value_enum, default_value_t = ClaimMode::Ahead, env = "EVENSTEP_CLAIM")]
    pub claim: ClaimMode,
    /// With --policy even: share of each iteration that forms the tail, above 0 and at most 1
    #[arg(long, value_name = "SHARE")]
    pub tail: Option<f64>,
}

/// Whether the predictor may use hedged steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HedgeChoice {
    /// If it expects a shorter step
    Auto,
    /// Never
    Off,
}

impl HedgeOptions {
    /// Returns whether the predictor may hedge iterations of a policy.
    pub fn of(&self, policy: Policy) -> Hedge {
        match self.hedge {
            HedgeChoice::Auto => policy.hedge(),
            HedgeChoice::Off => Hedge::Off,
        }
    }
}
