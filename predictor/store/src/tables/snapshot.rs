//! A store as it was at one moment, beside whoever serves it. Nothing is changed.

use std::fs::File;
use std::path::PathBuf;

use sqlx::Connection as _;

use super::discover;
use super::rows::{self, Rows};
use super::session::{self, Backend};
use super::table::Table;
use crate::address::Address;
use crate::database::{Connection, Either, connect_to_read, on, run};
use crate::error::StoreError;
use crate::lock::lock;
use crate::schema;

/// A store as it was when it was opened.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) connection: Connection,
    file: Option<PathBuf>,
    schema: (i64, i64),
    tables: Vec<Table>,
    /// Held where nobody may serve it meanwhile.
    lock: Option<File>,
}

impl Snapshot {
    /// Opens a store for reading.
    ///
    /// # Errors
    /// Where it cannot be read, is none of ours, or its schema is newer than what this binary knows.
    pub async fn open(address: &Address) -> Result<Self, StoreError> {
        let mut connection = connect_to_read(address).await?;
        session::unhurried(&mut connection).await?;
        schema::check(&mut connection).await?;
        let found = schema::found(&mut connection).await?.ok_or(StoreError::Foreign)?;
        let schema = (found, schema::known(&connection));
        begin(&mut connection).await?;
        let tables = discover::tables(&mut connection).await?;
        Ok(Self { connection, file: address.file().map(Into::into), schema, tables, lock: None })
    }

    /// Opens a store that nobody serves, and keeps it so: what is read is all that there is.
    ///
    /// # Errors
    /// As [`Snapshot::open`], or where a predictor serves it.
    pub async fn open_unserved(address: &Address) -> Result<Self, StoreError> {
        let mut snapshot = Self::open(address).await?;
        snapshot.lock = address.file().map(lock).transpose()?;
        // What was written before nobody could write any more counts.
        snapshot.begin_again().await?;
        if snapshot.lock.is_none() {
            session::nobody_serves(&mut snapshot.connection).await?;
        }
        Ok(snapshot)
    }

    /// Which database it is in.
    pub fn backend(&self) -> Backend {
        session::backend(&self.connection)
    }

    /// The version of its schema, and the newest that this binary knows.
    pub fn schema(&self) -> (i64, i64) {
        self.schema
    }

    /// Its tables, each after those that its rows refer to.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Bytes that it takes on disk: of SQLite its files, of PostgreSQL the whole database.
    ///
    /// # Errors
    /// Where that cannot be found out.
    pub async fn bytes(&mut self) -> Result<u64, StoreError> {
        session::bytes(&mut self.connection, self.file.as_deref()).await
    }

    /// Rows of a table.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub async fn count(&mut self, table: &Table) -> Result<u64, StoreError> {
        rows::count(&mut self.connection, table).await
    }

    /// The rows of a table, or those of one job, in the order of the key.
    pub fn rows<'a>(&'a mut self, table: &'a Table, job_id: Option<&str>) -> Rows<'a> {
        rows::rows(&mut self.connection, table, job_id)
    }

    /// Goes on after an error, which may have ended the moment that was looked at: from a new one.
    ///
    /// # Errors
    /// Where the database cannot be read at all.
    pub async fn begin_again(&mut self) -> Result<(), StoreError> {
        // Where the error ended the transaction there is nothing to end.
        let _ = run!(&mut self.connection, "ROLLBACK");
        begin(&mut self.connection).await
    }

    /// Closes it.
    ///
    /// # Errors
    /// Where the database says so.
    pub async fn close(self) -> Result<(), StoreError> {
        Ok(on!(self.connection, c => c.close().await)?)
    }
}

async fn begin(connection: &mut Connection) -> Result<(), StoreError> {
    let sql = match connection {
        // A transaction of SQLite begins with its first look.
        Either::Sqlite(_) => "BEGIN; SELECT count(*) FROM sqlite_schema",
        Either::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    };
    on!(connection, c => sqlx::raw_sql(sql).execute(c).await.map(drop))?;
    Ok(())
}
