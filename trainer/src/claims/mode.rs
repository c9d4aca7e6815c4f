//! When a worker requests its next chunk.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// When a worker requests its next chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimMode {
    /// When it has nothing left to compute: it waits for the answer
    Need,
    /// So long before it has nothing left to compute that the answer is there in time: it rarely waits
    Ahead,
}
