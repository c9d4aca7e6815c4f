//! Connections of maintenance commands: time limits, and the check that no predictor serves the store.

use std::path::Path;

use crate::database::{Connection, Either, rows, run, scalar};
use crate::error::StoreError;

/// Database engine of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// SQLite, a file.
    Sqlite,
    /// PostgreSQL, a server.
    Postgres,
}

pub(super) fn backend(connection: &Connection) -> Backend {
    match connection {
        Either::Sqlite(_) => Backend::Sqlite,
        Either::Postgres(_) => Backend::Postgres,
    }
}

/// Lifts the time limits, as maintenance commands take longer than requests to the service.
pub(crate) async fn lift_time_limits(connection: &mut Connection) -> Result<(), StoreError> {
    if let Either::Postgres(connection) = connection {
        let sql = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0";
        sqlx::raw_sql(sql).execute(connection).await?;
    }
    Ok(())
}

/// Returns the size of a store on disk, in bytes.
pub(crate) async fn bytes(connection: &mut Connection, file: Option<&Path>) -> Result<u64, StoreError> {
    let Some(file) = file else {
        let size = scalar!(connection, i64, "SELECT pg_database_size(current_database())")?;
        return Ok(size.unwrap_or(0).cast_unsigned());
    };
    let size =
        |ending: &str| std::fs::metadata(format!("{}{ending}", file.display())).map_or(0, |file| file.len());
    Ok(["", "-wal"].map(size).iter().sum())
}

/// Keeps predictors from using a PostgreSQL store until the transaction ends, and fails if a predictor is
/// alive.
///
/// # Errors
/// [`StoreError::Served`], [`StoreError::Held`], or if the database fails.
pub(super) async fn require_unserved(connection: &mut Connection) -> Result<(), StoreError> {
    // Without a timeout this would wait forever if the source is also the target, or another command holds
    // the store.
    run!(connection, "SET LOCAL lock_timeout = '5s'")?;
    match run!(connection, "LOCK TABLE predictor IN SHARE ROW EXCLUSIVE MODE") {
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("55P03") => {
            return Err(StoreError::Held);
        }
        locked => locked?,
    };
    run!(connection, "SET LOCAL lock_timeout = 0")?;
    let alive = "SELECT url FROM predictor WHERE lease_until > clock_timestamp() ORDER BY url";
    let alive: Vec<(String,)> = rows!(connection, (String,), alive)?;
    match alive.into_iter().map(|(url,)| url).collect::<Vec<_>>() {
        urls if urls.is_empty() => Ok(()),
        urls => Err(StoreError::Served(urls.join(", "))),
    }
}
