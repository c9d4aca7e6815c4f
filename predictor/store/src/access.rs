//! Tokens of clients, and the record of who changed what.

mod direct;

use crate::from_row::from_row;

pub use direct::AccessStore;

/// Limit of stored tokens.
pub const TOKENS_MAX: usize = 10_000;

/// A stored token. The token itself is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredToken {
    /// The public part of the token, which identifies it.
    pub token_id: String,
    /// SHA-256 of the secret part.
    pub secret_sha256: Vec<u8>,
    /// The kind of requests that it allows.
    pub scope: String,
    /// Pattern of the jobs for which it allows that.
    pub jobs: String,
    /// Name of its user.
    pub note: String,
    /// Time of its creation, in milliseconds since 1970.
    pub created_unix_ms: i64,
    /// Time at which it expires, in milliseconds since 1970; `None` if it never expires.
    pub expires_unix_ms: Option<i64>,
    /// Time of its latest use, in milliseconds since 1970, a minute late at most; `None` before the first.
    pub last_used_unix_ms: Option<i64>,
}

from_row!(StoredToken {
    token_id,
    secret_sha256,
    scope,
    jobs,
    note,
    created_unix_ms,
    expires_unix_ms,
    last_used_unix_ms
});

/// An entry of the audit log, without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// The token, or the user of a command.
    pub actor: String,
    /// IP address of the client; `None` for commands.
    pub address: Option<String>,
    /// Kind of the subject and a verb, such as `job.delete`.
    pub action: String,
    /// The changed job, worker or token.
    pub subject: String,
}

impl AuditEntry {
    /// An entry of a client without a token and a known address.
    pub fn anonymous(action: &str, subject: impl Into<String>) -> Self {
        Self { actor: "anonymous".into(), address: None, action: action.into(), subject: subject.into() }
    }
}

/// An entry of the audit log with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAuditEntry {
    /// Time, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// The entry.
    pub entry: AuditEntry,
}

from_row!(AuditEntry { actor, address, action, subject });
from_row!(StoredAuditEntry { at_unix_ms; whole: entry });

/// A change of tokens or of the audit log.
#[derive(Debug, Clone)]
pub enum AccessChange {
    /// Adds a token.
    Create(StoredToken),
    /// Deletes a token.
    Revoke {
        /// The token.
        token_id: String,
    },
    /// Stores the times of the latest use of tokens, in milliseconds since 1970.
    Used(Vec<(String, i64)>),
    /// Adds an entry to the audit log.
    Audit(AuditEntry),
}
