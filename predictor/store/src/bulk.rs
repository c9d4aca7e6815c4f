//! All writes of a group at one go: a statement for all rows of a kind, whatever their number. On PostgreSQL, where every
//! statement is a round trip, this is what group commit gains most from.

use crate::database::Connection;
use crate::rows::{self, AllocationRow, ReportRow};
use crate::writer::Write;
use crate::{Change, StoreError, apply};

/// A row of a group cannot be taken.
#[derive(Debug)]
pub(crate) struct Refused;

/// Applies a group inside the transaction that is open. `Ok(Err(_))` where a row cannot be taken: then the transaction has
/// to be rolled back, and the writes be applied one by one. The rows that each write brought, else.
///
/// # Errors
/// Where the database fails.
pub(crate) async fn apply(
    connection: &mut Connection,
    group: &[Write],
) -> Result<Result<Vec<u64>, Refused>, StoreError> {
    match try_apply(connection, group).await {
        Ok(counts) => Ok(Ok(counts)),
        Err(error) if error.is_of_the_write() => Ok(Err(Refused)),
        Err(error) => Err(error),
    }
}

async fn try_apply(connection: &mut Connection, group: &[Write]) -> Result<Vec<u64>, StoreError> {
    let (mut reports, mut allocations, mut batches) = (Vec::new(), Vec::new(), Vec::new());
    let mut counts = vec![0; group.len()];
    for (write, count) in group.iter().zip(&mut counts) {
        for change in &write.changes {
            let at_unix_ms = write.at_unix_ms;
            match change {
                Change::Reports { job_id, reports: new } => {
                    reports.extend(new.iter().map(|report| ReportRow {
                        job_id: job_id.as_str(),
                        at_unix_ms,
                        report,
                    }));
                }
                Change::Allocation { job_id, iteration, generation, answer } => {
                    allocations.push(AllocationRow {
                        job_id: job_id.as_str(),
                        iteration: *iteration,
                        generation: *generation,
                        at_unix_ms,
                        answer: rows::text(answer)?,
                    });
                }
                Change::Telemetry(batch) => {
                    *count += batch.len() as u64;
                    batches.push(batch);
                }
                // In their order, and before the rows that refer to what they make.
                other => *count += apply::change(connection, other, at_unix_ms).await?,
            }
        }
    }
    if !reports.is_empty() {
        rows::insert_reports(connection, &reports).await?;
    }
    if !allocations.is_empty() {
        rows::insert_allocations(connection, &allocations).await?;
    }
    if !batches.is_empty() {
        rows::insert_new_samples(connection, &batches).await?;
    }
    Ok(counts)
}
