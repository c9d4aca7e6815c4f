//! A real PostgreSQL: the shared server of a test run, and private ones that a test may crash (`scripts/postgres`).

use std::env;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use sqlx::{ConnectOptions, Connection, PgConnection, Row};
use tempfile::TempDir;
use uuid::Uuid;

use crate::binaries::skip;

/// Names the shared server: the URL that `scripts/postgres start` prints.
const SERVER_VARIABLE: &str = "EVENSTEP_TESTS_POSTGRES";
/// The script's status where there is no PostgreSQL on this machine.
const NONE: i32 = 3;

/// A private server, with its data in a folder of its own; both end with the test.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    url: String,
}

impl Postgres {
    /// A new server; None where there is no PostgreSQL here, then the test by this name is skipped, loudly.
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

    /// Its URL, whose database is that of administrators; the same after a restart.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its data folder, which is its user's.
    pub fn data(&self) -> PathBuf {
        let elsewhere = std::fs::read_to_string(self.folder.path().join("place"));
        elsewhere.map_or_else(|_| self.folder.path().to_owned(), |place| place.trim().into()).join("data")
    }

    /// Ends it at once, without a checkpoint.
    pub fn crash(&self) {
        self.run("crash");
    }

    /// Ends it cleanly, and cuts every connection.
    pub fn stop(&self) {
        self.run("stop");
    }

    /// Ends it cleanly where it runs, and starts it on the same port.
    pub fn restart(&self) {
        assert_eq!(self.run("restart"), self.url, "it came back elsewhere");
    }

    fn run(&self, command: &str) -> String {
        script(command, self.folder.path())
            .unwrap_or_else(|(_, said)| panic!("scripts/postgres {command}: {said}"))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A test that fails says why; what is left of its server is of no interest then.
        let _ = script("remove", self.folder.path());
    }
}

/// Runs `scripts/postgres`; what it printed, or its status and what it said.
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

/// A fresh database; dropped with the test, whoever is connected.
#[derive(Debug)]
pub struct Database {
    server: String,
    name: String,
}

impl Database {
    /// One on the shared server that `EVENSTEP_TESTS_POSTGRES` names; None where it names none, then the test by this name is
    /// skipped, loudly.
    pub fn shared(test: &str) -> Option<Self> {
        let server = env::var(SERVER_VARIABLE).ok().filter(|server| !server.is_empty());
        if server.is_none() {
            skip(test, &format!("{SERVER_VARIABLE} names no PostgreSQL (scripts/postgres start .postgres)"));
        }
        Some(Self::on(&server?))
    }

    /// One on a server, by the URL of its administrators' database.
    pub fn on(server: &str) -> Self {
        Self::with(server, "")
    }

    /// The same, with more clauses of `CREATE DATABASE`.
    pub fn with(server: &str, clauses: &str) -> Self {
        let name = format!("evenstep_{}", Uuid::new_v4().simple());
        let database = Self { server: server.to_owned(), name };
        // template0: nobody is ever connected to it, which would be in the way.
        database.administer(&format!("CREATE DATABASE {} TEMPLATE template0 {clauses}", database.name));
        database
    }

    /// Its URL.
    pub fn url(&self) -> String {
        let (server, _) = self.server.rsplit_once('/').expect("a URL that names a database");
        format!("{server}/{}", self.name)
    }

    /// Its name, as in `pg_stat_activity.datname`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A statement on the administrators' database of its server.
    pub fn administer(&self, statement: &str) {
        let done = execute(&self.server, statement);
        done.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }

    /// A statement on it.
    pub fn execute(&self, statement: &str) {
        execute(&self.url(), statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }

    /// Cuts every connection to it that others have, in the middle of whatever it does; returns how many there were.
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
        // Fails where its server is gone already, and the database with it.
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

/// The rows of a query whose columns are all text.
pub fn rows(url: &str, query: &str) -> Vec<Vec<Option<String>>> {
    try_rows(url, query).unwrap_or_else(|error| panic!("{query}: {error}"))
}

/// The rows of a query whose columns are all text.
///
/// # Errors
/// The database refuses it.
pub fn try_rows(url: &str, query: &str) -> Result<Vec<Vec<Option<String>>>, sqlx::Error> {
    let rows = block_on(async {
        let mut connection = connect(url).await?;
        let rows = sqlx::query(sqlx::AssertSqlSafe(query)).fetch_all(&mut connection).await?;
        connection.close().await?;
        Ok::<_, sqlx::Error>(rows)
    })?;
    Ok(rows.iter().map(|row| (0..row.len()).map(|column| row.get(column)).collect()).collect())
}

async fn connect(url: &str) -> Result<PgConnection, sqlx::Error> {
    let options: sqlx::postgres::PgConnectOptions = url.parse()?;
    options.disable_statement_logging().connect().await
}

/// Runs to the end on a thread of its own, so that it may be called on any, also on one of another runtime.
pub(crate) fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(future)
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
