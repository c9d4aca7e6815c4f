//! Carrying a roll-up out, in the transaction of the writer.
//!
//! SQLite looks rows of several columns up in an index only where both sides have the same types: hence the casts.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::database::{Connection, Either, rows, run};
use crate::retention::{RollUp, SampleKey};
use crate::summary::{NodeStep, NodeSums, WorkerStep, WorkerSums, node_sums, ranges};
use crate::{StoreError, integer};

/// Held while summaries of nodes are merged on PostgreSQL, where several predictors may be at it: any number that is ours alone.
const NODES_LOCK: i64 = 0x65_76_65_6e_73_74_65_70;

/// Lets rows go and keeps what they come to; the rows that went. Fails with [`StoreError::Taken`] where one of them is gone
/// already, or another predictor is at it.
pub(crate) async fn apply(connection: &mut Connection, roll_up: &RollUp) -> Result<u64, StoreError> {
    let gone = match roll_up {
        RollUp::Samples { samples, minutes } => {
            one_at_a_time(connection).await?;
            let gone = delete_samples(connection, samples).await?;
            remember(connection, samples).await?;
            merge_nodes(connection, minutes).await?;
            gone
        }
        RollUp::NodeSteps { steps, hours } => {
            one_at_a_time(connection).await?;
            let gone = delete_node_steps(connection, steps).await?;
            merge_nodes(connection, hours).await?;
            gone
        }
        RollUp::Iterations { job_id, kept_from, keep_from, minutes, .. } => {
            let (job, end) = (job_id.as_str(), integer(*keep_from));
            let sql = "UPDATE job SET kept_from = $3 WHERE job_id = $1 AND kept_from = $2";
            if run!(connection, sql, job, integer(*kept_from), end)? == 0 {
                return Err(StoreError::Taken);
            }
            let reports =
                run!(connection, "DELETE FROM report WHERE job_id = $1 AND iteration < $2", job, end)?;
            let answers =
                run!(connection, "DELETE FROM allocation WHERE job_id = $1 AND iteration < $2", job, end)?;
            merge_workers(connection, job, minutes).await?;
            reports + answers
        }
        RollUp::WorkerSteps { job_id, steps, hours } => {
            let gone = delete_worker_steps(connection, job_id.as_str(), steps).await?;
            merge_workers(connection, job_id.as_str(), hours).await?;
            gone
        }
    };
    if gone == roll_up.rows() { Ok(gone) } else { Err(StoreError::Taken) }
}

/// Summaries of nodes are read, merged and written: on PostgreSQL nobody else may do so until this transaction is over.
async fn one_at_a_time(connection: &mut Connection) -> Result<(), StoreError> {
    if let Either::Postgres(connection) = connection {
        let lock = sqlx::query_scalar::<_, bool>("SELECT pg_try_advisory_xact_lock($1)").bind(NODES_LOCK);
        if !lock.fetch_one(connection).await? {
            return Err(StoreError::Taken);
        }
    }
    Ok(())
}

async fn delete_samples(connection: &mut Connection, samples: &[SampleKey]) -> Result<u64, StoreError> {
    let keys = samples.iter().map(|sample| json!([sample.node, sample.boot_id, sample.sequence]));
    let sql = match connection {
        Either::Sqlite(_) => {
            "DELETE FROM node_sample WHERE (node, boot_id, sequence) IN
                 (SELECT CAST(value ->> 0 AS TEXT), CAST(value ->> 1 AS TEXT), CAST(value ->> 2 AS INTEGER) FROM json_each($1))"
        }
        Either::Postgres(_) => {
            "DELETE FROM node_sample USING json_array_elements($1::json) AS old
             WHERE node = old ->> 0 AND boot_id = old ->> 1 AND sequence = (old ->> 2)::bigint"
        }
    };
    Ok(run!(connection, sql, keys.collect::<Value>().to_string())?)
}

/// Keeps in mind which sequence numbers went, so that samples that are sent again are known. A range for each life of a node,
/// unless some of its samples never came.
async fn remember(connection: &mut Connection, samples: &[SampleKey]) -> Result<(), StoreError> {
    let mut lives: BTreeMap<(&str, &str), Vec<&SampleKey>> = BTreeMap::new();
    for sample in samples {
        lives.entry((&sample.node, &sample.boot_id)).or_default().push(sample);
    }
    for ((node, boot_id), samples) in lives {
        let mut until_unix_ms = samples.iter().map(|sample| sample.at_unix_ms).max().unwrap_or(0);
        let mut gone: Vec<(i64, i64)> =
            samples.iter().map(|sample| (sample.sequence, sample.sequence)).collect();
        let first = gone.iter().map(|range| range.0).min().unwrap_or(0).saturating_sub(1);
        let last = gone.iter().map(|range| range.1).max().unwrap_or(0).saturating_add(1);
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
            gone.push((first, last));
            until_unix_ms = until_unix_ms.max(until);
        }
        for (first, last) in ranges(gone) {
            run!(
                connection,
                "INSERT INTO node_sample_gone (node, boot_id, first, last, until_unix_ms) VALUES ($1, $2, $3, $4, $5)",
                node,
                boot_id,
                first,
                last,
                until_unix_ms,
            )?;
        }
    }
    Ok(())
}

async fn delete_node_steps(connection: &mut Connection, steps: &[NodeStep]) -> Result<u64, StoreError> {
    let sql = match connection {
        Either::Sqlite(_) => {
            "DELETE FROM node_summary WHERE (node, step_s, at_unix_ms) IN
                 (SELECT CAST(value ->> 'node' AS TEXT), CAST(value ->> 'step_s' AS INTEGER),
                         CAST(value ->> 'at_unix_ms' AS INTEGER) FROM json_each($1))"
        }
        Either::Postgres(_) => {
            "DELETE FROM node_summary USING json_to_recordset($1::json) AS old (node text, step_s bigint, at_unix_ms bigint)
             WHERE node_summary.node = old.node AND node_summary.step_s = old.step_s
               AND node_summary.at_unix_ms = old.at_unix_ms"
        }
    };
    Ok(run!(connection, sql, json!(steps).to_string())?)
}

