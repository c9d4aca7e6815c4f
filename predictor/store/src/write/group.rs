//! Writes of a group in one transaction. Allocations, reports and samples take one statement per kind,
//! whatever their number, because a statement on PostgreSQL costs a round trip.
//!
//! Conditions are part of the statements (`ON CONFLICT DO NOTHING`), so a write that came too late is
//! detected without failing the others. Its allocation is inserted first, and its reports only if the
//! allocation is new.

use super::allocations::{self, AllocationRow};
use super::reports::{self, ReportRow};
use super::{change, samples};
use crate::change::Change;
use crate::database::Connection;
use crate::encode::as_text;
use crate::error::StoreError;

/// A write: changes that are made all or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changes<'a> {
    pub changes: &'a [Change],
    pub at_unix_ms: i64,
}

/// Applies writes. Returns for each write the number of affected rows, or the reason why it was rejected;
/// nothing of a rejected write is stored. With `expect_new`, a sample that already exists is an error of the
/// write.
///
/// # Errors
/// The transaction must be rolled back. If the error [lies in a write](StoreError::belongs_to_the_write), other
/// writes may succeed: apply each alone.
pub(super) async fn apply(
    connection: &mut Connection,
    writes: &[Changes<'_>],
    expect_new: bool,
) -> Result<Vec<Result<u64, StoreError>>, StoreError> {
    let mut rows = vec![0; writes.len()];
    let mut others = vec![false; writes.len()];
    // In order, and before rows that refer to the rows made here.
    for (place, write) in writes.iter().enumerate() {
        for change in write.changes.iter().filter(|change| !is_batched(change)) {
            rows[place] += change::apply(connection, change, write.at_unix_ms).await?;
            others[place] = true;
        }
    }
    let taken = insert_allocations(connection, writes).await?;
    if taken.iter().zip(&others).any(|(taken, others)| *taken && *others) {
        return Err(StoreError::Superseded);
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
    let outcome = |(rows, taken)| if taken { Err(StoreError::Superseded) } else { Ok(rows) };
    Ok(rows.into_iter().zip(taken).map(outcome).collect())
}

/// Whether changes of this kind are applied together.
fn is_batched(change: &Change) -> bool {
    matches!(
        change,
        Change::Allocation { .. }
            | Change::Reports { .. }
            | Change::LearningRate { .. }
            | Change::Telemetry(_)
    )
}

/// Inserts the allocations of all writes. Returns for each write whether an earlier write has taken one of
/// its iterations.
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
    // If one of a write's allocations was taken, its other allocations must be rolled back.
    let has_several = places.windows(2).any(|pair| pair[0] == pair[1] && taken[pair[0]]);
    if has_several { Err(StoreError::Superseded) } else { Ok(taken) }
}
