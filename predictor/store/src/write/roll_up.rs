//! Roll-ups in the writer's transaction: rows are deleted, and their sums are added to summaries.

use std::collections::BTreeMap;

use crate::database::{Connection, Either, rows, run};
use crate::encode::{Json, integer, to_json};
use crate::error::StoreError;
use crate::roll_up::{RollUp, SampleKey};
use crate::summary::{NodeStep, NodeSums, WorkerStep, WorkerSums, node_sums, ranges};
use crate::values::{Column, RowPosition, execute, fetch};

/// Key of the PostgreSQL advisory lock that is held while node summaries are merged; the value is arbitrary
/// but unique.
const NODES_LOCK: i64 = 0x65_76_65_6e_73_74_65_70;

/// Deletes rows and adds their sums to summaries. Returns the number of deleted rows.
///
/// # Errors
/// [`StoreError::Superseded`] if a row was deleted earlier, or another predictor is merging summaries. The
/// transaction must then be rolled back.
pub(super) async fn apply(connection: &mut Connection, roll_up: &RollUp) -> Result<u64, StoreError> {
    let deleted = match roll_up {
        RollUp::Samples { samples, minutes } => {
            lock_node_summaries(connection).await?;
            let deleted = delete_samples(connection, samples).await?;
            record_deleted(connection, samples).await?;
            merge_nodes(connection, minutes).await?;
            deleted
        }
        RollUp::NodeSteps { steps, hours } => {
            lock_node_summaries(connection).await?;
            let sql = "DELETE FROM node_summary WHERE (node, step_s, at_unix_ms) IN ({})";
            let deleted = execute(connection, sql, RowPosition::Table, node_steps(steps.iter())).await?;
            merge_nodes(connection, hours).await?;
            deleted
        }
        RollUp::Iterations { job_id, kept_from, keep_from, minutes, .. } => {
            let (job, end) = (job_id.as_str(), integer(*keep_from));
            let sql = "UPDATE job SET kept_from = $3 WHERE job_id = $1 AND kept_from = $2";
            if run!(connection, sql, job, integer(*kept_from), end)? == 0 {
                return Err(StoreError::Superseded);
            }
            let reports =
                run!(connection, "DELETE FROM report WHERE job_id = $1 AND iteration < $2", job, end)?;
            let allocations =
                run!(connection, "DELETE FROM allocation WHERE job_id = $1 AND iteration < $2", job, end)?;
            run!(connection, "DELETE FROM step WHERE job_id = $1 AND iteration < $2", job, end)?;
            // The segment of the first iteration that is kept stays.
            let segments = "DELETE FROM segment WHERE job_id = $1 AND first_position <
                (SELECT MAX(first_position) FROM segment WHERE job_id = $1 AND first_position <= $2)";
            run!(connection, segments, job, end)?;
            merge_workers(connection, job, minutes).await?;
            reports + allocations
        }
        RollUp::WorkerSteps { job_id, steps, hours } => {
            let sql = "DELETE FROM worker_summary WHERE (job_id, worker, step_s, at_unix_ms) IN ({})";
            let keys = worker_steps(job_id.as_str(), steps.iter());
            let deleted = execute(connection, sql, RowPosition::Table, keys).await?;
            merge_workers(connection, job_id.as_str(), hours).await?;
            deleted
        }
    };
    if deleted == roll_up.rows() { Ok(deleted) } else { Err(StoreError::Superseded) }
}

/// Locks node summaries on PostgreSQL until this transaction ends, as they are read, merged and written back.
async fn lock_node_summaries(connection: &mut Connection) -> Result<(), StoreError> {
    if let Either::Postgres(connection) = connection {
        let lock = sqlx::query_scalar::<_, bool>("SELECT pg_try_advisory_xact_lock($1)").bind(NODES_LOCK);
        if !lock.fetch_one(connection).await? {
            return Err(StoreError::Superseded);
        }
    }
    Ok(())
}

async fn delete_samples(connection: &mut Connection, samples: &[SampleKey]) -> Result<u64, StoreError> {
    let keys = vec![
        Column::text(samples.iter().map(|sample| sample.node.as_str())),
        Column::text(samples.iter().map(|sample| sample.boot_id.as_str())),
        Column::integer(samples.iter().map(|sample| sample.sequence)),
    ];
    let sql = "DELETE FROM node_sample WHERE (node, boot_id, sequence) IN ({})";
    execute(connection, sql, RowPosition::Table, keys).await
}

