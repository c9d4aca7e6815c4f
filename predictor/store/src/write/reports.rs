//! Insertion of reports.

use std::borrow::Cow;
use std::sync::LazyLock;

use evenstep_protocol::WorkerReport;
use evenstep_protocol::columns::{COLUMNS, Number};

use crate::database::Connection;
use crate::encode::{integer, to_json};
use crate::error::StoreError;
use crate::values::{Column, RowPosition, execute};

/// A row of `report`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReportRow<'a> {
    pub job_id: &'a str,
    pub at_unix_ms: i64,
    pub report: &'a WorkerReport,
}

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let numbers = COLUMNS.map(|column| column.name).join(", ");
    format!(
        "INSERT INTO report (job_id, at_unix_ms, iteration, worker, drivers, {numbers}) {{}} ON CONFLICT DO NOTHING"
    )
});

/// Inserts reports; those that are already stored stay unchanged.
///
/// # Errors
/// A database error; a missing job is a foreign-key violation.
pub(super) async fn insert(connection: &mut Connection, rows: &[ReportRow<'_>]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let drivers = rows.iter().map(|row| to_json(&row.report.drivers)).collect::<Result<Vec<_>, _>>()?;
    let mut columns = vec![
        Column::text(rows.iter().map(|row| row.job_id)),
        Column::integer(rows.iter().map(|row| row.at_unix_ms)),
        Column::integer(rows.iter().map(|row| integer(row.report.iteration))),
        Column::text(rows.iter().map(|row| row.report.worker.as_str())),
        Column::json(drivers.iter().map(|drivers| Cow::from(drivers.as_str()))),
    ];
    columns.extend(COLUMNS.iter().map(|column| match column.number {
        Number::Integer { get, .. } => Column::integer(rows.iter().map(|row| get(row.report).map(integer))),
        Number::Real { get, .. } => Column::real(rows.iter().map(|row| get(row.report))),
    }));
    execute(connection, &INSERT, RowPosition::Insert, columns).await?;
    Ok(())
}