/// Adds to summaries of nodes what other samples came to.
async fn merge_nodes(
    connection: &mut Connection,
    sums: &BTreeMap<NodeStep, NodeSums>,
) -> Result<(), StoreError> {
    if sums.is_empty() {
        return Ok(());
    }
    let sql = match connection {
        Either::Sqlite(_) => {
            "SELECT node, step_s, at_unix_ms, samples, readings FROM node_summary
             WHERE (node, step_s, at_unix_ms) IN
                 (SELECT CAST(value ->> 'node' AS TEXT), CAST(value ->> 'step_s' AS INTEGER),
                         CAST(value ->> 'at_unix_ms' AS INTEGER) FROM json_each($1))"
        }
        Either::Postgres(_) => {
            "SELECT node, step_s, at_unix_ms, samples, readings FROM node_summary
             JOIN json_to_recordset($1::json) AS new (node text, step_s bigint, at_unix_ms bigint)
                 USING (node, step_s, at_unix_ms)"
        }
    };
    let steps: Vec<&NodeStep> = sums.keys().collect();
    let there = rows!(&mut *connection, (String, i64, i64, i64, String), sql, json!(steps).to_string())?;
    let mut merged = sums.clone();
    for (node, step_s, at_unix_ms, samples, readings) in there {
        let step = NodeStep { node, step_s, at_unix_ms };
        merged.entry(step).or_default().merge(&node_sums(samples, &readings)?);
    }
    let row = |(step, sums): (&NodeStep, &NodeSums)| {
        let readings = json!(sums.readings).to_string();
        json!({
            "node": step.node, "step_s": step.step_s, "at_unix_ms": step.at_unix_ms,
            "samples": sums.samples, "readings": readings,
        })
    };
    let sql = match connection {
        Either::Sqlite(_) => {
            "INSERT INTO node_summary (node, step_s, at_unix_ms, samples, readings)
             SELECT value ->> 'node', value ->> 'step_s', value ->> 'at_unix_ms', value ->> 'samples', value ->> 'readings'
             FROM json_each($1) WHERE true
             ON CONFLICT (node, step_s, at_unix_ms)
             DO UPDATE SET samples = excluded.samples, readings = excluded.readings"
        }
        Either::Postgres(_) => {
            "INSERT INTO node_summary (node, step_s, at_unix_ms, samples, readings)
             SELECT node, step_s, at_unix_ms, samples, readings FROM json_to_recordset($1::json)
                 AS new (node text, step_s bigint, at_unix_ms bigint, samples bigint, readings text)
             ON CONFLICT (node, step_s, at_unix_ms)
             DO UPDATE SET samples = excluded.samples, readings = excluded.readings"
        }
    };
    run!(connection, sql, merged.iter().map(row).collect::<Value>().to_string())?;
    Ok(())
}

async fn delete_worker_steps(
    connection: &mut Connection,
    job_id: &str,
    steps: &[WorkerStep],
) -> Result<u64, StoreError> {
    let sql = match connection {
        Either::Sqlite(_) => {
            "DELETE FROM worker_summary WHERE job_id = $1 AND (worker, step_s, at_unix_ms) IN
                 (SELECT CAST(value ->> 'worker' AS TEXT), CAST(value ->> 'step_s' AS INTEGER),
                         CAST(value ->> 'at_unix_ms' AS INTEGER) FROM json_each($2))"
        }
        Either::Postgres(_) => {
            "DELETE FROM worker_summary USING json_to_recordset($2::json) AS old (worker text, step_s bigint, at_unix_ms bigint)
             WHERE job_id = $1 AND worker_summary.worker = old.worker AND worker_summary.step_s = old.step_s
               AND worker_summary.at_unix_ms = old.at_unix_ms"
        }
    };
    Ok(run!(connection, sql, job_id, json!(steps).to_string())?)
}

/// Adds to summaries of a job's workers what other reports came to.
async fn merge_workers(
    connection: &mut Connection,
    job_id: &str,
    sums: &BTreeMap<WorkerStep, WorkerSums>,
) -> Result<(), StoreError> {
    for (step, sums) in sums {
        run!(
            connection,
            "INSERT INTO worker_summary (job_id, worker, step_s, at_unix_ms, reports, samples, compute_time_s,
                 barrier_wait_s, loader_wait_s, predicted, predicted_time_s)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
             ON CONFLICT (job_id, worker, step_s, at_unix_ms) DO UPDATE SET
                 reports = worker_summary.reports + excluded.reports,
                 samples = worker_summary.samples + excluded.samples,
                 compute_time_s = worker_summary.compute_time_s + excluded.compute_time_s,
                 barrier_wait_s = worker_summary.barrier_wait_s + excluded.barrier_wait_s,
                 loader_wait_s = worker_summary.loader_wait_s + excluded.loader_wait_s,
                 predicted = worker_summary.predicted + excluded.predicted,
                 predicted_time_s = worker_summary.predicted_time_s + excluded.predicted_time_s",
            job_id,
            &step.worker,
            step.step_s,
            step.at_unix_ms,
            sums.reports,
            sums.samples,
            sums.compute_time_s,
            sums.barrier_wait_s,
            sums.loader_wait_s,
            sums.predicted,
            sums.predicted_time_s,
        )?;
    }
    Ok(())
}
