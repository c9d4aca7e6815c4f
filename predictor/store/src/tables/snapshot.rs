//! A read-only snapshot of a store, which predictors may serve meanwhile.

use std::path::PathBuf;

use sqlx::Connection as _;

use super::discover;
use super::rows::{self, Rows};
use super::session::{self, Backend};
use super::table::Table;
use crate::address::Address;
use crate::database::{Connection, Either, connect_to_read, on, run};
use crate::error::StoreError;
use crate::file::{LockedFile, lock};
use crate::schema;

/// A snapshot of a store at the time when it was opened.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) connection: Connection,
    file: Option<PathBuf>,
    schema: (i64, i64),
    tables: Vec<Table>,
    /// Held if no predictor may serve the file meanwhile.
    lock: Option<LockedFile>,
}

impl Snapshot {
    /// Opens a store for reading.
    ///
    /// # Errors
    /// If the store cannot be read, is not an evenstep store, or has a newer schema than this binary
    /// supports.
    pub async fn open(address: &Address) -> Result<Self, StoreError> {
        let mut connection = connect_to_read(address).await?;
        session::lift_time_limits(&mut connection).await?;
        schema::check(&mut connection).await?;
        let found = schema::found(&mut connection).await?.ok_or(StoreError::Foreign)?;
        let schema = (found, schema::known(&connection));
        begin(&mut connection).await?;
        let tables = discover::tables(&mut connection).await?;
        Ok(Self { connection, file: address.file().map(Into::into), schema, tables, lock: None })
    }

    /// Opens a store that no predictor serves, and prevents predictors from serving it meanwhile, so the
    /// snapshot is complete.
    ///
    /// # Errors
    /// See [`Snapshot::open`]; also if a predictor serves the store.
    pub async fn open_unserved(address: &Address) -> Result<Self, StoreError> {
        let mut snapshot = Self::open(address).await?;
        snapshot.lock = address.file().map(lock).transpose()?;
        // Includes writes that were made before the lock.
        snapshot.restart_snapshot().await?;
        if snapshot.lock.is_none() {
            session::require_unserved(&mut snapshot.connection).await?;
        }
        Ok(snapshot)
    }

    /// Returns the database engine.
    pub fn backend(&self) -> Backend {
        session::backend(&self.connection)
    }

    /// Returns the schema version of the store, and the newest version that this binary supports.
    pub fn schema(&self) -> (i64, i64) {
        self.schema
    }

    /// Returns the tables, each after the tables that its rows refer to.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Returns the size on disk in bytes: of SQLite's files, or of the whole PostgreSQL database.
    ///
    /// # Errors
    /// If the size cannot be determined.
    pub async fn bytes(&mut self) -> Result<u64, StoreError> {
        session::bytes(&mut self.connection, self.file.as_deref()).await
    }

    /// Returns the number of rows of a table.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub async fn count(&mut self, table: &Table) -> Result<u64, StoreError> {
        rows::count(&mut self.connection, table).await
    }

    /// Streams the rows of a table in key order, optionally only the rows of one job.
    pub fn rows<'a>(&'a mut self, table: &'a Table, job_id: Option<&str>) -> Rows<'a> {
        rows::rows(&mut self.connection, table, job_id)
    }

    /// Starts a new snapshot after an error, which may have ended the transaction.
    ///
    /// # Errors
    /// If the database cannot be read at all.
    pub async fn restart_snapshot(&mut self) -> Result<(), StoreError> {
        // Fails if the error has ended the transaction already.
        let _ = run!(&mut self.connection, "ROLLBACK");
        begin(&mut self.connection).await
    }

    /// Closes the connection.
    ///
    /// # Errors
    /// If the database returns an error.
    pub async fn close(self) -> Result<(), StoreError> {
        Ok(on!(self.connection, c => c.close().await)?)
    }
}

async fn begin(connection: &mut Connection) -> Result<(), StoreError> {
    let sql = match connection {
        // An SQLite transaction begins with its first query.
        Either::Sqlite(_) => "BEGIN; SELECT count(*) FROM sqlite_schema",
        Either::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    };
    on!(connection, c => sqlx::raw_sql(sql).execute(c).await.map(drop))?;
    Ok(())
}
