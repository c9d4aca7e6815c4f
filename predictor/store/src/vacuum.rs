//! Giving back the room that deleted rows had, and backups of a file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use sqlx::Connection as _;

use crate::address::Address;
use crate::database::{self, Connection, Either, connect_to_read, on, run};
use crate::error::StoreError;
use crate::lock::lock;
use crate::schema;
use crate::tables::session::{bytes, unhurried};

/// Gives back the room of what was deleted, and returns the bytes on disk before and after. SQLite writes its file anew, and
/// nobody may serve it meanwhile; PostgreSQL frees room for rows to come and renews what its planner knows, beside whoever
/// serves.
///
/// # Errors
/// Where the store is served (SQLite), is none of ours, or the database says no.
pub async fn vacuum(address: &Address) -> Result<(u64, u64), StoreError> {
    close_reader(open(address).await?).await?;
    let _lock = address.file().map(lock).transpose()?;
    let mut connection = database::connect(address).await?;
    unhurried(&mut connection).await?;
    let before = bytes(&mut connection, address.file()).await?;
    match &mut connection {
        Either::Sqlite(_) => {
            run!(&mut connection, "VACUUM")?;
            // The new file is in the log until it is brought over.
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

/// Writes an SQLite store to a new file, as it is at this moment and without the room of what was deleted, beside whoever
/// serves it. The file is there once it is whole and durable. Returns the bytes of both.
///
/// # Errors
/// Where the store is none of ours or on PostgreSQL, a file is there already, or one cannot be written.
pub async fn back_up(address: &Address, into: &Path) -> Result<(u64, u64), StoreError> {
    let Some(file) = address.file() else { return Err(StoreError::NotAFile) };
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
        // Of an attempt that was killed.
        let _ = fs::remove_file(&partial);
        if let Either::Sqlite(connection) = &mut connection {
            sqlx::query("VACUUM INTO $1").bind(partial.to_string_lossy()).execute(connection).await?;
        }
        let whole = File::open(&partial).and_then(|file| file.sync_all().and_then(|()| file.metadata()));
        // A link, and not a new name: it fails where somebody else has made the file meanwhile.
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

/// A connection that reads a store of ours.
async fn open(address: &Address) -> Result<Connection, StoreError> {
    let mut connection = connect_to_read(address).await?;
    unhurried(&mut connection).await?;
    schema::check(&mut connection).await?;
    schema::found(&mut connection).await?.ok_or(StoreError::Foreign)?;
    Ok(connection)
}

async fn close_reader(connection: Connection) -> Result<(), StoreError> {
    Ok(on!(connection, c => c.close().await)?)
}
