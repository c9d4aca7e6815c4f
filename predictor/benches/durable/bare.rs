//! Bare commits: one row of a given size per transaction.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, PgConnection, SqliteConnection};
use tokio::runtime::Runtime;

/// Longest wait of a connection for the locks of other connections.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// The connection of one thread.
pub struct Committer {
    runtime: Runtime,
    connection: Bare,
    row: String,
}

enum Bare {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Committer {
    /// Connects to an SQLite file, to commit rows of `bytes` bytes.
    pub fn sqlite(file: &Path, bytes: usize) -> Self {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .disable_statement_logging();
        Self::new(bytes, async {
            let mut connection = options.connect().await.expect("a database");
            let create =
                "CREATE TABLE IF NOT EXISTS answer (id INTEGER PRIMARY KEY, answer TEXT NOT NULL) STRICT";
            sqlx::query(create).execute(&mut connection).await.expect("a table");
            Bare::Sqlite(connection)
        })
    }

    /// Connects to a PostgreSQL database, to commit rows of `bytes` bytes.
    pub fn postgres(url: &str, bytes: usize) -> Self {
        Self::new(bytes, async {
            let mut connection = PgConnection::connect(url).await.expect("a database");
            let create = "CREATE TABLE IF NOT EXISTS answer (id BIGSERIAL PRIMARY KEY, answer TEXT NOT NULL)";
            sqlx::query(create).execute(&mut connection).await.expect("a table");
            Bare::Postgres(connection)
        })
    }

    fn new(bytes: usize, connect: impl Future<Output = Bare>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let connection = runtime.block_on(connect);
        Self { runtime, connection, row: "x".repeat(bytes) }
    }

    /// Commits one row.
    pub fn commit(&mut self) {
        let Self { runtime, connection, row } = self;
        runtime.block_on(async {
            match connection {
                Bare::Sqlite(connection) => {
                    let mut transaction =
                        connection.begin_with("BEGIN IMMEDIATE").await.expect("a transaction");
                    let insert = sqlx::query("INSERT INTO answer (answer) VALUES ($1)").bind(&*row);
                    insert.execute(&mut *transaction).await.expect("a row");
                    transaction.commit().await.expect("a commit");
                }
                Bare::Postgres(connection) => {
                    let mut transaction = connection.begin().await.expect("a transaction");
                    let insert = sqlx::query("INSERT INTO answer (answer) VALUES ($1)").bind(&*row);
                    insert.execute(&mut *transaction).await.expect("a row");
                    transaction.commit().await.expect("a commit");
                }
            }
        });
    }
}
