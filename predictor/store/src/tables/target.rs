//! An empty store that an import fills in one transaction.

use sqlx::{AssertSqlSafe, PgConnection, SqliteConnection};

use super::rows::{self, Rows};
use super::table::{Cell, Kind, Row, Table, quoted};
use super::{discover, session};
use crate::address::Address;
use crate::copy::{MESSAGE_BYTES, push_text};
use crate::database::{self, Connection, Either, run};
use crate::error::StoreError;
use crate::file::{LockedFile, lock};
use crate::schema;

/// Maximum number of values in a statement on SQLite, whose own limit is 32,766.
const VALUES_MAX: usize = 16_384;

/// A store that is being filled. If it is dropped before [`Target::commit`], nothing changes.
#[derive(Debug)]
pub struct Target {
    connection: Connection,
    tables: Vec<Table>,
    /// Held so that no predictor starts to serve the file meanwhile.
    _lock: Option<LockedFile>,
}

impl Target {
    /// Opens a store to fill, creates it if it does not exist, and upgrades its schema.
    ///
    /// # Errors
    /// If the store cannot be used, a predictor serves it, or it contains rows.
    pub async fn open(address: &Address) -> Result<Self, StoreError> {
        let lock = address.file().map(lock).transpose()?;
        schema::inspect(address).await?;
        let mut connection = database::connect(address).await?;
        session::lift_time_limits(&mut connection).await?;
        schema::update(&mut connection).await?;
        begin(&mut connection).await?;
        let tables = discover::tables(&mut connection).await?;
        let mut there = Vec::new();
        for table in &tables {
            let rows = rows::count(&mut connection, table).await?;
            if rows > 0 {
                there.push(format!("{} ({rows})", table.name));
            }
        }
        if there.is_empty() {
            Ok(Self { connection, tables, _lock: lock })
        } else {
            Err(StoreError::NotEmpty(there.join(", ")))
        }
    }

    /// Returns a table by name.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// Inserts rows that were read from `from`, a table of another store, into the table of the same name.
    ///
    /// # Errors
    /// If this store lacks the table or one of its columns, or the database rejects a row.
    pub async fn insert(&mut self, from: &Table, rows: &[Row]) -> Result<(), StoreError> {
        let known = self.tables.iter().find(|table| table.name == from.name);
        let known =
            known.ok_or_else(|| StoreError::Table(format!("the target has no table {}", from.name)))?;
        if let Some(column) = from.columns.iter().find(|column| known.place(&column.name).is_none()) {
            return Err(StoreError::Table(format!(
                "the target's table {} has no column {}",
                from.name, column.name
            )));
        }
        match &mut self.connection {
            Either::Sqlite(connection) => insert_into_sqlite(connection, from, rows).await,
            Either::Postgres(connection) => copy_into_postgres(connection, from, rows).await,
        }
    }

    /// Reads back the rows of a table, with the columns of `from`.
    pub fn rows<'a>(&'a mut self, from: &'a Table) -> Rows<'a> {
        rows::rows(&mut self.connection, from, None)
    }

    /// Commits the import durably.
    ///
    /// # Errors
    /// If the database fails; nothing was changed then.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        if let Either::Postgres(connection) = &mut self.connection {
            for table in &self.tables {
                advance_sequences(connection, table).await?;
            }
        }
        run!(&mut self.connection, "COMMIT")?;
        database::close(self.connection).await;
        Ok(())
    }
}

async fn begin(connection: &mut Connection) -> Result<(), StoreError> {
    match connection {
        Either::Sqlite(_) => {
            run!(connection, "BEGIN IMMEDIATE")?;
        }
        Either::Postgres(_) => {
            run!(connection, "BEGIN")?;
            session::require_unserved(connection).await?;
        }
    }
    Ok(())
}

async fn insert_into_sqlite(
    connection: &mut SqliteConnection,
    table: &Table,
    rows: &[Row],
) -> Result<(), StoreError> {
    let columns = table.columns.len().max(1);
    for rows in rows.chunks((VALUES_MAX / columns).max(1)) {
        let values = vec![format!("({})", vec!["?"; columns].join(", ")); rows.len()].join(", ");
        let sql = format!("INSERT INTO {} ({}) VALUES {values}", quoted(&table.name), table.column_list());
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for cell in rows.iter().flatten() {
            query = match cell {
                Cell::Null => query.bind(None::<i64>),
                Cell::Integer(value) => query.bind(*value),
                Cell::Real(value) => query.bind(*value),
                Cell::Text(text) => query.bind(text),
                Cell::Bytes(bytes) => query.bind(bytes),
            };
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

async fn copy_into_postgres(
    connection: &mut PgConnection,
    table: &Table,
    rows: &[Row],
) -> Result<(), StoreError> {
    let sql = format!("COPY {} ({}) FROM STDIN", quoted(&table.name), table.column_list());
    let mut copy = connection.copy_in_raw(&sql).await?;
    let mut message = String::new();
    for row in rows {
        for (place, cell) in row.iter().enumerate() {
            message.push_str(if place == 0 { "" } else { "\t" });
            push_copied(&mut message, cell);
        }
        message.push('\n');
        if message.len() >= MESSAGE_BYTES {
            copy.send(message.as_bytes()).await?;
            message.clear();
        }
    }
    if !message.is_empty() {
        copy.send(message.as_bytes()).await?;
    }
    copy.finish().await?;
    Ok(())
}

/// Appends a value in the text format of COPY.
fn push_copied(message: &mut String, cell: &Cell) {
    use std::fmt::Write as _;
    // Writing to a string cannot fail.
    let _ = match cell {
        Cell::Null => write!(message, "\\N"),
        Cell::Integer(value) => write!(message, "{value}"),
        Cell::Real(value) => write!(message, "{value:?}"),
        Cell::Text(text) => {
            push_text(message, text);
            Ok(())
        }
        Cell::Bytes(bytes) => {
            message.push_str("\\\\x");
            bytes.iter().try_for_each(|byte| write!(message, "{byte:02x}"))
        }
    };
}

/// Advances the sequences of generated numbers past the imported values.
async fn advance_sequences(connection: &mut PgConnection, table: &Table) -> Result<(), StoreError> {
    for column in table.columns.iter().filter(|column| column.kind == Kind::Integer) {
        let sequence = "SELECT pg_get_serial_sequence(quote_ident($1), $2)";
        let query = sqlx::query_scalar(sequence).bind(&table.name).bind(&column.name);
        let sequence: Option<String> = query.fetch_one(&mut *connection).await?;
        let Some(sequence) = sequence else { continue };
        let (column, name) = (quoted(&column.name), quoted(&table.name));
        let sql = format!(
            "SELECT setval($1::regclass, max({column})) FROM {name} HAVING max({column}) IS NOT NULL"
        );
        sqlx::query(AssertSqlSafe(sql)).bind(sequence).execute(&mut *connection).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_as_copy_reads_them() {
        let mut message = String::new();
        let cells = [
            Cell::Text("a\\b\tc\nd\re".into()),
            Cell::Null,
            Cell::Text("\\N".into()),
            Cell::Real(1e300),
            Cell::Real(f64::INFINITY),
            Cell::Bytes(vec![0, 255]),
            Cell::Integer(i64::MIN),
        ];
        for cell in &cells {
            push_copied(&mut message, cell);
            message.push('|');
        }
        assert_eq!(message, "a\\\\b\\tc\\nd\\re|\\N|\\\\N|1e300|inf|\\\\x00ff|-9223372036854775808|");
    }
}
