//! Samples of nodes, each stored once however often it is sent.

use std::collections::{BTreeMap, HashSet};

use crate::database::{Connection, Either, run};
use crate::encode::integer;
use crate::error::StoreError;
use crate::telemetry::TelemetryRows;
use crate::values::{Column, Place, execute, fetch};

/// Inserts the samples of batches that are not there yet and were not deleted before. Returns for each batch how many
/// those are.
///
/// # Errors
/// What the database says.
pub(super) async fn insert(
    connection: &mut Connection,
    batches: &[&TelemetryRows],
) -> Result<Vec<u64>, StoreError> {
    if batches.is_empty() {
        return Ok(Vec::new());
    }
    let mut new = match connection {
        Either::Sqlite(_) => insert_each(connection, batches).await?,
        Either::Postgres(_) => insert_all(connection, batches).await?,
    };
    // Looked up after the insertion, which waits for whoever deletes the same samples at this moment.
    for place in deleted_before(connection, batches).await? {
        if let (Some(batch), Some(new)) = (batches.get(place), new.get_mut(place)) {
            *new = new.saturating_sub(delete_again(connection, batch).await?);
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

/// One batch after the other: on SQLite a statement costs no round trip, and each says what it inserted.
async fn insert_each(
    connection: &mut Connection,
    batches: &[&TelemetryRows],
) -> Result<Vec<u64>, StoreError> {
    let mut new = Vec::with_capacity(batches.len());
    for batch in batches {
        new.push(execute(connection, INTO, Place::Insert, columns(&[batch])).await?);
    }
    Ok(new)
}

/// All batches in one statement. Only if some samples were there already does it say which were not.
async fn insert_all(connection: &mut Connection, batches: &[&TelemetryRows]) -> Result<Vec<u64>, StoreError> {
    // In the order of the key: two predictors that insert the same samples wait for each other in one direction only.
    let mut ordered = batches.to_vec();
    ordered.sort_by_key(|batch| (batch.node().as_str(), batch.boot_id(), batch.sequence()));
    let samples: usize = batches.iter().map(|batch| batch.len()).sum();
    // $3 is the array of sequence numbers: the text does not depend on how many there are, and is prepared once.
    let sql = format!(
        "WITH inserted AS ({INTO} RETURNING node, boot_id, sequence)
         SELECT node, boot_id, sequence FROM inserted WHERE (SELECT count(*) FROM inserted) < cardinality($3::bigint[])
         UNION ALL SELECT NULL, NULL, count(*) FROM inserted"
    );
    let inserted: Vec<(Option<String>, Option<String>, i64)> =
        fetch(connection, &sql, Place::Insert, columns(&ordered)).await?;
    let is_all = inserted.iter().any(|(node, _, count)| node.is_none() && *count == integer(samples as u64));
    if is_all {
        return Ok(batches.iter().map(|batch| batch.len() as u64).collect());
    }
    let mut inserted: HashSet<(&str, &str, i64)> = inserted
        .iter()
        .filter_map(|(node, boot_id, sequence)| Some((node.as_deref()?, boot_id.as_deref()?, *sequence)))
        .collect();
    let mut new = Vec::with_capacity(batches.len());
    for batch in batches {
        let (node, boot_id) = (batch.node().as_str(), batch.boot_id());
        let is_new = |sequence: &u64| inserted.remove(&(node, boot_id, integer(*sequence)));
        new.push(batch.rows().map(|row| row.sequence).filter(is_new).count() as u64);
    }
    Ok(new)
}

/// The batches of which samples were deleted by age before: they are in summaries already, and must not be counted again.
async fn deleted_before(
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
    let found: Vec<(i64,)> = fetch(connection, sql, Place::Table, columns).await?;
    Ok(found.into_iter().filter_map(|(place,)| usize::try_from(place).ok()).collect())
}

/// Deletes samples of a batch that were deleted before. Returns how many.
async fn delete_again(connection: &mut Connection, batch: &TelemetryRows) -> Result<u64, StoreError> {
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

/// Adds to the number of samples that each node ever sent. In the order of the nodes: two predictors that count the same
/// ones wait for each other in one direction only.
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
    execute(connection, sql, Place::Insert, columns).await?;
    Ok(())
}
