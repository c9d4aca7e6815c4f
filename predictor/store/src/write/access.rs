//! Writes of tokens and of the audit log.

use crate::access::{AccessChange, AuditEntry};
use crate::database::{Connection, run};
use crate::error::StoreError;

/// Limit of audit entries; the oldest are deleted.
const AUDIT_ENTRIES_MAX: i64 = 100_000;

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

/// Adds an entry to the audit log, and deletes the oldest ones.
///
/// # Errors
/// A database error.
pub(super) async fn audit(
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
