//! Tokens of clients, and the record of who changed what.

mod direct;

use crate::database::{Connection, rows, run};
use crate::error::StoreError;
use crate::from_row::from_row;
use crate::store::Store;

pub use direct::AccessStore;

/// Limit of stored tokens.
pub const TOKENS_MAX: usize = 10_000;
/// Limit of audit entries; the oldest are deleted.
pub const AUDIT_ENTRIES_MAX: i64 = 100_000;

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

/// Applies a change. Returns the number of affected rows.
///
/// # Errors
/// A database error.
pub(crate) async fn apply(
    connection: &mut Connection,
    change: &AccessChange,
    at_unix_ms: i64,
) -> Result<u64, StoreError> {
    match change {
        AccessChange::Create(token) => Ok(run!(
            connection,
            "INSERT INTO token VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            token.token_id.as_str(),
            token.secret_sha256.as_slice(),
            token.scope.as_str(),
            token.jobs.as_str(),
            token.note.as_str(),
            token.created_unix_ms,
            token.expires_unix_ms,
            token.last_used_unix_ms,
        )?),
        AccessChange::Revoke { token_id } => {
            Ok(run!(connection, "DELETE FROM token WHERE token_id = $1", token_id.as_str())?)
        }
        AccessChange::Used(times) => {
            let mut updated = 0;
            for (token_id, at) in times {
                // Several predictors may have seen the token.
                let sql = "UPDATE token SET last_used_unix_ms = $2
                           WHERE token_id = $1 AND coalesce(last_used_unix_ms, 0) < $2";
                updated += run!(connection, sql, token_id.as_str(), *at)?;
            }
            Ok(updated)
        }
        AccessChange::Audit(entry) => audit(connection, entry, at_unix_ms).await,
    }
}

pub(crate) async fn audit(
    connection: &mut Connection,
    entry: &AuditEntry,
    at_unix_ms: i64,
) -> Result<u64, StoreError> {
    let added = run!(
        connection,
        "INSERT INTO audit (at_unix_ms, actor, address, action, subject) VALUES ($1, $2, $3, $4, $5)",
        at_unix_ms,
        entry.actor.as_str(),
        entry.address.as_deref(),
        entry.action.as_str(),
        entry.subject.as_str(),
    )?;
    run!(connection, "DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - $1", AUDIT_ENTRIES_MAX)?;
    Ok(added)
}

const TOKENS: &str = "SELECT token_id, secret_sha256, scope, jobs, note, created_unix_ms, expires_unix_ms,
    last_used_unix_ms FROM token ORDER BY created_unix_ms, token_id LIMIT $1";

impl Store {
    /// Returns all tokens, the oldest first.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn tokens(&self) -> Result<Vec<StoredToken>, StoreError> {
        Ok(rows!(&self.readers, StoredToken, TOKENS, TOKENS_MAX as i64)?)
    }
}
