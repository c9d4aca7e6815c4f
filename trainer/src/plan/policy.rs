//! How iterations are shared out, and when the predictor is asked.

use std::fmt;

use clap::ValueEnum;
use evenstep_protocol::Hedge;
use serde::{Deserialize, Serialize};

/// How iterations are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The same share for every worker.
    Even,
    /// What the predictor says, with every sample given to a worker: by forecast only.
    Base,
    /// What the predictor says.
    Evenstep,
}

impl Policy {
    /// Whether the predictor is asked.
    pub fn asks(self) -> bool {
        self != Self::Even
    }

    /// Whether part of a batch may be left to a shared tail.
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

/// When rank 0 asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskMode {
    /// Between iterations, with drivers just read.
    Boundary,
    /// While the iteration before computes.
    Ahead,
}
