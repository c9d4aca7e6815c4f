//! One of two databases, and one text of SQL for both.
//!
//! SQL that both understand is written once, with `$1` for arguments. [`on!`] expands a body for the connection or pool
//! that is there; [`run!`], [`rows!`] and [`scalar!`] are the common bodies.

use std::path::Path;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection as _, PgConnection, SqliteConnection};

use crate::address::Address;
use crate::error::StoreError;

/// Connections for reading.
const READERS: u32 = 4;
/// Connections for leases and for who owns what.
const LEASE_CONNECTIONS: u32 = 2;
/// How readers of PostgreSQL see it; SQLite's transactions are like this always.
const SNAPSHOTS: (&str, &str) = ("default_transaction_isolation", "repeatable read");
/// How long a connection to SQLite waits for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a reader waits for a connection: a database that is away is said to be away before the client gives up.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// What PostgreSQL ends by itself: a statement that hangs, and a transaction whose predictor stands still. The second one
/// bounds how long a stopped predictor can hold up the takeover of its jobs.
const POSTGRES_LIMITS: [(&str, &str); 2] =
    [("statement_timeout", "30s"), ("idle_in_transaction_session_timeout", "1s")];

/// A body for whichever database is there.
macro_rules! on {
    ($either:expr, $c:ident => $body:expr) => {
        match $either {
            $crate::database::Either::Sqlite($c) => $body,
            $crate::database::Either::Postgres($c) => $body,
        }
    };
}

/// Executes a statement on a connection; the number of rows that it touched.
macro_rules! run {
    ($connection:expr, $sql:expr $(, $argument:expr)* $(,)?) => {
        $crate::database::on!(&mut *$connection, c => {
            sqlx::query($sql)$(.bind($argument))*.execute(&mut *c).await.map(|done| done.rows_affected())
        })
    };
}

/// Rows of a query on a pool or connection, as values of a type.
macro_rules! rows {
    ($either:expr, $row:ty, $sql:expr $(, $argument:expr)* $(,)?) => {
        $crate::database::on!($either, c => {
            sqlx::query_as::<_, $row>($sql)$(.bind($argument))*.fetch_all(c).await
        })
    };
}

/// The first column of the first row, where there is one.
macro_rules! scalar {
    ($either:expr, $value:ty, $sql:expr $(, $argument:expr)* $(,)?) => {
        $crate::database::on!($either, c => {
            sqlx::query_scalar::<_, $value>($sql)$(.bind($argument))*.fetch_optional(c).await
        })
    };
}

pub(crate) use {on, rows, run, scalar};

/// The same thing of SQLite or of PostgreSQL.
#[derive(Debug, Clone)]
pub(crate) enum Either<S, P> {
    Sqlite(S),
    Postgres(P),
}

/// A connection.
pub(crate) type Connection = Either<SqliteConnection, PgConnection>;
/// Connections for reading.
pub(crate) type Readers = Either<SqlitePool, PgPool>;

/// Opens a connection that commits durably.
///
/// SQLite: WAL, and a sync at every commit, so that an answered allocation outlives a power cut and not only a crash of
/// the process. PostgreSQL: whatever the server is set to, `synchronous_commit` is on for us.
pub(crate) async fn connect(address: &Address) -> Result<Connection, StoreError> {
    Ok(match address {
        Address::Sqlite(file) => Either::Sqlite(sqlite(file).create_if_missing(true).connect().await?),
        Address::Postgres(options) => Either::Postgres(postgres(options).connect().await?),
    })
}

/// Opens a connection that reads what is there, and can do nothing else.
pub(crate) async fn connect_to_read(address: &Address) -> Result<Connection, StoreError> {
    Ok(match address {
        Address::Sqlite(file) => {
            let options =
                SqliteConnectOptions::new().filename(file).read_only(true).busy_timeout(BUSY_TIMEOUT);
            Either::Sqlite(options.disable_statement_logging().connect().await?)
        }
        Address::Postgres(options) => {
            let options = postgres(options).options([("default_transaction_read_only", "on")]);
            Either::Postgres(options.connect().await?)
        }
    })
}

/// Connections for leases, opened when they are needed; none where the database is not shared.
pub(crate) fn lease_connections(address: &Address) -> Option<PgPool> {
    let Address::Postgres(options) = address else { return None };
    let pool = PgPoolOptions::new().max_connections(LEASE_CONNECTIONS).acquire_timeout(ACQUIRE_TIMEOUT);
    Some(pool.connect_lazy_with(postgres(options)))
}

/// Connections for reading, opened when they are needed. What a transaction reads is of one moment.
pub(crate) fn readers(address: &Address) -> Readers {
    match address {
        Address::Sqlite(file) => {
            let pool = SqlitePoolOptions::new().max_connections(READERS).acquire_timeout(ACQUIRE_TIMEOUT);
            Either::Sqlite(pool.connect_lazy_with(sqlite(file)))
        }
        Address::Postgres(options) => {
            let pool = PgPoolOptions::new().max_connections(READERS).acquire_timeout(ACQUIRE_TIMEOUT);
            Either::Postgres(pool.connect_lazy_with(postgres(options).options([SNAPSHOTS])))
        }
    }
}

/// Closes a connection; SQLite's with a checkpoint, so that the file stands alone.
pub(crate) async fn close(mut connection: Connection) {
    if let Either::Sqlite(connection) = &mut connection
        && let Err(error) = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection).await
    {
        tracing::warn!(%error, "the last checkpoint failed; the WAL file holds what is missing");
    }
    if let Err(error) = on!(connection, c => c.close().await) {
        tracing::warn!(%error, "closing the database failed");
    }
}

fn sqlite(file: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(file)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}

fn postgres(options: &PgConnectOptions) -> PgConnectOptions {
    options
        .clone()
        .application_name("evenstep-predictor")
        .options([("synchronous_commit", "on"), ("timezone", "UTC"), ("client_min_messages", "warning")])
        .options(POSTGRES_LIMITS)
        .disable_statement_logging()
}
