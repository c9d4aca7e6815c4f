//! The writes of a group inside one transaction. What comes in numbers takes one statement for each kind, whatever its number:
//! on PostgreSQL a statement is a round trip.
//!
//! Conditions are part of the statements (`ON CONFLICT DO NOTHING`), so a write that came too late is found out without
//! failing the others: its allocation is inserted first, and its reports only if that was new.

use super::allocations::{self, AllocationRow};
use super::reports::{self, ReportRow};
use super::{change, samples};
use crate::change::Change;
use crate::database::Connection;
use crate::encode::as_text;
use crate::error::StoreError;

/// A write: changes that are made together or not at all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changes<'a> {
    pub changes: &'a [Change],
    pub at_unix_ms: i64,
}

/// Applies writes. Returns for each the number of rows that it touched or brought, or why it was not made; those of a write
/// that was not made are not in the database. With `expect_new` a sample that is there already is an error of a write.
///
/// # Errors
/// The transaction has to be rolled back. If the error [is of a write](StoreError::is_of_the_write), others may succeed:
/// each can be applied alone.
pub(super) async fn apply(
    connection: &mut Connection,
    writes: &[Changes<'_>],
    expect_new: bool,
) -> Result<Vec<Result<u64, StoreError>>, StoreError> {
    let mut rows = vec![0; writes.len()];
    let mut others = vec![false; writes.len()];
    // In their order, and before the rows that refer to what they make.
    for (place, write) in writes.iter().enumerate() {
        for change in write.changes.iter().filter(|change| !is_numerous(change)) {
            rows[place] += change::apply(connection, change, write.at_unix_ms).await?;
            others[place] = true;
        }
    }
    let taken = insert_allocations(connection, writes).await?;
    if taken.iter().zip(&others).any(|(taken, others)| *taken && *others) {
        return Err(StoreError::Taken);
    }
    let made = || writes.iter().zip(&taken).filter(|(_, taken)| !**taken).map(|(write, _)| write);
    let mut reports = Vec::new();
    for write in made() {
        for change in write.changes {
            if let Change::Reports { job_id, reports: new } = change {
                let (job_id, at_unix_ms) = (job_id.as_str(), write.at_unix_ms);
                reports.extend(new.iter().map(|report| ReportRow { job_id, at_unix_ms, report }));
            }
        }
    }
    reports::insert(connection, &reports).await?;
    for write in made() {
        for change in write.changes.iter().filter(|change| matches!(change, Change::LearningRate { .. })) {
            change::apply(connection, change, write.at_unix_ms).await?;
        }
    }
    let batches = writes.iter().enumerate().filter(|(place, _)| !taken[*place]).flat_map(|(place, write)| {
        write.changes.iter().filter_map(move |change| match change {
            Change::Telemetry(batch) => Some((place, batch)),
            _ => None,
        })
    });
    let (places, batches): (Vec<usize>, Vec<_>) = batches.unzip();
    let new = samples::insert(connection, &batches, expect_new).await?;
    for (place, new) in places.into_iter().zip(new) {
        rows[place] += new;
    }
    let outcome = |(rows, taken)| if taken { Err(StoreError::Taken) } else { Ok(rows) };
    Ok(rows.into_iter().zip(taken).map(outcome).collect())
}

/// Whether changes of this kind are applied together.
fn is_numerous(change: &Change) -> bool {
    matches!(
        change,
        Change::Allocation { .. }
            | Change::Reports { .. }
            | Change::LearningRate { .. }
            | Change::Telemetry(_)
    )
}

/// Inserts the allocations of all writes. Returns for each write whether another one came before it.
async fn insert_allocations(
    connection: &mut Connection,
    writes: &[Changes<'_>],
) -> Result<Vec<bool>, StoreError> {
    let (mut places, mut rows) = (Vec::new(), Vec::new());
    for (place, write) in writes.iter().enumerate() {
        for change in write.changes {
            if let Change::Allocation { job_id, iteration, generation, answer } = change {
                places.push(place);
                rows.push(AllocationRow {
                    job_id: job_id.as_str(),
                    iteration: *iteration,
                    generation: *generation,
                    at_unix_ms: write.at_unix_ms,
                    response: as_text(answer, "allocation")?,
                });
            }
        }
    }
    let mut taken = vec![false; writes.len()];
    for (place, is_new) in places.iter().zip(allocations::insert(connection, &rows).await?) {
        taken[*place] |= !is_new;
    }
    // A write of several allocations of which one was taken has to give back the others.
    let has_several = places.windows(2).any(|pair| pair[0] == pair[1] && taken[pair[0]]);
    if has_several { Err(StoreError::Taken) } else { Ok(taken) }
}
