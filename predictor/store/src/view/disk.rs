//! Number of stored rows, and disk usage.

use evenstep_protocol::LevelView;
use sqlx::{PgConnection, SqliteConnection};

use super::View;
use crate::database::{Either, rows, scalar};
use crate::error::StoreError;
use crate::schema;

use crate::summary::{HOUR_S, MINUTE_S};

/// Approximate overhead of a PostgreSQL row and its index entries, in bytes.
const POSTGRES_ROW_OVERHEAD_BYTES: f64 = 120.0;

/// Disk usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUse {
    /// Size on disk, in bytes.
    pub disk_bytes: u64,
    /// Part of `disk_bytes` that holds live data, in bytes; an estimate on PostgreSQL.
    pub used_bytes: u64,
}

impl View {
    /// Returns the schema version.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn schema(&mut self) -> Result<i64, StoreError> {
        let newest = scalar!(self.connection()?, Option<i64>, schema::NEWEST)?;
        Ok(newest.flatten().unwrap_or(0))
    }

    /// Returns the disk usage.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn disk_use(&mut self) -> Result<DiskUse, StoreError> {
        match self.connection()? {
            Either::Sqlite(connection) => sqlite_disk_use(connection).await,
            Either::Postgres(connection) => postgres_disk_use(connection).await,
        }
    }

    /// Returns the number of rows and the oldest time per retention level, raw data first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn levels(&mut self) -> Result<Vec<LevelView>, StoreError> {
        let mut levels = Vec::new();
        for (level, table, count, oldest) in RAW {
            let rows = match self.connection()? {
                Either::Sqlite(connection) => sqlx::query_scalar(count).fetch_one(connection).await?,
                Either::Postgres(connection) => postgres_rows(connection, table).await?,
            };
            let oldest = scalar!(self.connection()?, Option<i64>, oldest)?.flatten();
            levels.push(view(level, rows, oldest));
        }
        for (level, step_s, sql) in SUMMARIES {
            let counted = rows!(self.connection()?, (i64, Option<i64>), sql, step_s)?;
            let (rows, oldest) = counted.into_iter().next().unwrap_or((0, None));
            levels.push(view(level, rows, oldest));
        }
        Ok(levels)
    }
}

/// Counts the rows of a table, with a bound: views may not take longer because the history is long.
macro_rules! counted {
    ($table:literal) => {
        concat!("SELECT count(*) FROM (SELECT 1 FROM ", $table, " LIMIT 1000000) AS counted")
    };
}

/// Counts the rows of a level of summaries, with the same bound, and finds the oldest in the order of an index.
macro_rules! steps {
    ($rows:literal, $oldest:literal) => {
        concat!(
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM ",
            $rows,
            " LIMIT 1000000) AS counted), ",
            $oldest
        )
    };
}

/// Counts of the rows of the tables of raw data. PostgreSQL has estimates.
pub(crate) const SAMPLES: &str = counted!("node_sample");
pub(crate) const REPORTS: &str = counted!("report");
pub(crate) const ALLOCATIONS: &str = counted!("allocation");

/// The time of the oldest row of each of these tables.
pub(crate) const OLDEST_SAMPLE: &str = "SELECT min(at_unix_ms) FROM (
    SELECT (SELECT min(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node) AS at_unix_ms
    FROM node) AS oldest";
pub(crate) const OLDEST_REPORT: &str = "SELECT min(at_unix_ms) FROM (
    SELECT (SELECT at_unix_ms FROM report WHERE report.job_id = job.job_id ORDER BY iteration LIMIT 1) AS at_unix_ms
    FROM job) AS oldest";
pub(crate) const OLDEST_ALLOCATION: &str = "SELECT min(at_unix_ms) FROM (
    SELECT (SELECT at_unix_ms FROM allocation WHERE allocation.job_id = job.job_id ORDER BY iteration LIMIT 1)
           AS at_unix_ms
    FROM job) AS oldest";

/// Levels of raw data: name, table, its count in SQLite, and its oldest time.
const RAW: [(&str, &str, &str, &str); 3] = [
    ("samples", "node_sample", SAMPLES, OLDEST_SAMPLE),
    ("reports", "report", REPORTS, OLDEST_REPORT),
    ("answers", "allocation", ALLOCATIONS, OLDEST_ALLOCATION),
];

