//! Access to SQLite and PostgreSQL with the same SQL text.
//!
//! SQL that both databases understand is written once, with `$1` for arguments. [`on!`] expands a body for
//! the actual connection or pool; [`run!`], [`rows!`] and [`scalar!`] are common bodies.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection as _, PgConnection, SqliteConnection};

use crate::address::Address;
use crate::error::StoreError;

/// Maximum number of connections for the reads that training needs.
const READERS: u32 = 4;
/// Maximum number of connections for views.
pub const VIEWERS: u32 = 4;
/// Time after which the database interrupts a view. Views take milliseconds; this limits the work of a view that does not.
pub(crate) const VIEW_MAX: Duration = Duration::from_secs(10);
/// Maximum number of connections for leases and ownership of jobs.
const LEASE_CONNECTIONS: u32 = 2;
/// Isolation of readers on PostgreSQL; SQLite always reads from a snapshot.
const SNAPSHOTS: (&str, &str) = ("default_transaction_isolation", "repeatable read");
/// Maximum time that a connection to SQLite waits for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time that a reader waits for a connection. Clients time out later, so they receive the error.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of the check of an SQLite file at start. It reads about 1 GB/s from memory, and a start must not
/// take longer because the history is long.
const VERIFY_MAX: Duration = Duration::from_secs(1);
/// Number of SQLite's steps between two looks at the time.
const VERIFY_STEPS: i32 = 1000;
/// SQLite's code of a statement that was interrupted.
const INTERRUPTED: &str = "9";
/// Time limits that PostgreSQL enforces on statements and on idle transactions. The second limits how long a
/// stopped predictor can delay the takeover of its jobs.
const POSTGRES_LIMITS: [(&str, &str); 2] =
    [("statement_timeout", "30s"), ("idle_in_transaction_session_timeout", "1s")];
/// The limit of a view's statements, [`VIEW_MAX`].
const POSTGRES_VIEW_LIMIT: (&str, &str) = ("statement_timeout", "10s");

/// Expands a body for either database.
macro_rules! on {
    ($either:expr, $c:ident => $body:expr) => {
        match $either {
            $crate::database::Either::Sqlite($c) => $body,
            $crate::database::Either::Postgres($c) => $body,
        }
    };
}

/// Executes a statement on a connection and returns the number of affected rows.
macro_rules! run {
    ($connection:expr, $sql:expr $(, $argument:expr)* $(,)?) => {
        $crate::database::on!(&mut *$connection, c => {
            sqlx::query($sql)$(.bind($argument))*.execute(&mut *c).await.map(|done| done.rows_affected())
        })
    };
}

/// Returns the rows of a query on a pool or connection, converted to a type.
macro_rules! rows {
    ($either:expr, $row:ty, $sql:expr $(, $argument:expr)* $(,)?) => {
        $crate::database::on!($either, c => {
            sqlx::query_as::<_, $row>($sql)$(.bind($argument))*.fetch_all(c).await
        })
    };
}

/// Returns the first column of the first row, or `None` if there are no rows.
macro_rules! scalar {
    ($either:expr, $value:ty, $sql:expr $(, $argument:expr)* $(,)?) => {
        $crate::database::on!($either, c => {
            sqlx::query_scalar::<_, $value>($sql)$(.bind($argument))*.fetch_optional(c).await
        })
    };
}

pub(crate) use {on, rows, run, scalar};

/// A value for SQLite or for PostgreSQL.
#[derive(Debug, Clone)]
pub(crate) enum Either<S, P> {
    Sqlite(S),
    Postgres(P),
}

/// A connection to the database.
pub(crate) type Connection = Either<SqliteConnection, PgConnection>;
/// A pool of connections for reading.
pub(crate) type Readers = Either<SqlitePool, PgPool>;

/// Opens a connection whose commits are durable.
///
/// - SQLite: an existing file, so that a deleted one is not replaced by an empty one. WAL with a sync at every commit, so that an allocation survives a power failure as well as a
///   crash of the process.
/// - PostgreSQL: `synchronous_commit` is on for this connection, whatever the server's setting.
pub(crate) async fn connect(address: &Address) -> Result<Connection, StoreError> {
    Ok(match address {
        Address::Sqlite(file) => Either::Sqlite(sqlite(file).connect().await?),
        Address::Postgres(options) => {
            let mut connection = postgres(options).connect().await?;
            check_settings(&mut connection).await?;
            Either::Postgres(connection)
        }
    })
}

