//! Modes of requesting the next chunk.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// When a worker requests its next chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimMode {
    /// When it has nothing left to compute; it waits for the response
    Need,
    /// Early enough that the response arrives before the worker runs out of samples; it rarely waits
    Ahead,
}
