//! Connections of commands: their limits, and whether a predictor serves the store meanwhile.

use std::path::Path;

use crate::database::{Connection, Either, rows, run, scalar};
use crate::error::StoreError;

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A file.
    Sqlite,
    /// A server.
    Postgres,
}

pub(super) fn backend(connection: &Connection) -> Backend {
    match connection {
        Either::Sqlite(_) => Backend::Sqlite,
        Either::Postgres(_) => Backend::Postgres,
    }
}

/// What commands do may take longer than what a service may.
pub(crate) async fn unhurried(connection: &mut Connection) -> Result<(), StoreError> {
    if let Either::Postgres(connection) = connection {
        let sql = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0";
        sqlx::raw_sql(sql).execute(connection).await?;
    }
    Ok(())
}

/// Bytes of a store on disk.
pub(crate) async fn bytes(connection: &mut Connection, file: Option<&Path>) -> Result<u64, StoreError> {
    let Some(file) = file else {
        let size = scalar!(connection, i64, "SELECT pg_database_size(current_database())")?;
        return Ok(size.unwrap_or(0).cast_unsigned());
    };
    let size =
        |ending: &str| std::fs::metadata(format!("{}{ending}", file.display())).map_or(0, |file| file.len());
    Ok(["", "-wal"].map(size).iter().sum())
}

/// Keeps predictors from a PostgreSQL until the transaction ends, and refuses where one is alive.
///
/// # Errors
/// [`StoreError::Served`], [`StoreError::Held`], or where that cannot be found out.
pub(super) async fn nobody_serves(connection: &mut Connection) -> Result<(), StoreError> {
    // Where the source is the target, or another command has it, waiting would be for ever.
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
