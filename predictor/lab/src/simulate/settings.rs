//! Names of the policies, and settings of a simulation.

use std::fmt;
use std::str::FromStr;

use evenstep_core::hedge::ClaimCost;
use serde::{Serialize, Serializer};

/// Policies that split the global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyName {
    /// Equal shares, as in training without evenstep.
    Even,
    /// Proportional to the speeds of the warm-up.
    StaticProportional,
    /// Proportional to the speeds of the previous iteration.
    LastValue,
    /// Proportional to an exponential moving average of the speeds.
    Ema,
    /// Forecasts and plans of the service without a shared tail.
    Base,
    /// Forecasts and plans of the service with hedged steps.
    Evenstep,
    /// The shortest possible step, with knowledge of the actual speeds.
    Oracle,
    /// Equal shares for all but the worker that was slowest in the warm-up.
    WithoutSlowest,
}

impl PolicyName {
    /// Policies that users can select. [`PolicyName::WithoutSlowest`] exists only for the recommendation.
    pub const ALL: [Self; 7] = [
        Self::Even,
        Self::StaticProportional,
        Self::LastValue,
        Self::Ema,
        Self::Base,
        Self::Evenstep,
        Self::Oracle,
    ];

    /// Name of the policy on the command line and in the JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::StaticProportional => "static_proportional",
            Self::LastValue => "last_value",
            Self::Ema => "ema",
            Self::Base => "base",
            Self::Evenstep => "evenstep",
            Self::Oracle => "oracle",
            Self::WithoutSlowest => "without_slowest",
        }
    }
}

impl Serialize for PolicyName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no policy {name:?}; the policies are {}", PolicyName::ALL.map(PolicyName::as_str).join(", "))]
pub struct UnknownPolicy {
    name: String,
}

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == name);
        found.ok_or_else(|| UnknownPolicy { name: name.into() })
    }
}

/// Cost of a claim from the shared tail: five times the time on loopback. One counter
/// handles 50,000 claims per second; further ones wait.
pub(super) const CLAIM: ClaimCost = ClaimCost { latency_s: 0.0005, busy_s: 0.00002 };

/// Settings of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Samples per iteration.
    pub global_batch: u64,
    /// Quantum in samples: every share is a multiple of it and at least as large.
    pub quantum: u64,
    /// Number of warm-up iterations, which do not count.
    pub warmup: usize,
    /// Whether evenstep fits networks during the run, as the service does in the background. The fits take
    /// most of the time of a simulation.
    pub networks: bool,
}
