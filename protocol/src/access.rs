//! Tokens, sessions of the page, and the audit log.

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

/// Body of `POST /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Scope of the token: `agent`, `trainer`, `viewer`, `operator`, `metrics` or `admin`.
    pub scope: String,
    /// Pattern of the jobs: `*`, a job ID, or the beginning of job IDs and `*`. Default `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<String>,
    /// Seconds until it expires; default never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// Name of its user; default empty.
    #[serde(default)]
    pub note: String,
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenView {
    /// The public part of the token, which identifies it.
    pub token_id: String,
    /// Scope: the kind of requests that it allows.
    pub scope: String,
    /// Pattern of the jobs for which it allows that.
    pub jobs: String,
    /// Name of its user.
    pub note: String,
    /// Time of its creation, in milliseconds since 1970.
    pub created_unix_ms: i64,
    /// Time at which it expires, in milliseconds since 1970; absent if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<i64>,
    /// Time of its latest use, in milliseconds since 1970; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_unix_ms: Option<i64>,
}

/// Response of `POST /v1/tokens`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedToken {
    /// The token, which is shown only now.
    pub token: String,
    /// Its ID, scope, jobs and times.
    #[serde(flatten)]
    pub view: TokenView,
}

/// Response of `GET /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokensView {
    /// The tokens, the oldest first.
    pub tokens: Vec<TokenView>,
}

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntryView {
    /// Time, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// Author of the change: `token ID`, `anonymous`, or the user of a command.
    pub actor: String,
    /// IP address of the client; absent for commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The change: `job.create`, `job.delete`, `worker.delete`, `worker.override`, `token.create` or `token.revoke`.
    pub action: String,
    /// The job, the job and the worker, or the token.
    pub subject: String,
}

/// Response of `GET /v1/audit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditView {
    /// The entries, the newest first.
    pub entries: Vec<AuditEntryView>,
}

// Secrets are never printed.
impl fmt::Debug for SignIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignIn(..)")
    }
}

impl fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreatedToken").field("view", &self.view).finish_non_exhaustive()
    }
}