/// The number of summaries of a level, and the time of the oldest.
pub(crate) const NODE_STEPS: &str =
    steps!("node_summary WHERE step_s = $1", "(SELECT min(at_unix_ms) FROM node_summary WHERE step_s = $1)");
pub(crate) const WORKER_STEPS: &str = steps!(
    "job CROSS JOIN worker_summary WHERE worker_summary.job_id = job.job_id AND step_s = $1",
    "(SELECT min(at_unix_ms) FROM (
         SELECT (SELECT min(at_unix_ms) FROM worker_summary
                 WHERE worker_summary.job_id = job.job_id AND step_s = $1) AS at_unix_ms
         FROM job) AS oldest)"
);

const SUMMARIES: [(&str, i64, &str); 4] = [
    ("node_minutes", MINUTE_S, NODE_STEPS),
    ("node_hours", HOUR_S, NODE_STEPS),
    ("worker_minutes", MINUTE_S, WORKER_STEPS),
    ("worker_hours", HOUR_S, WORKER_STEPS),
];

fn view(level: &str, rows: i64, oldest_unix_ms: Option<i64>) -> LevelView {
    LevelView { level: level.to_owned(), rows: u64::try_from(rows).unwrap_or(0), oldest_unix_ms }
}

async fn sqlite_disk_use(connection: &mut SqliteConnection) -> Result<DiskUse, StoreError> {
    let sql = "SELECT page_count * page_size, (page_count - freelist_count) * page_size, file
               FROM pragma_page_count, pragma_page_size, pragma_freelist_count, pragma_database_list WHERE name = 'main'";
    let (disk, used, file): (i64, i64, String) = sqlx::query_as(sql).fetch_one(connection).await?;
    // Size of the write-ahead log; 0 if the file does not exist.
    let log = std::fs::metadata(format!("{file}-wal")).map_or(0, |log| log.len());
    let [disk, used] = [disk, used].map(i64::cast_unsigned);
    Ok(DiskUse { disk_bytes: disk + log, used_bytes: used })
}

/// Returns the planner statistics' number of live rows, because counting would read the whole table.
async fn postgres_rows(connection: &mut PgConnection, table: &str) -> Result<i64, StoreError> {
    let sql = "SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = to_regclass($1)";
    Ok(sqlx::query_scalar(sql).bind(table).fetch_optional(connection).await?.unwrap_or(0))
}

async fn postgres_disk_use(connection: &mut PgConnection) -> Result<DiskUse, StoreError> {
    let disk: i64 =
        sqlx::query_scalar("SELECT pg_database_size(current_database())").fetch_one(&mut *connection).await?;
    // Estimates from the number of live rows and a sample of row sizes, because tables do not shrink when
    // rows are deleted.
    let mut used = 0.0;
    for (table, sizes) in [
        (
            "node_sample",
            "SELECT avg(pg_column_size(seen.*))::float8 FROM (SELECT * FROM node_sample LIMIT 500) AS seen",
        ),
        (
            "report",
            "SELECT avg(pg_column_size(seen.*))::float8 FROM (SELECT * FROM report LIMIT 500) AS seen",
        ),
        (
            "allocation",
            "SELECT avg(pg_column_size(seen.*))::float8 FROM (SELECT * FROM allocation LIMIT 500) AS seen",
        ),
        ("step", "SELECT avg(pg_column_size(seen.*))::float8 FROM (SELECT * FROM step LIMIT 500) AS seen"),
        (
            "node_summary",
            "SELECT avg(pg_column_size(seen.*))::float8 FROM (SELECT * FROM node_summary LIMIT 500) AS seen",
        ),
        (
            "worker_summary",
            "SELECT avg(pg_column_size(seen.*))::float8 FROM (SELECT * FROM worker_summary LIMIT 500) AS seen",
        ),
    ] {
        let rows = postgres_rows(connection, table).await?;
        let size: Option<f64> = sqlx::query_scalar(sizes).fetch_one(&mut *connection).await?;
        used += rows as f64 * (size.unwrap_or(0.0) + POSTGRES_ROW_OVERHEAD_BYTES);
    }
    Ok(DiskUse { disk_bytes: disk.cast_unsigned(), used_bytes: used as u64 })
}
