//! The bare insert: the same rows in the same batches without the service. Each batch is one statement of
//! many rows (SQLite) or one COPY (PostgreSQL) and one commit, on one connection, because the service has one
//! writer.

use std::fmt::Write;
use std::future::Future;
use std::path::Path;
use std::time::Instant;

use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, SqliteConnection};

use tokio::runtime::Runtime;

use crate::samples::{BOOT_ID, Batches, Row};

/// Samples per second into an SQLite file.
pub fn sqlite(file: &Path, nodes: &[Batches]) -> f64 {
    let mut connection = run(open(file));
    let rate = rate(nodes, |node, rows| run(insert(&mut connection, node, rows)));
    run(connection.close()).expect("the database closes");
    rate
}

/// Samples per second into an empty PostgreSQL database.
pub fn postgres(url: &str, nodes: &[Batches]) -> f64 {
    let mut connection = run(async {
        let mut connection = PgConnection::connect(url).await.expect("a database");
        schema("postgres").await.run(&mut connection).await.expect("our schema");
        connection
    });
    let rate = rate(nodes, |node, rows| run(copy(&mut connection, node, rows)));
    run(connection.close()).expect("the database closes");
    rate
}

thread_local! {
    static RUNTIME: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
}

fn run<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

fn rate(nodes: &[Batches], mut insert: impl FnMut(&str, &[Row])) -> f64 {
    let started = Instant::now();
    // In the order of time: the first batch of each node, then the second of each node.
    for batch in 0..nodes[0].rows.len() {
        for node in nodes {
            insert(&node.node, &node.rows[batch]);
        }
    }
    nodes.iter().map(Batches::samples).sum::<usize>() as f64 / started.elapsed().as_secs_f64()
}

/// The schema of the service.
async fn schema(database: &str) -> Migrator {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations").join(database);
    Migrator::new(folder).await.expect("our migrations")
}

/// A database with the schema and the durability of the service.
async fn open(file: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging();
    let mut connection = options.connect().await.expect("a database");
    schema("sqlite").await.run(&mut connection).await.expect("our schema");
    connection
}

async fn insert(connection: &mut SqliteConnection, node: &str, rows: &[Row]) {
    let values = vec!["(?,?,?,?,?)"; rows.len()].join(",");
    let insert =
        format!("INSERT INTO node_sample (node, boot_id, sequence, at_unix_ms, sample) VALUES {values}");
    let mut query = sqlx::query(AssertSqlSafe(insert));
    for row in rows {
        query = query.bind(node).bind(BOOT_ID).bind(row.sequence).bind(row.at_unix_ms).bind(&row.sample);
    }
    query.execute(connection).await.expect("rows");
}

async fn copy(connection: &mut PgConnection, node: &str, rows: &[Row]) {
    let mut lines = String::new();
    for Row { sequence, at_unix_ms, sample } in rows {
        // The samples contain no characters that need escapes.
        writeln!(lines, "{node}\t{BOOT_ID}\t{sequence}\t{at_unix_ms}\t{sample}").expect("text");
    }
    let copy = "COPY node_sample (node, boot_id, sequence, at_unix_ms, sample) FROM STDIN";
    let mut copy = connection.copy_in_raw(copy).await.expect("a COPY");
    copy.send(lines.as_bytes()).await.expect("rows");
    copy.finish().await.expect("a commit");
}
