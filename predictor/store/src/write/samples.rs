//! Insertion of telemetry samples: each is stored once, even if it is sent several times.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use crate::copy::{MESSAGE_BYTES, push_text};
use crate::database::{Connection, Either, run};
use crate::encode::integer;
use crate::error::StoreError;
use crate::telemetry::TelemetryRows;
use crate::values::{Column, RowPosition, execute, fetch};

/// Inserts samples that neither exist nor were deleted earlier. Returns their number for each batch. With
/// `expect_new`, PostgreSQL uses COPY, which is fastest but cannot skip existing rows.
///
/// # Errors
/// A database error; [`StoreError::Superseded`] if new samples were expected and one already exists.
pub(super) async fn insert(
    connection: &mut Connection,
    batches: &[&TelemetryRows],
    expect_new: bool,
) -> Result<Vec<u64>, StoreError> {
    if batches.is_empty() {
        return Ok(Vec::new());
    }
    let mut new = match connection {
        Either::Postgres(connection) if expect_new => copy(connection, batches).await?,
        _ => insert_each(connection, batches).await?,
    };
    // Queried after the insertion, which waits for concurrent transactions that delete the same samples.
    for place in batches_with_deleted(connection, batches).await? {
        if let (Some(batch), Some(new)) = (batches.get(place), new.get_mut(place)) {
            *new = new.saturating_sub(delete_resent(connection, batch).await?);
        }
    }
    count(connection, batches, &new).await?;
    Ok(new)
}

const INTO: &str =
    "INSERT INTO node_sample (node, boot_id, sequence, at_unix_ms, sample) {} ON CONFLICT DO NOTHING";

fn columns<'a>(batches: &[&'a TelemetryRows]) -> Vec<Column<'a>> {
    let rows = || batches.iter().flat_map(|batch| batch.rows().map(move |row| (*batch, row)));
    vec![
        Column::text(rows().map(|(batch, _)| batch.node().as_str())),
        Column::text(rows().map(|(batch, _)| batch.boot_id())),
        Column::integer(rows().map(|(_, row)| integer(row.sequence))),
        Column::integer(rows().map(|(_, row)| row.at_unix_ms)),
        Column::json(rows().map(|(_, row)| row.sample)),
    ]
}

/// Inserts batch by batch, because each statement returns the number of samples that it inserted.
async fn insert_each(
    connection: &mut Connection,
    batches: &[&TelemetryRows],
) -> Result<Vec<u64>, StoreError> {
    let mut new = Vec::with_capacity(batches.len());
    for batch in batches {
        new.push(execute(connection, INTO, RowPosition::Insert, columns(&[batch])).await?);
    }
    Ok(new)
}

/// Inserts all batches by COPY. An existing sample fails the COPY and the whole transaction.
async fn copy(connection: &mut PgConnection, batches: &[&TelemetryRows]) -> Result<Vec<u64>, StoreError> {
    // In key order: two predictors that insert the same samples cannot deadlock.
    let mut ordered = batches.to_vec();
    ordered.sort_by_key(|batch| (batch.node().as_str(), batch.boot_id(), batch.sequence()));
    let mut copy = connection
        .copy_in_raw("COPY node_sample (node, boot_id, sequence, at_unix_ms, sample) FROM STDIN")
        .await?;
    let mut lines = String::with_capacity(MESSAGE_BYTES);
    for batch in ordered {
        for row in batch.rows() {
            for text in [batch.node().as_str(), batch.boot_id()] {
                push_text(&mut lines, text);
                lines.push('\t');
            }
            lines.push_str(&format!("{}\t{}\t", row.sequence, row.at_unix_ms));
            push_text(&mut lines, row.sample);
            lines.push('\n');
            if lines.len() >= MESSAGE_BYTES {
                copy.send(lines.as_bytes()).await?;
                lines.clear();
            }
        }
    }
    copy.send(lines.as_bytes()).await?;
    match copy.finish().await {
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Err(StoreError::Superseded),
        finished => {
            finished.map(|_| batches.iter().map(|batch| batch.len() as u64).collect()).map_err(Into::into)
        }
    }
}

/// Returns the indexes of batches with samples that were rolled up and deleted earlier. These must not be
/// counted again.
async fn batches_with_deleted(
    connection: &mut Connection,
    batches: &[&TelemetryRows],
) -> Result<Vec<usize>, StoreError> {
    let columns = vec![
        Column::integer((0..batches.len()).map(|place| place as i64)),
        Column::text(batches.iter().map(|batch| batch.node().as_str())),
        Column::text(batches.iter().map(|batch| batch.boot_id())),
        Column::integer(batches.iter().map(|batch| integer(batch.sequence()))),
        Column::integer(batches.iter().map(|batch| integer(batch.next_sequence()))),
    ];
    let sql = "WITH new (batch, node, boot_id, first, next) AS ({})
               SELECT batch FROM new WHERE EXISTS (
                   SELECT 1 FROM node_sample_gone AS gone WHERE gone.node = new.node AND gone.boot_id = new.boot_id
                       AND gone.last >= new.first AND gone.first < new.next)";
    let found: Vec<(i64,)> = fetch(connection, sql, RowPosition::Table, columns).await?;
    Ok(found.into_iter().filter_map(|(place,)| usize::try_from(place).ok()).collect())
}

/// Deletes samples of a batch that were deleted earlier, and returns their number.
async fn delete_resent(connection: &mut Connection, batch: &TelemetryRows) -> Result<u64, StoreError> {
    Ok(run!(
        connection,
        "DELETE FROM node_sample WHERE node = $1 AND boot_id = $2 AND sequence >= $3 AND sequence < $4
             AND EXISTS (SELECT 1 FROM node_sample_gone AS gone
                         WHERE gone.node = $1 AND gone.boot_id = $2 AND gone.first <= node_sample.sequence
                           AND gone.last >= node_sample.sequence)",
        batch.node().as_str(),
        batch.boot_id(),
        integer(batch.sequence()),
        integer(batch.next_sequence()),
    )?)
}

/// Adds to the total number of samples that each node has sent. In node order: two predictors that count the
/// same nodes cannot deadlock.
async fn count(
    connection: &mut Connection,
    batches: &[&TelemetryRows],
    new: &[u64],
) -> Result<(), StoreError> {
    let mut nodes: BTreeMap<&str, u64> = BTreeMap::new();
    for (batch, new) in batches.iter().zip(new).filter(|(_, new)| **new > 0) {
        *nodes.entry(batch.node().as_str()).or_insert(0) += *new;
    }
    if nodes.is_empty() {
        return Ok(());
    }
    let columns =
        vec![Column::text(nodes.keys().copied()), Column::integer(nodes.values().map(|new| integer(*new)))];
    let sql = "INSERT INTO node (node, samples) {}
               ON CONFLICT (node) DO UPDATE SET samples = node.samples + excluded.samples";
    execute(connection, sql, RowPosition::Insert, columns).await?;
    Ok(())
}
