//! Rows that come in numbers: reports, answers, samples. One statement whatever their number.

use std::collections::BTreeMap;

use evenstep_protocol::WorkerReport;
use serde::Serialize;
use sqlx::{AssertSqlSafe, PgConnection, SqliteConnection};

use crate::database::{Connection, Either, run, scalar};
use crate::{StoreError, TelemetryRows, integer, json};

/// Samples in one statement of SQLite.
const VALUES_MAX: usize = 1000;
/// Bytes that go to PostgreSQL in one message of a COPY.
const COPY_MESSAGE_BYTES: usize = 256 * 1024;

/// A report with what the table needs beside it.
#[derive(Debug, Serialize)]
pub(crate) struct ReportRow<'a> {
    pub job_id: &'a str,
    pub at_unix_ms: i64,
    pub report: &'a WorkerReport,
}

/// An answer with what the table needs beside it.
#[derive(Debug, Serialize)]
pub(crate) struct AllocationRow<'a> {
    pub job_id: &'a str,
    pub iteration: u64,
    pub generation: u64,
    pub at_unix_ms: i64,
    pub answer: &'a str,
}

/// Inserts reports; those stored before stay as they are.
pub(crate) async fn insert_reports(
    connection: &mut Connection,
    reports: &[ReportRow<'_>],
) -> Result<u64, StoreError> {
    let sql = match connection {
        Either::Sqlite(_) => {
            "INSERT OR IGNORE INTO report
                 (job_id, at_unix_ms, iteration, worker, local_batch, compute_time_s, barrier_wait_s, loader_wait_s,
                  peak_memory_bytes, drivers, cost, communication_s, overlapped_communication_s, gradient_sqr,
                  global_gradient_sqr, micro_batches, tail_chunks, tail_samples, tail_compute_time_s, tail_claim_time_s)
             SELECT value ->> 'job_id', value ->> 'at_unix_ms', value ->> '$.report.iteration', value ->> '$.report.worker',
                    value ->> '$.report.local_batch', CAST(value ->> '$.report.compute_time_s' AS REAL),
                    CAST(value ->> '$.report.barrier_wait_s' AS REAL), CAST(value ->> '$.report.loader_wait_s' AS REAL),
                    value ->> '$.report.peak_memory_bytes', value -> '$.report.drivers',
                    CAST(value ->> '$.report.cost' AS REAL), CAST(value ->> '$.report.communication_s' AS REAL),
                    CAST(value ->> '$.report.overlapped_communication_s' AS REAL),
                    CAST(value ->> '$.report.gradient_sqr' AS REAL), CAST(value ->> '$.report.global_gradient_sqr' AS REAL),
                    value ->> '$.report.micro_batches', value ->> '$.report.tail.chunks', value ->> '$.report.tail.samples',
                    CAST(value ->> '$.report.tail.compute_time_s' AS REAL),
                    CAST(value ->> '$.report.tail.claim_time_s' AS REAL)
             FROM json_each($1)"
        }
        Either::Postgres(_) => {
            "INSERT INTO report
                 (job_id, at_unix_ms, iteration, worker, local_batch, compute_time_s, barrier_wait_s, loader_wait_s,
                  peak_memory_bytes, drivers, cost, communication_s, overlapped_communication_s, gradient_sqr,
                  global_gradient_sqr, micro_batches, tail_chunks, tail_samples, tail_compute_time_s, tail_claim_time_s)
             SELECT line.job_id, line.at_unix_ms, told.iteration, told.worker, told.local_batch, told.compute_time_s,
                    told.barrier_wait_s, told.loader_wait_s, told.peak_memory_bytes, told.drivers, told.cost,
                    told.communication_s, told.overlapped_communication_s, told.gradient_sqr, told.global_gradient_sqr,
                    told.micro_batches, (told.tail ->> 'chunks')::bigint, (told.tail ->> 'samples')::bigint,
                    (told.tail ->> 'compute_time_s')::float8, (told.tail ->> 'claim_time_s')::float8
             FROM json_to_recordset($1::json) AS line (job_id text, at_unix_ms bigint, report json),
                  json_to_record(line.report) AS told (iteration bigint, worker text, local_batch bigint,
                      compute_time_s float8, barrier_wait_s float8, loader_wait_s float8, peak_memory_bytes bigint,
                      drivers jsonb, cost float8, communication_s float8, overlapped_communication_s float8,
                      gradient_sqr float8, global_gradient_sqr float8, micro_batches bigint, tail json)
             ON CONFLICT DO NOTHING"
        }
    };
    Ok(run!(connection, sql, json(&reports)?)?)
}

/// Inserts answers. Fails with [`StoreError::Taken`] where one of them is there.
pub(crate) async fn insert_allocations(
    connection: &mut Connection,
    allocations: &[AllocationRow<'_>],
) -> Result<u64, StoreError> {
    let inserted = match &mut *connection {
        Either::Sqlite(connection) => {
            let sql = "INSERT INTO allocation (job_id, iteration, generation, at_unix_ms, answer)
                       SELECT value ->> 'job_id', value ->> 'iteration', value ->> 'generation',
                              value ->> 'at_unix_ms', value ->> 'answer' FROM json_each($1)";
            sqlx::query(sql)
                .bind(json(&allocations)?)
                .execute(connection)
                .await
                .map(|done| done.rows_affected())
        }
        Either::Postgres(connection) => {
            let sql = "INSERT INTO allocation (job_id, iteration, generation, at_unix_ms, answer)
                       SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[])";
            sqlx::query(sql)
                .bind(column(allocations, |row| row.job_id))
                .bind(column(allocations, |row| integer(row.iteration)))
                .bind(column(allocations, |row| integer(row.generation)))
                .bind(column(allocations, |row| row.at_unix_ms))
                .bind(column(allocations, |row| row.answer))
                .execute(connection)
                .await
                .map(|done| done.rows_affected())
        }
    };
    match inserted {
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Err(StoreError::Taken),
        inserted => Ok(inserted?),
    }
}

/// Inserts samples of which none is there yet. Fails with [`StoreError::Taken`] where one is.
pub(crate) async fn insert_new_samples(
    connection: &mut Connection,
    batches: &[&TelemetryRows],
) -> Result<(), StoreError> {
    let mut nodes = BTreeMap::new();
    let mut samples = 0;
    for batch in batches {
        samples += batch.len() as u64;
        *nodes.entry(batch.node().as_str()).or_insert(0) += batch.len() as u64;
    }
    let mut inserted = 0;
    match connection {
        Either::Sqlite(_) => {
            for batch in batches {
                inserted += insert_samples(connection, batch).await?;
            }
        }
        Either::Postgres(connection) => inserted = copy(connection, batches).await?,
    }
    if inserted < samples || any_gone(connection, batches).await? {
        return Err(StoreError::Taken);
    }
    count_samples(connection, &nodes).await
}

/// Inserts the samples of a batch that are not there yet; how many those are.
pub(crate) async fn insert_missing_samples(
    connection: &mut Connection,
    batch: &TelemetryRows,
) -> Result<u64, StoreError> {
    let inserted = insert_samples(connection, batch).await?;
    let inserted = inserted.saturating_sub(delete_gone(connection, batch).await?);
    if inserted > 0 {
        count_samples(connection, &BTreeMap::from([(batch.node().as_str(), inserted)])).await?;
    }
    Ok(inserted)
}

/// Whether samples of a batch went before: summed up already, they must not be counted again. Asked after they were inserted,
/// which waits for whoever lets the same ones go at this moment.
async fn any_gone(connection: &mut Connection, batches: &[&TelemetryRows]) -> Result<bool, StoreError> {
    let spans: Vec<_> = batches
        .iter()
        .map(|batch| {
            (
                batch.node().as_str(),
                batch.boot_id(),
                integer(batch.sequence()),
                integer(batch.next_sequence()),
            )
        })
        .collect();
    let sql = match connection {
        Either::Sqlite(_) => {
            "SELECT 1 FROM json_each($1) AS new WHERE EXISTS (
                 SELECT 1 FROM node_sample_gone WHERE node = new.value ->> 0 AND boot_id = new.value ->> 1
                     AND last >= new.value ->> 2 AND first < new.value ->> 3) LIMIT 1"
        }
        Either::Postgres(_) => {
            "SELECT 1::bigint FROM json_array_elements($1::json) AS new WHERE EXISTS (
                 SELECT 1 FROM node_sample_gone WHERE node = new ->> 0 AND boot_id = new ->> 1
                     AND last >= (new ->> 2)::bigint AND first < (new ->> 3)::bigint) LIMIT 1"
        }
    };
    Ok(scalar!(&mut *connection, i64, sql, json(&spans)?)?.is_some())
}

