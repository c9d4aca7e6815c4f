//! Pages that can be opened from the service's own.

use serde::{Deserialize, Serialize};

/// `GET /v1/reports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportsView {
    /// The newest 500, the newest first; absent where the service was given no folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports: Option<Vec<ReportLine>>,
}

/// A page that a backtest, a simulation or a training wrote. It is read at `/reports/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportLine {
    /// Its file's name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// When it was written, in milliseconds since 1970.
    pub modified_unix_ms: i64,
}
