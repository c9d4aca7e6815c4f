//! Rows of a table as a stream of pages.

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::table::{Cell, Column, Kind, Row, Table, quoted};
use crate::database::{Connection, Either, scalar};
use crate::encode::Json;
use crate::error::StoreError;

/// Approximate size of a page, in bytes; a larger row forms a single-row page.
const PAGE_BYTES: usize = 4 << 20;

/// A stream of rows.
pub struct Rows<'a> {
    stream: BoxStream<'a, Result<Row, StoreError>>,
}

impl Rows<'_> {
    /// Returns the next page of rows; empty at the end.
    ///
    /// # Errors
    /// If the rest of the table cannot be read.
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
            Box::pin(rows.and_then(|row| std::future::ready(row_from_sqlite(table, &row))))
                as BoxStream<'a, _>
        }
        Either::Postgres(connection) => {
            let query = sqlx::query(sql);
            let query = if let Some(job_id) = job_id { query.bind(job_id) } else { query };
            let rows = query.fetch(connection).map_err(StoreError::from);
            Box::pin(rows.and_then(|row| std::future::ready(row_from_postgres(table, &row))))
        }
    };
    Rows { stream }
}

/// Selects a column such that it can be decoded as its kind.
fn selected(kind: Kind, name: &str) -> String {
    let name = quoted(name);
    match kind {
        Kind::Integer => format!("CAST({name} AS BIGINT) AS {name}"),
        Kind::Json => format!("CAST({name} AS TEXT) AS {name}"),
        Kind::Real | Kind::Text | Kind::Bytes => name,
    }
}

macro_rules! row_reader {
    ($name:ident, $row:ty) => {
        fn $name(table: &Table, row: &$row) -> Result<Row, StoreError> {
            let cell = |(place, column): (usize, &Column)| {
                Ok(match column.kind {
                    Kind::Integer => row.try_get::<Option<i64>, _>(place)?.map_or(Cell::Null, Cell::Integer),
                    Kind::Real => row.try_get::<Option<f64>, _>(place)?.map_or(Cell::Null, Cell::Real),
                    // Damaged text is exported as bytes.
                    Kind::Text | Kind::Json => {
                        row.try_get::<Option<Json>, _>(place)?.map_or(Cell::Null, |Json(text)| {
                            String::from_utf8(text)
                                .map_or_else(|damaged| Cell::Bytes(damaged.into_bytes()), Cell::Text)
                        })
                    }
                    Kind::Bytes => row.try_get::<Option<Vec<u8>>, _>(place)?.map_or(Cell::Null, Cell::Bytes),
                })
            };
            table.columns.iter().enumerate().map(cell).collect()
        }
    };
}

row_reader!(row_from_sqlite, SqliteRow);
row_reader!(row_from_postgres, PgRow);
