//! Reports that can be opened from the service's pages.

use serde::{Deserialize, Serialize};

/// `GET /v1/reports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportsView {
    /// The newest 500 reports, newest first; absent if the service has no report directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports: Option<Vec<ReportSummary>>,
}

/// A page written by a backtest, a simulation or a training run. It is served at `/reports/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportSummary {
    /// File name.
    pub name: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Time of the last modification, in milliseconds since 1970.
    pub modified_unix_ms: i64,
}
