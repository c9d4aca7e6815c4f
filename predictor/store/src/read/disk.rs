//! Number of stored rows, and disk usage.

use evenstep_protocol::LevelView;
use sqlx::{PgPool, SqlitePool};

use crate::database::{Either, rows, scalar};
use crate::error::StoreError;
use crate::schema;
use crate::store::Store;
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

impl Store {
    /// Returns `sqlite` or `postgres`.
    pub fn backend(&self) -> &'static str {
        match &self.readers {
            Either::Sqlite(_) => "sqlite",
            Either::Postgres(_) => "postgres",
        }
    }

    /// Returns the schema version.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn schema(&self) -> Result<i64, StoreError> {
        let newest = scalar!(&self.readers, Option<i64>, schema::NEWEST)?;
        Ok(newest.flatten().unwrap_or(0))
    }

    /// Returns the disk usage.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn disk_use(&self) -> Result<DiskUse, StoreError> {
        match &self.readers {
            Either::Sqlite(pool) => sqlite_disk_use(pool).await,
            Either::Postgres(pool) => postgres_disk_use(pool).await,
        }
    }

    /// Returns the number of rows and the oldest time per retention level, raw data first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn levels(&self) -> Result<Vec<LevelView>, StoreError> {
        let mut levels = Vec::new();
        for (level, table, oldest) in RAW {
            let rows = match &self.readers {
                Either::Sqlite(pool) => sqlx::query_scalar(table.sqlite_count).fetch_one(pool).await?,
                Either::Postgres(pool) => postgres_rows(pool, table.name).await?,
            };
            let oldest = scalar!(&self.readers, Option<i64>, oldest)?.flatten();
            levels.push(view(level, rows, oldest));
        }
        for (level, step_s, sql) in SUMMARIES {
            let counted = rows!(&self.readers, (i64, Option<i64>), sql, step_s)?;
            let (rows, oldest) = counted.into_iter().next().unwrap_or((0, None));
            levels.push(view(level, rows, oldest));
        }
        Ok(levels)
    }
}

struct Table {
    name: &'static str,
    sqlite_count: &'static str,
}

/// Tables of raw data, with a query for their oldest time that uses an index.
const RAW: [(&str, Table, &str); 3] = [
    (
        "samples",
        Table { name: "node_sample", sqlite_count: "SELECT count(*) FROM node_sample" },
        "SELECT min(at_unix_ms) FROM (
             SELECT (SELECT min(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node) AS at_unix_ms
             FROM node) AS oldest",
    ),
    (
        "reports",
        Table { name: "report", sqlite_count: "SELECT count(*) FROM report" },
        "SELECT min(at_unix_ms) FROM (
             SELECT (SELECT at_unix_ms FROM report WHERE report.job_id = job.job_id ORDER BY iteration LIMIT 1) AS at_unix_ms
             FROM job) AS oldest",
    ),
    (
        "answers",
        Table { name: "allocation", sqlite_count: "SELECT count(*) FROM allocation" },
        "SELECT min(at_unix_ms) FROM (
             SELECT (SELECT at_unix_ms FROM allocation WHERE allocation.job_id = job.job_id ORDER BY iteration LIMIT 1)
                    AS at_unix_ms
             FROM job) AS oldest",
    ),
];

const SUMMARIES: [(&str, i64, &str); 4] = [
    ("node_minutes", MINUTE_S, "SELECT count(*), min(at_unix_ms) FROM node_summary WHERE step_s = $1"),
    ("node_hours", HOUR_S, "SELECT count(*), min(at_unix_ms) FROM node_summary WHERE step_s = $1"),
    ("worker_minutes", MINUTE_S, "SELECT count(*), min(at_unix_ms) FROM worker_summary WHERE step_s = $1"),
    ("worker_hours", HOUR_S, "SELECT count(*), min(at_unix_ms) FROM worker_summary WHERE step_s = $1"),
];

fn view(level: &str, rows: i64, oldest_unix_ms: Option<i64>) -> LevelView {
    LevelView { level: level.to_owned(), rows: u64::try_from(rows).unwrap_or(0), oldest_unix_ms }
}

async fn sqlite_disk_use(pool: &SqlitePool) -> Result<DiskUse, StoreError> {
    let sql = "SELECT page_count * page_size, (page_count - freelist_count) * page_size, file
               FROM pragma_page_count, pragma_page_size, pragma_freelist_count, pragma_database_list WHERE name = 'main'";
    let (disk, used, file): (i64, i64, String) = sqlx::query_as(sql).fetch_one(pool).await?;
    // Size of the write-ahead log; 0 if the file does not exist.
    let log = std::fs::metadata(format!("{file}-wal")).map_or(0, |log| log.len());
    let [disk, used] = [disk, used].map(i64::cast_unsigned);
    Ok(DiskUse { disk_bytes: disk + log, used_bytes: used })
}

/// Returns the planner statistics' number of live rows, because counting would read the whole table.
async fn postgres_rows(pool: &PgPool, table: &str) -> Result<i64, StoreError> {
    let sql = "SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = to_regclass($1)";
    Ok(sqlx::query_scalar(sql).bind(table).fetch_optional(pool).await?.unwrap_or(0))
}

async fn postgres_disk_use(pool: &PgPool) -> Result<DiskUse, StoreError> {
    let disk: i64 = sqlx::query_scalar("SELECT pg_database_size(current_database())").fetch_one(pool).await?;
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
        (
            "node_summary",
            "SELECT avg(pg_column_size(seen.*))::float8 FROM (SELECT * FROM node_summary LIMIT 500) AS seen",
        ),
        (
            "worker_summary",
            "SELECT avg(pg_column_size(seen.*))::float8 FROM (SELECT * FROM worker_summary LIMIT 500) AS seen",
        ),
    ] {
        let rows = postgres_rows(pool, table).await?;
        let size: Option<f64> = sqlx::query_scalar(sizes).fetch_one(pool).await?;
        used += rows as f64 * (size.unwrap_or(0.0) + POSTGRES_ROW_OVERHEAD_BYTES);
    }
    Ok(DiskUse { disk_bytes: disk.cast_unsigned(), used_bytes: used as u64 })
}
