//! Errors on the wire: RFC 9457 problem details.

use serde::{Deserialize, Serialize};

/// The media type of a problem.
pub const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";

/// Why a request was refused. Programs branch on `type`, people read `title` and `detail`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Stable name of the kind of problem: `urn:evenstep:problem:` and `unknown-job`, `stale-generation`, `infeasible`,
    /// `paused`, `too-large`, `malformed`, `invalid`, ..
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What was wrong here, with the value and the rule.
    pub detail: String,
    /// With `stale-generation`: the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_generation: Option<u64>,
    /// With `infeasible`: the samples to be shared out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// With `infeasible`: the least that the floors take together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_of_floors: Option<u64>,
    /// With `infeasible`: the most that the caps hold together; absent where some worker has no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_of_caps: Option<u64>,
    /// With `paused` and other 503: ask again after this many seconds (as in the Retry-After header).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

impl Problem {
    /// The prefix of every `type`.
    pub const TYPE_PREFIX: &'static str = "urn:evenstep:problem:";

    /// The last part of `type`.
    pub fn slug(&self) -> &str {
        self.kind.strip_prefix(Self::TYPE_PREFIX).unwrap_or(&self.kind)
    }
}
