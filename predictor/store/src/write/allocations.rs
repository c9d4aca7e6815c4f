//! Insertion of allocations.

use std::collections::BTreeSet;

use crate::database::Connection;
use crate::encode::integer;
use crate::error::StoreError;
use crate::values::{Column, RowPosition, fetch};

/// A row of `allocation`.
#[derive(Debug, Clone, Copy)]
pub(super) struct AllocationRow<'a> {
    pub job_id: &'a str,
    pub iteration: u64,
    pub generation: u64,
    pub at_unix_ms: i64,
    /// The response (JSON), byte for byte.
    pub response: &'a str,
}

/// Inserts allocations. Returns for each whether it is new; an existing allocation stays unchanged.
///
/// # Errors
/// A database error; a missing job is a foreign-key violation.
pub(super) async fn insert(
    connection: &mut Connection,
    rows: &[AllocationRow<'_>],
) -> Result<Vec<bool>, StoreError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let columns = vec![
        Column::text(rows.iter().map(|row| row.job_id)),
        Column::integer(rows.iter().map(|row| integer(row.iteration))),
        Column::integer(rows.iter().map(|row| integer(row.generation))),
        Column::integer(rows.iter().map(|row| row.at_unix_ms)),
        Column::text(rows.iter().map(|row| row.response)),
    ];
    let sql = "INSERT INTO allocation (job_id, iteration, generation, at_unix_ms, answer) {}
               ON CONFLICT DO NOTHING RETURNING job_id, iteration, generation";
    let inserted: Vec<(String, i64, i64)> = fetch(connection, sql, RowPosition::Insert, columns).await?;
    let mut inserted: BTreeSet<(&str, i64, i64)> = inserted
        .iter()
        .map(|(job_id, iteration, generation)| (job_id.as_str(), *iteration, *generation))
        .collect();
    // If a group has two allocations for the same iteration, the first one was inserted.
    let mut is_new = Vec::with_capacity(rows.len());
    for row in rows {
        is_new.push(inserted.remove(&(row.job_id, integer(row.iteration), integer(row.generation))));
    }
    Ok(is_new)
}
