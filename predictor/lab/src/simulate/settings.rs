//! The policies by name, and the settings of a simulation.

use std::fmt;
use std::str::FromStr;

use evenstep_core::forecast::Loss;
use evenstep_core::hedge::ClaimCost;
use evenstep_core::plan::Objective;
use serde::{Serialize, Serializer};

/// Ways of sharing out the global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyName {
    /// Equal shares, always: what training without evenstep does.
    Even,
    /// Proportional to the speeds of the warm-up, for ever.
    StaticProportional,
    /// Proportional to the speeds of the iteration before.
    LastValue,
    /// Proportional to an exponential moving average of the speeds.
    Ema,
    /// The service's own forecasts and plans, without a tail: everything is given.
    Base,
    /// The service's own forecasts and plans, hedged: what cannot be foreseen is shared.
    Evenstep,
    /// The shortest possible step: it knows what each worker will do.
    Oracle,
    /// Equal shares, but none for the worker that was slowest in the warm-up.
    WithoutSlowest,
}

impl PolicyName {
    /// Those that can be asked for; [`PolicyName::WithoutSlowest`] is only there for the advice.
    pub const ALL: [Self; 7] = [
        Self::Even,
        Self::StaticProportional,
        Self::LastValue,
        Self::Ema,
        Self::Base,
        Self::Evenstep,
        Self::Oracle,
    ];

    /// Its name.
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

/// No policy is called so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {name:?}; there are {}", PolicyName::ALL.map(PolicyName::as_str).join(", "))]
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

/// What a simulation is run with.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Samples of an iteration.
    pub global_batch: u64,
    /// Every share is a multiple of this, and at least this.
    pub quantum: u64,
    /// Iterations that do not count.
    pub warmup: usize,
    /// Factor of [`PolicyName::Ema`], in (0, 1].
    pub ema: f64,
    /// Evenstep holds its shares while new ones would shorten the expected step by less than this share.
    pub min_gain: f64,
    /// What its plans minimise.
    pub objective: Objective,
    /// What the weights of evenstep's mix are trained on.
    pub loss: Loss,
    /// Whether evenstep fits networks on the way, as the service does beside its requests: most of the time of a simulation.
    pub networks: bool,
    /// What a claim from the tail costs.
    pub claim: ClaimCost,
    /// No chunk of a tail is smaller; a multiple of the quantum.
    pub min_chunk: u64,
    /// The most workers that claim from one counter.
    pub pool_max: usize,
    /// Whether shares are asked for one iteration ahead, before the outcome of the one before is known; else at the
    /// boundary.
    pub ahead: bool,
}
