//! Multi-row statements with one value list per column: `VALUES` on SQLite, `unnest` of one array per column
//! on PostgreSQL.
//!
//! Every value is bound; no part of a request becomes statement text.

use std::borrow::Cow;

use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, FromRow};

use crate::database::{Connection, Either};
use crate::error::StoreError;

/// Maximum number of values in a statement on SQLite, whose own limit is 32,766.
const SQLITE_VALUES_MAX: usize = 16_384;

/// Values of a column, one per row.
#[derive(Debug)]
pub(crate) enum Column<'a> {
    Text(Vec<Cow<'a, str>>),
    /// JSON: text on SQLite, `jsonb` on PostgreSQL.
    Json(Vec<Cow<'a, str>>),
    Integer(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
}

impl<'a> Column<'a> {
    /// Creates a column of text.
    pub fn text<T: Into<Cow<'a, str>>>(values: impl IntoIterator<Item = T>) -> Self {
        Self::Text(values.into_iter().map(Into::into).collect())
    }

    /// Creates a column of JSON.
    pub fn json<T: Into<Cow<'a, str>>>(values: impl IntoIterator<Item = T>) -> Self {
        Self::Json(values.into_iter().map(Into::into).collect())
    }

    /// Creates a column of integers.
    pub fn integer<T: Into<Option<i64>>>(values: impl IntoIterator<Item = T>) -> Self {
        Self::Integer(values.into_iter().map(Into::into).collect())
    }

    /// Creates a column of floating-point numbers.
    pub fn real<T: Into<Option<f64>>>(values: impl IntoIterator<Item = T>) -> Self {
        Self::Real(values.into_iter().map(Into::into).collect())
    }

    fn len(&self) -> usize {
        match self {
            Self::Text(values) | Self::Json(values) => values.len(),
            Self::Integer(values) => values.len(),
            Self::Real(values) => values.len(),
        }
    }

    fn sqlite_type(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Json(_) => "TEXT",
            Self::Integer(_) => "INTEGER",
            Self::Real(_) => "REAL",
        }
    }

    fn postgres_array(&self) -> &'static str {
        match self {
            Self::Text(_) => "text[]",
            Self::Json(_) => "text[]::jsonb[]",
            Self::Integer(_) => "bigint[]",
            Self::Real(_) => "float8[]",
        }
    }
}

/// Position of the rows in a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowPosition {
    /// After the columns of an `INSERT`.
    Insert,
    /// In parentheses, as a table. SQLite uses an index for multi-column keys only if their types match the
    /// index. Bound values have no type, so they are cast.
    Table,
}

/// Executes a statement in which `{}` stands for the rows. Returns the number of affected rows.
///
/// # Errors
/// If the database rejects the statement.
pub(crate) async fn execute(
    connection: &mut Connection,
    sql: &str,
    place: RowPosition,
    columns: Vec<Column<'_>>,
) -> Result<u64, StoreError> {
    match connection {
        Either::Sqlite(connection) => {
            let mut touched = 0;
            for (text, rows) in sqlite_statements(sql, place, &columns) {
                let query = bind_rows(sqlx::query(AssertSqlSafe(text)), &columns, rows);
                touched += query.execute(&mut *connection).await?.rows_affected();
            }
            Ok(touched)
        }
        Either::Postgres(connection) => {
            let text = postgres_statement(sql, &columns);
            let query = bind_arrays(sqlx::query(AssertSqlSafe(text)), columns);
            Ok(query.execute(connection).await?.rows_affected())
        }
    }
}

/// Executes a statement in which `{}` stands for the rows, and returns the resulting rows.
///
/// # Errors
/// If the database rejects the statement or a row cannot be converted.
pub(crate) async fn fetch<T>(
    connection: &mut Connection,
    sql: &str,
    place: RowPosition,
    columns: Vec<Column<'_>>,
) -> Result<Vec<T>, StoreError>
where
    T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    match connection {
        Either::Sqlite(connection) => {
            let mut fetched = Vec::new();
            for (text, rows) in sqlite_statements(sql, place, &columns) {
                let query = bind_rows(sqlx::query(AssertSqlSafe(text)), &columns, rows);
                for row in query.fetch_all(&mut *connection).await? {
                    fetched.push(T::from_row(&row)?);
                }
            }
            Ok(fetched)
        }
        Either::Postgres(connection) => {
            let text = postgres_statement(sql, &columns);
            let query = bind_arrays(sqlx::query(AssertSqlSafe(text)), columns);
            let rows = query.fetch_all(connection).await?;
            Ok(rows.iter().map(T::from_row).collect::<Result<_, _>>()?)
        }
    }
}

/// Splits the rows into statements of at most [`SQLITE_VALUES_MAX`] values. Returns each statement with its
/// range of rows.
fn sqlite_statements<'a>(
    sql: &'a str,
    place: RowPosition,
    columns: &'a [Column<'_>],
) -> impl Iterator<Item = (String, std::ops::Range<usize>)> + 'a {
    let (rows, width) = (columns.first().map_or(0, Column::len), columns.len().max(1));
    let chunk = (SQLITE_VALUES_MAX / width).max(1);
    let row = format!("({})", vec!["?"; width].join(","));
    (0..rows).step_by(chunk).map(move |first| {
        let chunk = first..rows.min(first + chunk);
        let values = format!("VALUES {}", vec![row.as_str(); chunk.len()].join(","));
        let source = match place {
            RowPosition::Insert => values,
            RowPosition::Table => {
                let cast = |(at, column): (usize, &Column<'_>)| {
                    format!("CAST(column{} AS {})", at + 1, column.sqlite_type())
                };
                let casts: Vec<String> = columns.iter().enumerate().map(cast).collect();
                format!("SELECT {} FROM ({values})", casts.join(","))
            }
        };
        (sql.replace("{}", &source), chunk)
    })
}

fn postgres_statement(sql: &str, columns: &[Column<'_>]) -> String {
    let array = |(at, column): (usize, &Column<'_>)| format!("${}::{}", at + 1, column.postgres_array());
    let arrays: Vec<String> = columns.iter().enumerate().map(array).collect();
    sql.replace("{}", &format!("SELECT * FROM unnest({})", arrays.join(",")))
}

fn bind_rows<'q>(
    mut query: Query<'q, Sqlite, SqliteArguments>,
    columns: &'q [Column<'_>],
    rows: std::ops::Range<usize>,
) -> Query<'q, Sqlite, SqliteArguments> {
    for row in rows {
        for column in columns {
            query = match column {
                Column::Text(values) | Column::Json(values) => query.bind(&*values[row]),
                Column::Integer(values) => query.bind(values[row]),
                Column::Real(values) => query.bind(values[row]),
            };
        }
    }
    query
}

fn bind_arrays<'q>(
    mut query: Query<'q, Postgres, PgArguments>,
    columns: Vec<Column<'q>>,
) -> Query<'q, Postgres, PgArguments> {
    for column in columns {
        query = match column {
            Column::Text(values) | Column::Json(values) => query.bind(values),
            Column::Integer(values) => query.bind(values),
            Column::Real(values) => query.bind(values),
        };
    }
    query
}