/// Checks that a connection has its settings. A pooler that drops them, or that gives each transaction another connection, would
/// silently change how durable commits are and what readers see.
async fn check_settings(connection: &mut PgConnection) -> Result<(), StoreError> {
    let [(name, expected), _] = POSTGRES_LIMITS;
    let sql = "SELECT current_setting($1)";
    let found: String = sqlx::query_scalar(sql).bind(name).fetch_one(connection).await?;
    if found == expected { Ok(()) } else { Err(StoreError::Pooler(found)) }
}

/// Checks the structure of an SQLite file, as far as that is possible within [`VERIFY_MAX`].
///
/// # Errors
/// [`StoreError::Damaged`], or if the file cannot be read.
pub(crate) async fn verify(connection: &mut Connection) -> Result<(), StoreError> {
    let Either::Sqlite(connection) = connection else { return Ok(()) };
    let due = Instant::now() + VERIFY_MAX;
    connection.lock_handle().await?.set_progress_handler(VERIFY_STEPS, move || Instant::now() < due);
    let checked = sqlx::query_scalar::<_, String>("PRAGMA quick_check(1)").fetch_one(&mut *connection).await;
    connection.lock_handle().await?.remove_progress_handler();
    match checked {
        Ok(said) if said == "ok" => Ok(()),
        Ok(said) => Err(StoreError::Damaged(said)),
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(INTERRUPTED) => {
            tracing::info!(
                ?VERIFY_MAX,
                "the store is too large to be checked completely at start; `store check` reads all of it"
            );
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Opens a read-only connection to an existing database.
pub(crate) async fn connect_to_read(address: &Address) -> Result<Connection, StoreError> {
    Ok(match address {
        Address::Sqlite(file) => {
            let options =
                SqliteConnectOptions::new().filename(file).read_only(true).busy_timeout(BUSY_TIMEOUT);
            let opened = options.disable_statement_logging().connect().await;
            // SQLite names no reason. The file is opened only after a failure: closing it ends locks of this process.
            Either::Sqlite(opened.map_err(|error| match File::open(file) {
                Err(source) => StoreError::File { path: file.clone(), source },
                Ok(_) => error.into(),
            })?)
        }
        Address::Postgres(options) => {
            let options = postgres(options).options([("default_transaction_read_only", "on")]);
            Either::Postgres(options.connect().await?)
        }
    })
}

/// Returns a lazily connected pool for leases; `None` if the database cannot be shared.
pub(crate) fn lease_connections(address: &Address) -> Option<PgPool> {
    let Address::Postgres(options) = address else { return None };
    let pool = PgPoolOptions::new().max_connections(LEASE_CONNECTIONS).acquire_timeout(ACQUIRE_TIMEOUT);
    Some(pool.connect_lazy_with(postgres(options)))
}

/// Returns lazily connected pools for reading: for training, and for views. Each transaction reads from one snapshot.
pub(crate) fn readers(address: &Address) -> [Readers; 2] {
    match address {
        Address::Sqlite(file) => [READERS, VIEWERS].map(|most| {
            let pool = SqlitePoolOptions::new().max_connections(most).acquire_timeout(ACQUIRE_TIMEOUT);
            Either::Sqlite(pool.connect_lazy_with(sqlite(file)))
        }),
        Address::Postgres(options) => {
            let options = postgres(options).options([SNAPSHOTS]);
            let limited = options.clone().options([POSTGRES_VIEW_LIMIT]);
            [(READERS, options), (VIEWERS, limited)].map(|(most, options)| {
                let pool = PgPoolOptions::new().max_connections(most).acquire_timeout(ACQUIRE_TIMEOUT);
                Either::Postgres(pool.connect_lazy_with(options))
            })
        }
    }
}

/// Closes a connection. SQLite makes a checkpoint first, so that the database file is complete without its
/// WAL.
pub(crate) async fn close(mut connection: Connection) {
    if let Either::Sqlite(connection) = &mut connection
        && let Err(error) = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection).await
    {
        tracing::warn!(%error, "the final checkpoint failed; keep the WAL file, it holds the latest changes");
    }
    if let Err(error) = on!(connection, c => c.close().await) {
        tracing::warn!(%error, "failed to close the database connection");
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
