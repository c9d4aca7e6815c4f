//! Release of the space of deleted rows, and backups of SQLite files.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sqlx::Connection as _;

use crate::address::Address;
use crate::database::{self, Connection, Either, connect_to_read, on, run};
use crate::error::StoreError;
use crate::file::{PRIVATE, lock};
use crate::schema;
use crate::tables::session::{bytes, lift_time_limits};

/// Releases the space of deleted rows, and returns the size on disk before and after, in bytes. SQLite
/// rewrites its file, which no process may serve meanwhile. PostgreSQL frees space for future rows and
/// updates its planner statistics, also while predictors serve the store.
///
/// # Errors
/// If the store is being served (SQLite), is not an evenstep store, or the database fails.
pub async fn vacuum(address: &Address) -> Result<(u64, u64), StoreError> {
    close_reader(open(address).await?).await?;
    let _lock = address.file().map(lock).transpose()?;
    let mut connection = database::connect(address).await?;
    lift_time_limits(&mut connection).await?;
    let before = bytes(&mut connection, address.file()).await?;
    match &mut connection {
        Either::Sqlite(_) => {
            run!(&mut connection, "VACUUM")?;
            // The rewritten pages are in the write-ahead log until a checkpoint.
            run!(&mut connection, "PRAGMA wal_checkpoint(TRUNCATE)")?;
        }
        Either::Postgres(_) => {
            run!(&mut connection, "VACUUM (ANALYZE)")?;
        }
    }
    let after = bytes(&mut connection, address.file()).await?;
    database::close(connection).await;
    Ok((before, after))
}

/// Writes a compact snapshot of an SQLite store to a new file, also while a predictor serves the store. The
/// file appears once it is complete and durable. Returns the size of both files in bytes.
///
/// # Errors
/// If the store is not an evenstep store or is on PostgreSQL, the file exists, or a file cannot be written.
pub async fn back_up(address: &Address, into: &Path) -> Result<(u64, u64), StoreError> {
    let Some(file) = address.file() else { return Err(StoreError::NotSqlite) };
    let failed = |source| StoreError::File { path: into.to_owned(), source };
    if into.try_exists().map_err(failed)? {
        return Err(StoreError::Exists(into.to_owned()));
    }
    let mut partial = into.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let mut connection = open(address).await?;
    let before = bytes(&mut connection, Some(file)).await?;
    let written = async {
        // Removes the leftover of an interrupted backup.
        let _ = fs::remove_file(&partial);
        // SQLite fills an empty file, which keeps its permissions.
        let created = File::options().write(true).create_new(true).mode(PRIVATE).open(&partial);
        created.map_err(failed)?;
        if let Either::Sqlite(connection) = &mut connection {
            sqlx::query("VACUUM INTO $1").bind(partial.to_string_lossy()).execute(connection).await?;
        }
        let whole = File::open(&partial).and_then(|file| file.sync_all().and_then(|()| file.metadata()));
        // A hard link instead of a rename: it fails if another process has created the file meanwhile.
        fs::hard_link(&partial, into).map_err(failed)?;
        let folder = into.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()).map_err(failed)?;
        Ok::<_, StoreError>(whole.map_err(failed)?.len())
    }
    .await;
    let _ = fs::remove_file(&partial);
    close_reader(connection).await?;
    Ok((before, written?))
}

/// Opens a connection for reading an existing evenstep store.
async fn open(address: &Address) -> Result<Connection, StoreError> {
    let mut connection = connect_to_read(address).await?;
    lift_time_limits(&mut connection).await?;
    schema::check(&mut connection).await?;
    schema::found(&mut connection).await?.ok_or(StoreError::Foreign)?;
    Ok(connection)
}

async fn close_reader(connection: Connection) -> Result<(), StoreError> {
    Ok(on!(connection, c => c.close().await)?)
}
