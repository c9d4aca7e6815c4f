//! Discovery of the tables and columns of a database.

use sqlx::{PgConnection, SqliteConnection};

use super::table::{Column, Kind, TABLES, TRANSIENT_COLUMNS, Table};
use crate::database::{Connection, Either};
use crate::error::StoreError;

/// A column as the database describes it: name, type, and position in the primary key from 1, or 0 if it is
/// not in the key.
type Described = (String, String, i64);

/// Returns the known tables that exist in the database; older schemas have fewer.
///
/// # Errors
/// If the database cannot be read, or a column has an unknown type.
pub(super) async fn tables(connection: &mut Connection) -> Result<Vec<Table>, StoreError> {
    let mut tables = Vec::with_capacity(TABLES.len());
    for name in TABLES {
        let described = match connection {
            Either::Sqlite(connection) => sqlite_columns(connection, name).await?,
            Either::Postgres(connection) => postgres_columns(connection, name).await?,
        };
        if !described.is_empty() {
            tables.push(table(name, described)?);
        }
    }
    Ok(tables)
}

fn table(name: &str, described: Vec<Described>) -> Result<Table, StoreError> {
    let mut key: Vec<(i64, usize)> = Vec::new();
    let mut columns = Vec::with_capacity(described.len());
    for (column, kind, part) in described {
        if TRANSIENT_COLUMNS.contains(&(name, &column)) {
            continue;
        }
        if part > 0 {
            key.push((part, columns.len()));
        }
        let unknown =
            || StoreError::Table(format!("{name}: column {column} has the unsupported type {kind}"));
        let kind = kind_of(name, &column, &kind).ok_or_else(unknown)?;
        columns.push(Column { name: column, kind });
    }
    key.sort_unstable();
    Ok(Table { name: name.to_owned(), columns, key: key.into_iter().map(|(_, place)| place).collect() })
}

fn kind_of(table: &str, column: &str, kind: &str) -> Option<Kind> {
    Some(match kind {
        "INTEGER" | "bigint" | "integer" | "smallint" => Kind::Integer,
        "REAL" | "double precision" => Kind::Real,
        // SQLite stores JSON as text; columns that are JSON in PostgreSQL are treated as JSON in both.
        "TEXT" if matches!((table, column), ("report", "drivers") | ("node_sample", "sample")) => Kind::Json,
        "TEXT" | "text" => Kind::Text,
        "jsonb" | "json" => Kind::Json,
        "BLOB" | "bytea" => Kind::Bytes,
        _ => return None,
    })
}

/// Returns the columns of a table; empty if the table does not exist.
async fn sqlite_columns(
    connection: &mut SqliteConnection,
    table: &str,
) -> Result<Vec<Described>, StoreError> {
    let sql = "SELECT name, type, pk FROM pragma_table_xinfo($1) WHERE hidden = 0 ORDER BY cid";
    Ok(sqlx::query_as(sql).bind(table).fetch_all(connection).await?)
}

/// Returns the columns of a table, without generated columns; empty if the table does not exist.
async fn postgres_columns(connection: &mut PgConnection, table: &str) -> Result<Vec<Described>, StoreError> {
    let sql = "SELECT attname::text, format_type(atttypid, NULL),
                   coalesce(array_position(string_to_array(indkey::text, ' '), attnum::text), 0)::bigint
               FROM pg_attribute LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
               WHERE attrelid = to_regclass(quote_ident($1)) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
               ORDER BY attnum";
    Ok(sqlx::query_as(sql).bind(table).fetch_all(connection).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volatile_values_stay_and_keys_keep_their_order() {
        let described = |name: &str, part| (name.to_owned(), "text".to_owned(), part);
        let columns = vec![described("owner", 0), described("b", 2), described("a", 1)];
        let job = table("job", columns).unwrap();
        assert_eq!((job.columns.len(), job.key), (2, vec![1, 0]));
        let error = table("node", vec![("y".to_owned(), "point".to_owned(), 0)]).unwrap_err();
        assert!(error.to_string().contains("node: column y has the unsupported type point"), "{error}");
    }
}