/// Records the deleted sequence numbers, so that samples that are sent again are recognized. Each boot id of
/// a node needs one range, unless some samples never arrived.
async fn record_deleted(connection: &mut Connection, samples: &[SampleKey]) -> Result<(), StoreError> {
    let mut lives: BTreeMap<(&str, &str), Vec<&SampleKey>> = BTreeMap::new();
    for sample in samples {
        lives.entry((&sample.node, &sample.boot_id)).or_default().push(sample);
    }
    for ((node, boot_id), samples) in lives {
        let mut until_unix_ms = samples.iter().map(|sample| sample.at_unix_ms).max().unwrap_or(0);
        let mut deleted: Vec<(i64, i64)> =
            samples.iter().map(|sample| (sample.sequence, sample.sequence)).collect();
        let first = deleted.iter().map(|range| range.0).min().unwrap_or(0).saturating_sub(1);
        let last = deleted.iter().map(|range| range.1).max().unwrap_or(0).saturating_add(1);
        let near = rows!(
            &mut *connection,
            (i64, i64, i64),
            "DELETE FROM node_sample_gone WHERE node = $1 AND boot_id = $2 AND last >= $3 AND first <= $4
             RETURNING first, last, until_unix_ms",
            node,
            boot_id,
            first,
            last,
        )?;
        for (first, last, until) in near {
            deleted.push((first, last));
            until_unix_ms = until_unix_ms.max(until);
        }
        let ranges = ranges(deleted);
        let columns = vec![
            Column::text(ranges.iter().map(|_| node)),
            Column::text(ranges.iter().map(|_| boot_id)),
            Column::integer(ranges.iter().map(|range| range.0)),
            Column::integer(ranges.iter().map(|range| range.1)),
            Column::integer(ranges.iter().map(|_| until_unix_ms)),
        ];
        let sql = "INSERT INTO node_sample_gone (node, boot_id, first, last, until_unix_ms) {}";
        execute(connection, sql, RowPosition::Insert, columns).await?;
    }
    Ok(())
}

/// Adds sums to summaries of nodes.
async fn merge_nodes(
    connection: &mut Connection,
    sums: &BTreeMap<NodeStep, NodeSums>,
) -> Result<(), StoreError> {
    if sums.is_empty() {
        return Ok(());
    }
    let sql = "SELECT node, step_s, at_unix_ms, samples, readings FROM node_summary
               WHERE (node, step_s, at_unix_ms) IN ({})";
    let there: Vec<(String, i64, i64, i64, Json)> =
        fetch(connection, sql, RowPosition::Table, node_steps(sums.keys())).await?;
    let mut merged = sums.clone();
    for (node, step_s, at_unix_ms, samples, readings) in there {
        let step = NodeStep { node, step_s, at_unix_ms };
        merged.entry(step).or_default().merge(&node_sums(samples, &readings));
    }
    let readings = merged.values().map(|sums| to_json(&sums.readings)).collect::<Result<Vec<_>, _>>()?;
    let mut columns = node_steps(merged.keys());
    columns.push(Column::integer(merged.values().map(|sums| integer(sums.samples))));
    columns.push(Column::text(readings));
    let sql = "INSERT INTO node_summary (node, step_s, at_unix_ms, samples, readings) {}
               ON CONFLICT (node, step_s, at_unix_ms)
               DO UPDATE SET samples = excluded.samples, readings = excluded.readings";
    execute(connection, sql, RowPosition::Insert, columns).await?;
    Ok(())
}

/// Adds sums to summaries of a job's workers.
async fn merge_workers(
    connection: &mut Connection,
    job_id: &str,
    sums: &BTreeMap<WorkerStep, WorkerSums>,
) -> Result<(), StoreError> {
    if sums.is_empty() {
        return Ok(());
    }
    let integers = |of: fn(&WorkerSums) -> i64| Column::integer(sums.values().map(of));
    let seconds = |of: fn(&WorkerSums) -> f64| Column::real(sums.values().map(of));
    let mut columns = worker_steps(job_id, sums.keys());
    columns.extend([
        integers(|sums| sums.reports),
        integers(|sums| sums.samples),
        seconds(|sums| sums.compute_time_s),
        seconds(|sums| sums.barrier_wait_s),
        seconds(|sums| sums.loader_wait_s),
        integers(|sums| sums.predicted),
        seconds(|sums| sums.predicted_time_s),
    ]);
    let sql =
        "INSERT INTO worker_summary (job_id, worker, step_s, at_unix_ms, reports, samples, compute_time_s,
                   barrier_wait_s, loader_wait_s, predicted, predicted_time_s) {}
               ON CONFLICT (job_id, worker, step_s, at_unix_ms) DO UPDATE SET
                   reports = worker_summary.reports + excluded.reports,
                   samples = worker_summary.samples + excluded.samples,
                   compute_time_s = worker_summary.compute_time_s + excluded.compute_time_s,
                   barrier_wait_s = worker_summary.barrier_wait_s + excluded.barrier_wait_s,
                   loader_wait_s = worker_summary.loader_wait_s + excluded.loader_wait_s,
                   predicted = worker_summary.predicted + excluded.predicted,
                   predicted_time_s = worker_summary.predicted_time_s + excluded.predicted_time_s";
    execute(connection, sql, RowPosition::Insert, columns).await?;
    Ok(())
}

/// Returns the keys of node summaries as columns.
fn node_steps<'a>(steps: impl Iterator<Item = &'a NodeStep> + Clone) -> Vec<Column<'a>> {
    vec![
        Column::text(steps.clone().map(|step| step.node.as_str())),
        Column::integer(steps.clone().map(|step| step.step_s)),
        Column::integer(steps.map(|step| step.at_unix_ms)),
    ]
}

/// Returns the keys of a job's worker summaries as columns.
fn worker_steps<'a>(job_id: &'a str, steps: impl Iterator<Item = &'a WorkerStep> + Clone) -> Vec<Column<'a>> {
    vec![
        Column::text(steps.clone().map(|_| job_id)),
        Column::text(steps.clone().map(|step| step.worker.as_str())),
        Column::integer(steps.clone().map(|step| step.step_s)),
        Column::integer(steps.map(|step| step.at_unix_ms)),
    ]
}
