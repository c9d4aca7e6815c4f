//! Sessions of the page.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Response of `GET /v1/session` and `POST /v1/session`: what the client may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionView {
    /// Whether clients need tokens: `none`, `optional` or `required`.
    pub auth: String,
    /// ID of the client's token; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// The client's scopes.
    pub scopes: Vec<String>,
    /// Pattern of the jobs that the client may use.
    pub jobs: String,
}

/// Body of `POST /v1/session`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    /// The token.
    pub token: String,
}

// Secrets are never printed.
impl fmt::Debug for SignIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignIn(..)")
    }
}
