//! A real PostgreSQL: the shared server of a test run, and private servers that a test may crash
//! (`scripts/postgres`).

use std::env;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use sqlx::{ConnectOptions, Connection, PgConnection, Row};
use tempfile::TempDir;
use uuid::Uuid;

use crate::binaries::skip;

/// Names the shared server by the URL that `scripts/postgres start` prints.
const SERVER_VARIABLE: &str = "EVENSTEP_TESTS_POSTGRES";
/// Exit code of the script if PostgreSQL is not installed.
const NONE: i32 = 3;

/// A private server with a separate data folder; both end with the test.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    url: String,
}

impl Postgres {
    /// Starts a new server. Returns `None` and reports the test as skipped if PostgreSQL is not installed.
    pub fn start(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        match script("start", folder.path()) {
            Ok(url) => Some(Self { folder, url }),
            Err((NONE, said)) => {
                skip(test, &said);
                None
            }
            Err((_, said)) => panic!("scripts/postgres start: {said}"),
        }
    }

    /// Returns the URL of the administrators' database, which stays the same after a restart.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the data folder, which belongs to the server's user.
    pub fn data(&self) -> PathBuf {
        let elsewhere = std::fs::read_to_string(self.folder.path().join("place"));
        elsewhere.map_or_else(|_| self.folder.path().to_owned(), |place| place.trim().into()).join("data")
    }

    /// Stops the server at once, without a checkpoint.
    pub fn crash(&self) {
        self.run("crash");
    }

    /// Stops the server cleanly and cuts every connection.
    pub fn stop(&self) {
        self.run("stop");
    }

    /// Stops the server cleanly if it runs, and starts it on the same port.
    pub fn restart(&self) {
        assert_eq!(self.run("restart"), self.url, "the URL changed after the restart");
    }

    fn run(&self, command: &str) -> String {
        script(command, self.folder.path())
            .unwrap_or_else(|(_, said)| panic!("scripts/postgres {command}: {said}"))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A failed test reports its own error; the server's folder no longer matters.
        let _ = script("remove", self.folder.path());
    }
}

/// Runs `scripts/postgres`. Returns its output, or its exit code and output on failure.
fn script(command: &str, folder: &Path) -> Result<String, (i32, String)> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/postgres");
    let ran = Command::new(script).arg(command).arg(folder).stdin(Stdio::null()).output();
    let ran = ran.unwrap_or_else(|error| panic!("{script}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if ran.status.success() {
        Ok(text(&ran.stdout))
    } else {
        Err((ran.status.code().unwrap_or(-1), text(&ran.stderr)))
    }
}

/// A new database, dropped with the test even if clients are connected.
#[derive(Debug)]
pub struct Database {
    server: String,
    name: String,
}

impl Database {
    /// Creates a database on the shared server that `EVENSTEP_TESTS_POSTGRES` names. Returns `None` and
    /// reports the test as skipped if the variable is not set.
    pub fn shared(test: &str) -> Option<Self> {
        let server = env::var(SERVER_VARIABLE).ok().filter(|server| !server.is_empty());
        if server.is_none() {
            skip(test, &format!("{SERVER_VARIABLE} names no PostgreSQL (scripts/postgres start .postgres)"));
        }
        Some(Self::on(&server?))
    }

    /// Creates a database on a server, given by the URL of the administrators' database.
    pub fn on(server: &str) -> Self {
        Self::with(server, "")
    }

    /// Creates a database with more clauses of `CREATE DATABASE`.
    pub fn with(server: &str, clauses: &str) -> Self {
        let name = format!("evenstep_{}", Uuid::new_v4().simple());
        let database = Self { server: server.to_owned(), name };
        // No client is ever connected to template0, so nothing blocks the copy.
        database.administer(&format!("CREATE DATABASE {} TEMPLATE template0 {clauses}", database.name));
        database
    }

    /// Returns the URL of the database.
    pub fn url(&self) -> String {
        let (server, _) = self.server.rsplit_once('/').expect("a URL that names a database");
        format!("{server}/{}", self.name)
    }

    /// Returns the name of the database, as in `pg_stat_activity.datname`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a statement on the administrators' database of the server.
    pub fn administer(&self, statement: &str) {
        let done = execute(&self.server, statement);
        done.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }

    /// Runs a statement on this database.
    pub fn execute(&self, statement: &str) {
        execute(&self.url(), statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }

    /// Cuts every other connection to the database, in the middle of its work. Returns the number of
    /// connections.
    pub fn cut(&self) -> u64 {
        let query = format!(
            "SELECT COUNT(pg_terminate_backend(pid))::TEXT FROM pg_stat_activity
             WHERE datname = '{}' AND pid <> pg_backend_pid()",
            self.name
        );
        let rows = rows(&self.server, &query);
        rows[0][0].as_deref().and_then(|count| count.parse().ok()).expect("a number")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Fails if the server, and so the database, no longer exists.
        let _ = execute(&self.server, &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
    }
}

fn execute(url: &str, statement: &str) -> Result<(), sqlx::Error> {
    block_on(async {
        let mut connection = connect(url).await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await?;
        connection.close().await
    })
}

/// Returns the rows of a query whose columns are all text.
pub fn rows(url: &str, query: &str) -> Vec<Vec<Option<String>>> {
    let rows = block_on(async {
        let mut connection = connect(url).await?;
        let rows = sqlx::query(sqlx::AssertSqlSafe(query)).fetch_all(&mut connection).await?;
        connection.close().await?;
        Ok::<_, sqlx::Error>(rows)
    });
    let rows = rows.unwrap_or_else(|error| panic!("{query}: {error}"));
    rows.iter().map(|row| (0..row.len()).map(|column| row.get(column)).collect()).collect()
}

pub(crate) async fn connect(url: &str) -> Result<PgConnection, sqlx::Error> {
    let options: sqlx::postgres::PgConnectOptions = url.parse()?;
    options.disable_statement_logging().connect().await
}

/// Runs a future to the end on a separate thread, so that any thread may call this, even one of another runtime.
pub(crate) fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(future)
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
