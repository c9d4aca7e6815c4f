//! Errors on the wire: RFC 9457 problem details.

use serde::{Deserialize, Serialize};

/// The media type of a problem.
pub const PROBLEM_CONTENT_TYPE: &str = "application/problem+json";

/// The reason why a request was rejected. Programs branch on `type`, people read `title` and `detail`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Stable identifier of the kind of problem: `urn:evenstep:problem:` and `unknown-job`,
    /// `stale-generation`, `infeasible`, `paused`, `too-large`, `malformed`, `invalid`, ..
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of problem in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The error in this request, with the offending value and the rule.
    pub detail: String,
    /// With `stale-generation`: the current generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_generation: Option<u64>,
    /// With `infeasible`: the number of samples to allocate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// With `infeasible`: the sum of all floors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_of_floors: Option<u64>,
    /// With `infeasible`: the sum of all caps; absent if some worker has no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_of_caps: Option<u64>,
    /// With `paused` and other 503 responses: seconds to wait before the next try (as in the Retry-After
    /// header).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

impl Problem {
    /// Prefix of every `type`.
    pub const TYPE_PREFIX: &'static str = "urn:evenstep:problem:";

    /// Returns the last part of `type`.
    pub fn slug(&self) -> &str {
        self.kind.strip_prefix(Self::TYPE_PREFIX).unwrap_or(&self.kind)
    }
}
