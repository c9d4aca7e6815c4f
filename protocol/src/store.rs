//! The store at a glance: what is kept, and for how long.

use serde::{Deserialize, Serialize};

/// `GET /v1/store`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreView {
    /// `sqlite` or `postgres`.
    pub backend: String,
    /// Version of its schema.
    pub schema: i64,
    /// Bytes that it takes on disk. SQLite's file does not shrink: room that was let go is used again.
    pub disk_bytes: u64,
    /// Bytes of that which hold something; of PostgreSQL, which does not say, an estimate.
    pub used_bytes: u64,
    /// Above this the oldest raw rows are rolled up early; absent where there is no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_bytes: Option<u64>,
    /// What is kept, the rawest first.
    pub levels: Vec<LevelView>,
    /// What retention does.
    pub retention: RetentionView,
}

/// Rows of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LevelView {
    /// `samples`, `reports`, `answers`, `node_minutes`, `node_hours`, `worker_minutes` or `worker_hours`.
    pub level: String,
    /// How many there are; of PostgreSQL an estimate.
    pub rows: u64,
    /// When the oldest is from, in milliseconds since 1970; absent where there is none, and where that is not known quickly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_unix_ms: Option<i64>,
}

/// How long things are kept, and what was let go since the service started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetentionView {
    /// Samples, reports and answers are kept for so many seconds, unless a job says otherwise.
    pub keep_raw_s: u64,
    /// Minutes are kept for so many seconds.
    pub keep_minutes_s: u64,
    /// Hours are kept for so many seconds.
    pub keep_hours_s: u64,
    /// When old rows were looked for last, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_unix_ms: Option<i64>,
    /// Samples, reports and answers that became minutes.
    pub rolled_up_rows: u64,
    /// Of these, rows that had to go early because the store was above its bound.
    pub rolled_up_early_rows: u64,
    /// Minutes that became hours.
    pub rolled_up_minutes: u64,
    /// Hours that went.
    pub deleted_hours: u64,
    /// Why the last look broke off; absent where it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
}
