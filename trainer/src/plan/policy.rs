//! Policies that split iterations.

use std::fmt;

use clap::ValueEnum;
use evenstep_protocol::Hedge;
use serde::{Deserialize, Serialize};

/// Policy that splits iterations over workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The same share for every worker
    Even,
    /// The predictor's allocation, with all samples assigned in advance (forecast only)
    Base,
    /// The predictor's allocation
    Evenstep,
}

impl Policy {
    /// Returns whether the policy queries the predictor.
    pub fn requests_allocations(self) -> bool {
        self != Self::Even
    }

    /// Returns whether part of a batch may form a shared tail.
    pub fn hedge(self) -> Hedge {
        if self == Self::Evenstep { Hedge::Auto } else { Hedge::Off }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Even => "even",
            Self::Base => "base",
            Self::Evenstep => "evenstep",
        })
    }
}
