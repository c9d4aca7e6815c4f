//! The writer: one task, one connection, one transaction for all that waits.

use sqlx::{Connection, SqliteConnection};
use tokio::sync::mpsc;

use super::{Change, MemberEvent, MemberEventKind, StoreError, Write, close};

/// Kinds of devices whose models are kept: those that learned last.
const DEVICES_MAX: i64 = 1000;
/// Writes in one commit.
const GROUP_MAX: usize = 128;

/// Takes writes until every sender is gone, then closes the database.
pub(super) async fn run(mut connection: SqliteConnection, mut queue: mpsc::Receiver<Write>) {
    let mut group = Vec::with_capacity(GROUP_MAX);
    while queue.recv_many(&mut group, GROUP_MAX).await > 0 {
        commit(&mut connection, &mut group).await;
    }
    close(connection).await;
}

/// Commits a group. A write that fails is undone alone; a commit that fails fails them all.
async fn commit(connection: &mut SqliteConnection, group: &mut Vec<Write>) {
    let mut outcomes = Vec::with_capacity(group.len());
    let committed = async {
        let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
        for write in group.iter() {
            // Several writes in a commit: each has a savepoint, so that one can fail without the others.
            outcomes.push(if group.len() == 1 {
                apply(&mut transaction, write).await
            } else {
                let mut savepoint = transaction.begin().await?;
                let outcome = apply(&mut savepoint, write).await;
                match &outcome {
                    Ok(_) => savepoint.commit().await?,
                    Err(_) => savepoint.rollback().await?,
                }
                outcome
            });
        }
        if matches!(outcomes.as_slice(), [Err(_)]) {
            transaction.rollback().await
        } else {
            transaction.commit().await
        }
    }
    .await;
    if let Err(error) = committed {
        tracing::error!(%error, writes = group.len(), "a commit failed: nothing of it was stored");
        let told = error.to_string();
        for write in group.drain(..) {
            // Whoever asked may have gone: then nobody waits for the outcome.
            let _ = write.done.send(Err(StoreError::Database(sqlx::Error::Protocol(told.clone()))));
        }
        return;
    }
    for (write, outcome) in group.drain(..).zip(outcomes) {
        let _ = write.done.send(outcome);
    }
}

async fn apply(connection: &mut SqliteConnection, write: &Write) -> Result<u64, StoreError> {
    let mut rows = 0;
    for change in &write.changes {
        rows += apply_one(connection, change, write.at_unix_ms).await?;
    }
    Ok(rows)
}

async fn apply_one(
    connection: &mut SqliteConnection,
    change: &Change,
    at_unix_ms: i64,
) -> Result<u64, StoreError> {
    let done = match change {
        Change::PutJob { job_id, spec } => {
            sqlx::query(
                "INSERT INTO job (job_id, spec, generation, departed_generation, created_unix_ms)
                 VALUES (?1, ?2, 0, 0, ?3) ON CONFLICT (job_id) DO UPDATE SET spec = excluded.spec",
            )
            .bind(job_id.as_str())
            .bind(json(spec)?)
            .bind(at_unix_ms)
            .execute(connection)
            .await?
        }
        Change::DeleteJob { job_id } => {
            sqlx::query("DELETE FROM job WHERE job_id = ?1").bind(job_id.as_str()).execute(connection).await?
        }
        Change::Membership { job_id, replaces, generation, departed_generation, events } => {
            for event in events {
                apply_member(connection, job_id.as_str(), event, *generation, at_unix_ms).await?;
            }
            let updated = sqlx::query(
                "UPDATE job SET generation = ?2, departed_generation = ?3 WHERE job_id = ?1 AND generation = ?4",
            )
            .bind(job_id.as_str())
            .bind(integer(*generation))
            .bind(integer(*departed_generation))
            .bind(integer(*replaces))
            .execute(connection)
            .await?;
            if updated.rows_affected() == 0 {
                return Err(StoreError::Taken);
            }
            updated
        }
        Change::Reports { job_id, reports } => {
            // One statement whatever the number of reports.
            sqlx::query(
                "INSERT OR IGNORE INTO report
                 SELECT ?1, value ->> 'iteration', value ->> 'worker', ?2, value ->> 'local_batch',
                        CAST(value ->> 'compute_time_s' AS REAL), CAST(value ->> 'barrier_wait_s' AS REAL),
                        CAST(value ->> 'loader_wait_s' AS REAL), value ->> 'peak_memory_bytes', value -> 'drivers',
                        CAST(value ->> 'cost' AS REAL), CAST(value ->> 'communication_s' AS REAL),
                        CAST(value ->> 'overlapped_communication_s' AS REAL), CAST(value ->> 'gradient_sqr' AS REAL),
                        CAST(value ->> 'global_gradient_sqr' AS REAL), value ->> 'micro_batches',
                        value ->> '$.tail.chunks', value ->> '$.tail.samples',
                        CAST(value ->> '$.tail.compute_time_s' AS REAL), CAST(value ->> '$.tail.claim_time_s' AS REAL)
                 FROM json_each(?3)",
            )
            .bind(job_id.as_str())
            .bind(at_unix_ms)
            .bind(json(reports)?)
            .execute(connection)
            .await?
        }
        Change::Allocation { job_id, iteration, generation, answer } => {
            let inserted = sqlx::query("INSERT INTO allocation VALUES (?1, ?2, ?3, ?4, ?5)")
                .bind(job_id.as_str())
                .bind(integer(*iteration))
                .bind(integer(*generation))
                .bind(at_unix_ms)
                .bind(answer)
                .execute(connection)
                .await;
            match inserted {
                Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                    return Err(StoreError::Taken);
                }
                inserted => inserted?,
            }
        }
        Change::LearningRate { job_id, state } => {
            sqlx::query("UPDATE job SET learning_rate = ?2 WHERE job_id = ?1")
                .bind(job_id.as_str())
                .bind(state)
                .execute(connection)
                .await?
        }
        Change::Models { job_id, format, state } => {
            // A job that was deleted meanwhile has no models any more.
            sqlx::query(
                "INSERT INTO model_state SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM job WHERE job_id = ?1)
                 ON CONFLICT DO UPDATE SET format = excluded.format, at_unix_ms = excluded.at_unix_ms,
                     state = excluded.state",
            )
            .bind(job_id.as_str())
            .bind(*format)
            .bind(at_unix_ms)
            .bind(state)
            .execute(connection)
            .await?
        }
        Change::DeviceModel { device, format, state } => {
            let kept = sqlx::query(
                "INSERT INTO device_model VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO UPDATE SET format = excluded.format, at_unix_ms = excluded.at_unix_ms,
                     state = excluded.state",
            )
            .bind(device)
            .bind(*format)
            .bind(at_unix_ms)
            .bind(state)
            .execute(&mut *connection)
            .await?;
            sqlx::query(
                "DELETE FROM device_model WHERE device NOT IN
                     (SELECT device FROM device_model ORDER BY at_unix_ms DESC, device LIMIT ?1)",
            )
            .bind(DEVICES_MAX)
            .execute(connection)
            .await?;
            kept
        }
        Change::Telemetry(batch) => {
            sqlx::query(
                "INSERT OR IGNORE INTO node_sample
                 SELECT ?1, ?2, ?3 + key, value ->> 'at_unix_ms', value FROM json_each(?4)",
            )
            .bind(batch.node.as_str())
            .bind(&batch.boot_id)
            .bind(integer(batch.sequence))
            .bind(json(&batch.samples)?)
            .execute(connection)
            .await?
        }
    };
    Ok(done.rows_affected())
}

