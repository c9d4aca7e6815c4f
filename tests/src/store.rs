//! A separate store for each test, on either engine, and queries to it without the predictor.

use std::env;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::{ConnectOptions, Connection, Row};
use tempfile::TempDir;

use crate::postgres::{self, Database};

/// With the value `postgres`, tests that support both engines run on PostgreSQL.
const STORE_VARIABLE: &str = "EVENSTEP_TESTS_STORE";

/// An empty store, which is removed with the test.
#[derive(Debug)]
pub enum Store {
    /// A file in a separate folder.
    Sqlite(TempDir),
    /// A file in a folder that the test keeps.
    In(PathBuf),
    /// A separate database.
    Postgres(Database),
}

impl Store {
    /// Creates a database on the shared server if `EVENSTEP_TESTS_STORE` is `postgres`, else an SQLite store.
    ///
    /// # Panics
    /// The variable is `postgres` and no server is configured: no test must pass then.
    pub fn fresh() -> Self {
        match env::var(STORE_VARIABLE).as_deref() {
            Err(_) | Ok("" | "sqlite") => Self::sqlite(),
            Ok("postgres") => Self::Postgres(
                Database::shared(STORE_VARIABLE).expect("EVENSTEP_TESTS_POSTGRES names a server"),
            ),
            Ok(other) => panic!("{STORE_VARIABLE}={other}: must be sqlite or postgres"),
        }
    }

    /// Creates an SQLite store.
    pub fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().expect("a folder"))
    }

    /// Returns the value for `--store`.
    pub fn address(&self) -> String {
        match self {
            Self::Sqlite(folder) => sqlite_address(folder.path()),
            Self::In(folder) => sqlite_address(folder),
            Self::Postgres(database) => database.url(),
        }
    }

    /// Returns the path of the file, if the store is a file.
    pub fn file(&self) -> Option<PathBuf> {
        match self {
            Self::Sqlite(folder) => Some(sqlite_file(folder.path())),
            Self::In(folder) => Some(sqlite_file(folder)),
            Self::Postgres(_) => None,
        }
    }

    /// Returns the cost of a query, independently of the machine's speed: the steps of SQLite's virtual machine, or the pages
    /// that PostgreSQL reads.
    ///
    /// # Panics
    /// The query fails.
    pub fn cost(&self, query: &str) -> u64 {
        match self.file() {
            Some(file) => sqlite_steps(&file, query),
            None => {
                let plan = self.rows(&format!("EXPLAIN (ANALYZE, BUFFERS) {query}"));
                let lines = plan.iter().filter_map(|row| row[0].as_deref());
                // The first line is the sum of the lines below. Without one, nothing was read.
                let pages = lines.map(str::trim).find_map(|line| line.strip_prefix("Buffers: shared "));
                let pages = pages.into_iter().flat_map(str::split_whitespace);
                pages.filter_map(|pages| pages.split_once('=')?.1.parse::<u64>().ok()).sum()
            }
        }
    }

    /// Keeps every predictor from loading a job meanwhile: holds the lock of SQLite's writer, after which a load begins to read,
    /// or the reports of PostgreSQL, which it reads.
    ///
    /// # Panics
    /// The store cannot be locked.
    pub fn without_loads<T: Send>(&self, meanwhile: impl FnOnce() -> T + Send) -> T {
        let done = match self {
            Self::Sqlite(_) | Self::In(_) => postgres::block_on(async {
                let options = sqlx::sqlite::SqliteConnectOptions::from_str(&self.address())?;
                let mut connection = options.disable_statement_logging().connect().await?;
                sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
                let done = meanwhile();
                sqlx::query("ROLLBACK").execute(&mut connection).await?;
                connection.close().await?;
                Ok::<_, sqlx::Error>(done)
            }),
            Self::Postgres(database) => postgres::block_on(async {
                let mut connection = postgres::connect(&database.url()).await?;
                let mut locked = connection.begin().await?;
                sqlx::query("LOCK TABLE report IN ACCESS EXCLUSIVE MODE").execute(&mut *locked).await?;
                let done = meanwhile();
                locked.rollback().await?;
                connection.close().await?;
                Ok(done)
            }),
        };
        done.unwrap_or_else(|error| panic!("locking the store: {error}"))
    }

    /// Returns the rows of a query that both engines support and whose columns are all text.
    pub fn rows(&self, query: &str) -> Vec<Vec<Option<String>>> {
        match self {
            Self::Sqlite(folder) => sqlite_rows(&sqlite_file(folder.path()), query),
            Self::In(folder) => sqlite_rows(&sqlite_file(folder), query),
            Self::Postgres(database) => postgres::rows(&database.url(), query),
        }
    }
}

/// Returns the address of a test's store in a folder.
pub fn sqlite_address(folder: &Path) -> String {
    format!("sqlite://{}", sqlite_file(folder).display())
}

/// Returns the file of a test's store in a folder.
pub fn sqlite_file(folder: &Path) -> PathBuf {
    folder.join("evenstep.db")
}

/// Returns the rows of a query on an SQLite file, whose columns are all text.
pub fn sqlite_rows(file: &Path, query: &str) -> Vec<Vec<Option<String>>> {
    let rows = postgres::block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).disable_statement_logging();
        let mut connection = options.connect().await?;
        let rows = sqlx::query(sqlx::AssertSqlSafe(query)).fetch_all(&mut connection).await?;
        connection.close().await?;
        Ok::<_, sqlx::Error>(rows)
    });
    let rows = rows.unwrap_or_else(|error| panic!("{query}: {error}"));
    rows.iter().map(|row| (0..row.len()).map(|column| row.get(column)).collect()).collect()
}

/// Returns the number of steps of SQLite's virtual machine that a query takes.
fn sqlite_steps(file: &Path, query: &str) -> u64 {
    let steps = Arc::new(AtomicU64::new(0));
    let counted = steps.clone();
    let done = postgres::block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).disable_statement_logging();
        let mut connection = options.connect().await?;
        // The first statement also reads the schema and the planner's statistics.
        sqlx::query("SELECT count(*) FROM job").fetch_all(&mut connection).await?;
        connection.lock_handle().await?.set_progress_handler(1, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            true
        });
        sqlx::query(sqlx::AssertSqlSafe(query)).fetch_all(&mut connection).await?;
        connection.close().await
    });
    done.unwrap_or_else(|error| panic!("{query}: {error}"));
    steps.load(Ordering::Relaxed)
}
