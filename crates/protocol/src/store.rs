//! Summary of the store: its rows and their retention.

use serde::{Deserialize, Serialize};

/// `GET /v1/store`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreView {
    /// `sqlite` or `postgres`.
    pub backend: String,
    /// Version of the store's schema.
    pub schema: i64,
    /// Size on disk in bytes. SQLite's file does not shrink: the space of deleted rows is reused.
    pub disk_bytes: u64,
    /// Number of these bytes that are in use; an estimate for PostgreSQL, which does not report it.
    pub used_bytes: u64,
    /// Maximum size in bytes: above it, the oldest raw rows are rolled up early. Absent if there is no
    /// maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_bytes: Option<u64>,
    /// The levels of the store, raw rows first.
    pub levels: Vec<LevelView>,
    /// Retention settings and counters.
    pub retention: RetentionView,
}

/// Rows of one level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LevelView {
    /// `samples`, `reports`, `answers`, `node_minutes`, `node_hours`, `worker_minutes` or `worker_hours`.
    pub level: String,
    /// Number of rows; an estimate for raw rows in PostgreSQL. Others are counted up to 1,000,000, which means as
    /// many or more.
    pub rows: u64,
    /// Time of the oldest row, in milliseconds since 1970. Absent if the level is empty or the time cannot be
    /// found quickly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_unix_ms: Option<i64>,
}

/// Retention times, and the rows rolled up and deleted since the service started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetentionView {
    /// Retention of samples, reports and allocations in seconds, unless a job sets its own.
    pub keep_raw_s: u64,
    /// Retention of minutes in seconds.
    pub keep_minutes_s: u64,
    /// Retention of hours in seconds.
    pub keep_hours_s: u64,
    /// Time of the last retention run, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_unix_ms: Option<i64>,
    /// Number of samples, reports and allocations rolled up into minutes.
    pub rolled_up_rows: u64,
    /// Number of these rows that were rolled up early because the store exceeded its maximum size.
    pub rolled_up_early_rows: u64,
    /// Number of minutes rolled up into hours.
    pub rolled_up_minutes: u64,
    /// Number of hours deleted.
    pub deleted_hours: u64,
    /// Error of the last retention run; absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
}