async fn apply_member(
    connection: &mut SqliteConnection,
    job_id: &str,
    event: &MemberEvent,
    generation: u64,
    at_unix_ms: i64,
) -> Result<(), StoreError> {
    let worker = event.worker.as_str();
    let kind = match &event.kind {
        MemberEventKind::Joined(request) => {
            sqlx::query(
                "INSERT INTO worker (job_id, worker, seat, state, request, last_seen_unix_ms) VALUES
                     (?1, ?2, (SELECT COALESCE(MAX(seat), 0) + 1 FROM worker WHERE job_id = ?1), 'live', ?3, ?4)
                 ON CONFLICT DO UPDATE SET seat = excluded.seat, state = 'live', request = excluded.request,
                     last_seen_unix_ms = excluded.last_seen_unix_ms",
            )
            .bind(job_id)
            .bind(worker)
            .bind(json(request)?)
            .bind(at_unix_ms)
            .execute(&mut *connection)
            .await?;
            "joined"
        }
        MemberEventKind::Rejoined(request) => {
            sqlx::query(
                "UPDATE worker SET request = ?3, last_seen_unix_ms = ?4 WHERE job_id = ?1 AND worker = ?2",
            )
            .bind(job_id)
            .bind(worker)
            .bind(json(request)?)
            .bind(at_unix_ms)
            .execute(&mut *connection)
            .await?;
            return Ok(());
        }
        kind @ (MemberEventKind::Left | MemberEventKind::Expired) => {
            let state = if matches!(kind, MemberEventKind::Left) { "left" } else { "expired" };
            sqlx::query(
                "UPDATE worker SET state = ?3, last_seen_unix_ms = ?4 WHERE job_id = ?1 AND worker = ?2",
            )
            .bind(job_id)
            .bind(worker)
            .bind(state)
            .bind(at_unix_ms)
            .execute(&mut *connection)
            .await?;
            state
        }
        MemberEventKind::OutOfMemory(cap) => {
            sqlx::query("UPDATE worker SET oom_cap = ?3 WHERE job_id = ?1 AND worker = ?2")
                .bind(job_id)
                .bind(worker)
                .bind(integer(*cap))
                .execute(&mut *connection)
                .await?;
            "out_of_memory"
        }
        MemberEventKind::Override(wanted) => {
            sqlx::query("UPDATE worker SET operator_override = ?3 WHERE job_id = ?1 AND worker = ?2")
                .bind(job_id)
                .bind(worker)
                .bind(wanted.as_ref().map(json).transpose()?)
                .execute(&mut *connection)
                .await?;
            "override"
        }
    };
    sqlx::query(
        "INSERT INTO event (job_id, at_unix_ms, kind, worker, generation) VALUES (?1, ?2, ?3, ?4, ?5)",
    )
    .bind(job_id)
    .bind(at_unix_ms)
    .bind(kind)
    .bind(worker)
    .bind(integer(generation))
    .execute(connection)
    .await?;
    Ok(())
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|source| StoreError::Corrupt { what: "value", source })
}

/// SQLite's integers are signed; http refuses numbers beyond them.
pub(super) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
