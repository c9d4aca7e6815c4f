//! A store as it was at one moment, beside whoever serves it. Nothing is changed.

use std::fs::File;
use std::path::PathBuf;

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use super::target::nobody_serves;
use super::{Cell, Kind, Row, Table, discover, quoted};
use crate::database::{Connection, Either, connect_to_read, on, run, scalar};
use crate::{Address, StoreError, lock, schema};

/// Bytes of rows that are taken from a table at once, about; a row that is larger comes alone.
const PAGE_BYTES: usize = 4 << 20;

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A file.
    Sqlite,
    /// A server.
    Postgres,
}

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
        unhurried(&mut connection).await?;
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
            nobody_serves(&mut snapshot.connection).await?;
        }
        Ok(snapshot)
    }

    /// Which database it is in.
    pub fn backend(&self) -> Backend {
        backend(&self.connection)
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
        bytes(&mut self.connection, self.file.as_deref()).await
    }

    /// Rows of a table.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub async fn count(&mut self, table: &Table) -> Result<u64, StoreError> {
        count(&mut self.connection, table).await
    }

    /// The rows of a table, or those of one job, in the order of the key.
    pub fn rows<'a>(&'a mut self, table: &'a Table, job_id: Option<&str>) -> Rows<'a> {
        rows(&mut self.connection, table, job_id)
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

/// Rows on their way.
pub struct Rows<'a> {
    stream: BoxStream<'a, Result<Row, StoreError>>,
}

impl Rows<'_> {
    /// The next rows, some megabytes of them; none at the end.
    ///
    /// # Errors
    /// Where the table cannot be read any further.
    pub async fn page(&mut self) -> Result<Vec<Row>, StoreError> {
        let mut page = Vec::new();
        let mut bytes = 0;
        while bytes < PAGE_BYTES
            && let Some(row) = self.stream.try_next().await?
        {
            bytes += row.iter().map(Cell::bytes).sum::<usize>();
            page.push(row);
        }
        Ok(page)
    }
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
pub(crate) async fn bytes(
    connection: &mut Connection,
    file: Option<&std::path::Path>,
) -> Result<u64, StoreError> {
    let Some(file) = file else {
        let size = scalar!(connection, i64, "SELECT pg_database_size(current_database())")?;
        return Ok(size.unwrap_or(0).cast_unsigned());
    };
    let size =
        |ending: &str| std::fs::metadata(format!("{}{ending}", file.display())).map_or(0, |file| file.len());
    Ok(["", "-wal"].map(size).iter().sum())
}

pub(super) async fn count(connection: &mut Connection, table: &Table) -> Result<u64, StoreError> {
    let sql = format!("SELECT count(*) FROM {}", quoted(&table.name));
    Ok(scalar!(connection, i64, AssertSqlSafe(sql))?.unwrap_or(0).cast_unsigned())
}

pub(super) fn rows<'a>(connection: &'a mut Connection, table: &'a Table, job_id: Option<&str>) -> Rows<'a> {
    let columns: Vec<String> =
        table.columns.iter().map(|column| selected(column.kind, &column.name)).collect();
    let place = |place: &usize| quoted(&table.columns[*place].name);
    let key: Vec<String> = table.key.iter().map(place).collect();
    let filter = if job_id.is_some() { "WHERE job_id = $1" } else { "" };
    let order = if key.is_empty() { String::new() } else { format!("ORDER BY {}", key.join(", ")) };
    let (columns, name) = (columns.join(", "), quoted(&table.name));
    let sql = AssertSqlSafe(format!("SELECT {columns} FROM {name} {filter} {order}"));
    let job_id = job_id.map(str::to_owned);
    let stream = match connection {
        Either::Sqlite(connection) => {
            let query = sqlx::query(sql);
            let query = if let Some(job_id) = job_id { query.bind(job_id) } else { query };
            let rows = query.fetch(connection).map_err(StoreError::from);
            Box::pin(rows.and_then(|row| std::future::ready(of_sqlite(table, &row)))) as BoxStream<'a, _>
        }
        Either::Postgres(connection) => {
            let query = sqlx::query(sql);
            let query = if let Some(job_id) = job_id { query.bind(job_id) } else { query };
            let rows = query.fetch(connection).map_err(StoreError::from);
            Box::pin(rows.and_then(|row| std::future::ready(of_postgres(table, &row))))
        }
    };
    Rows { stream }
}

/// A column so that it can be read as its kind.
fn selected(kind: Kind, name: &str) -> String {
    let name = quoted(name);
    match kind {
        Kind::Integer => format!("CAST({name} AS BIGINT) AS {name}"),
        Kind::Json => format!("CAST({name} AS TEXT) AS {name}"),
        Kind::Real | Kind::Text | Kind::Bytes => name,
    }
}

macro_rules! of_row {
    ($name:ident, $row:ty) => {
        fn $name(table: &Table, row: &$row) -> Result<Row, StoreError> {
            let cell = |(place, column): (usize, &super::Column)| {
                Ok(match column.kind {
                    Kind::Integer => row.try_get::<Option<i64>, _>(place)?.map_or(Cell::Null, Cell::Integer),
                    Kind::Real => row.try_get::<Option<f64>, _>(place)?.map_or(Cell::Null, Cell::Real),
                    Kind::Text | Kind::Json => {
                        row.try_get::<Option<String>, _>(place)?.map_or(Cell::Null, Cell::Text)
                    }
                    Kind::Bytes => row.try_get::<Option<Vec<u8>>, _>(place)?.map_or(Cell::Null, Cell::Bytes),
                })
            };
            table.columns.iter().enumerate().map(cell).collect()
        }
    };
}

of_row!(of_sqlite, SqliteRow);
of_row!(of_postgres, PgRow);

async fn begin(connection: &mut Connection) -> Result<(), StoreError> {
    let sql = match connection {
        // A transaction of SQLite begins with its first look.
        Either::Sqlite(_) => "BEGIN; SELECT count(*) FROM sqlite_schema",
        Either::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    };
    on!(connection, c => sqlx::raw_sql(sql).execute(c).await.map(drop))?;
    Ok(())
}