/// Takes samples out again that went before; how many.
async fn delete_gone(connection: &mut Connection, batch: &TelemetryRows) -> Result<u64, StoreError> {
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

async fn insert_samples(connection: &mut Connection, batch: &TelemetryRows) -> Result<u64, StoreError> {
    match connection {
        Either::Sqlite(connection) => insert_values(connection, batch).await,
        Either::Postgres(connection) => {
            let sql = "INSERT INTO node_sample (node, boot_id, sequence, at_unix_ms, sample)
                       SELECT $1, $2, sequence, at_unix_ms, sample::jsonb
                       FROM unnest($3::bigint[], $4::bigint[], $5::text[]) AS new (sequence, at_unix_ms, sample)
                       ON CONFLICT DO NOTHING";
            let inserted = sqlx::query(sql)
                .bind(batch.node().as_str())
                .bind(batch.boot_id())
                .bind(batch.rows().map(|row| integer(row.sequence)).collect::<Vec<_>>())
                .bind(batch.rows().map(|row| row.at_unix_ms).collect::<Vec<_>>())
                .bind(batch.rows().map(|row| row.sample).collect::<Vec<_>>())
                .execute(connection)
                .await?;
            Ok(inserted.rows_affected())
        }
    }
}

/// One statement for many samples: few long ones are what SQLite is fast with.
async fn insert_values(connection: &mut SqliteConnection, batch: &TelemetryRows) -> Result<u64, StoreError> {
    let mut stored = 0;
    let mut left = batch.rows();
    while left.len() > 0 {
        let count = left.len().min(VALUES_MAX);
        let values = vec!["(?,?,?,?,?)"; count].join(",");
        let insert = format!(
            "INSERT OR IGNORE INTO node_sample (node, boot_id, sequence, at_unix_ms, sample) VALUES {values}"
        );
        // Every value is bound: nothing of a request stands in the statement.
        let mut query = sqlx::query(AssertSqlSafe(insert));
        for row in left.by_ref().take(count) {
            query = query
                .bind(batch.node().as_str())
                .bind(batch.boot_id())
                .bind(integer(row.sequence))
                .bind(row.at_unix_ms)
                .bind(row.sample);
        }
        stored += query.execute(&mut *connection).await?.rows_affected();
    }
    Ok(stored)
}

/// COPY knows no conflicts: a sample that is there fails it, and the whole transaction with it.
async fn copy(connection: &mut PgConnection, batches: &[&TelemetryRows]) -> Result<u64, StoreError> {
    let mut copy = connection
        .copy_in_raw("COPY node_sample (node, boot_id, sequence, at_unix_ms, sample) FROM STDIN")
        .await?;
    let mut lines = String::with_capacity(COPY_MESSAGE_BYTES);
    for batch in batches {
        for row in batch.rows() {
            for text in [batch.node().as_str(), batch.boot_id()] {
                escape(text, &mut lines);
                lines.push('\t');
            }
            lines.push_str(&format!("{}\t{}\t", row.sequence, row.at_unix_ms));
            escape(row.sample, &mut lines);
            lines.push('\n');
            if lines.len() >= COPY_MESSAGE_BYTES {
                copy.send(lines.as_bytes()).await?;
                lines.clear();
            }
        }
    }
    copy.send(lines.as_bytes()).await?;
    match copy.finish().await {
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Err(StoreError::Taken),
        finished => Ok(finished?),
    }
}

/// A value as the text format of COPY wants it.
fn escape(text: &str, line: &mut String) {
    let mut plain = 0;
    for (at, special) in
        text.bytes().enumerate().filter(|(_, byte)| matches!(byte, b'\\' | b'\t' | b'\n' | b'\r'))
    {
        line.push_str(&text[plain..at]);
        line.push_str(match special {
            b'\\' => "\\\\",
            b'\t' => "\\t",
            b'\n' => "\\n",
            _ => "\\r",
        });
        plain = at + 1;
    }
    line.push_str(&text[plain..]);
}

/// In the order of the nodes: two predictors that count the same ones never wait for each other in a circle.
async fn count_samples(connection: &mut Connection, nodes: &BTreeMap<&str, u64>) -> Result<(), StoreError> {
    let sql = match connection {
        Either::Sqlite(_) => {
            "INSERT INTO node (node, samples) SELECT key, value FROM json_each($1) WHERE true
             ON CONFLICT (node) DO UPDATE SET samples = node.samples + excluded.samples"
        }
        Either::Postgres(_) => {
            "INSERT INTO node (node, samples) SELECT key, value::bigint FROM json_each_text($1::json)
             ON CONFLICT (node) DO UPDATE SET samples = node.samples + excluded.samples"
        }
    };
    run!(connection, sql, json(nodes)?)?;
    Ok(())
}

/// The text that is stored of an answer.
pub(crate) fn text(answer: &[u8]) -> Result<&str, StoreError> {
    std::str::from_utf8(answer).map_err(|error| StoreError::Corrupt {
        what: "answer",
        source: <serde_json::Error as serde::ser::Error>::custom(error),
    })
}

fn column<'a, T>(rows: &'a [AllocationRow<'_>], of: impl Fn(&'a AllocationRow<'_>) -> T) -> Vec<T> {
    rows.iter().map(of).collect()
}
