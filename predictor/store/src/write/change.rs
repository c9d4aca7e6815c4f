//! Changes that are applied one by one: changes of jobs, workers and models.

use super::{access, roll_up};
use crate::change::{Change, MemberEvent, MemberEventKind, ShownStep};
use crate::database::{Connection, run, scalar};
use crate::encode::{integer, to_json};
use crate::error::StoreError;
use crate::schema;
use crate::values::{Column, RowPosition, execute};

/// Maximum number of device types whose models are kept; the least recently updated are deleted.
const DEVICES_MAX: i64 = 1000;

/// Approximate number of rows per table that one step of a job's deletion deletes.
const TRIM_ROWS: i64 = 10_000;

/// Applies a change. Returns the number of affected rows.
///
/// # Errors
/// [`StoreError::Superseded`] if another change came first, or a database error.
pub(super) async fn apply(
    connection: &mut Connection,
    change: &Change,
    at_unix_ms: i64,
) -> Result<u64, StoreError> {
    match change {
        Change::CreateJob { job_id, spec, entry } => {
            let created = run!(
                connection,
                "INSERT INTO job (job_id, spec, generation, departed_generation, created_unix_ms)
                 VALUES ($1, $2, 0, 0, $3) ON CONFLICT DO NOTHING",
                job_id.as_str(),
                to_json(spec)?,
                at_unix_ms,
            )?;
            if created == 1 {
                access::audit(connection, entry, at_unix_ms).await?;
            }
            Ok(created)
        }
        Change::PutJob { job_id, spec } => Ok(run!(
            connection,
            "UPDATE job SET spec = $2 WHERE job_id = $1",
            job_id.as_str(),
            to_json(spec)?
        )?),
        Change::TrimJob { job_id } => trim(connection, job_id.as_str()).await,
        Change::DeleteJob { job_id } => {
            Ok(run!(connection, "DELETE FROM job WHERE job_id = $1", job_id.as_str())?)
        }
        Change::Membership { job_id, replaces, generation, departed_generation, events } => {
            for event in events {
                member(connection, job_id.as_str(), event, *generation, at_unix_ms).await?;
            }
            let updated = run!(
                connection,
                "UPDATE job SET generation = $2, departed_generation = $3 WHERE job_id = $1 AND generation = $4",
                job_id.as_str(),
                integer(*generation),
                integer(*departed_generation),
                integer(*replaces),
            )?;
            if updated == 0 { Err(StoreError::Superseded) } else { Ok(updated) }
        }
        // The group applies these together with those of other writes.
        Change::Reports { .. } | Change::Allocation { .. } | Change::Telemetry(_) => Ok(0),
        Change::Segment { job_id, segment } => Ok(run!(
            connection,
            "INSERT INTO segment (job_id, first_position, attempt, first_iteration, at_unix_ms) VALUES ($1, $2, $3, $4, $5)",
            job_id.as_str(),
            integer(segment.first_position),
            integer(segment.attempt),
            integer(segment.first_iteration),
            at_unix_ms,
        )?),
        Change::Regrouped { job_id, regrouped } => Ok(run!(
            connection,
            "UPDATE job SET regrouped = $2 WHERE job_id = $1",
            job_id.as_str(),
            i64::from(*regrouped),
        )?),
        Change::LearningRate { job_id, state } => Ok(run!(
            connection,
            "UPDATE job SET learning_rate = $2 WHERE job_id = $1",
            job_id.as_str(),
            state
        )?),
        Change::Steps { job_id, created_unix_ms, steps } => {
            insert_steps(connection, job_id.as_str(), *created_unix_ms, steps).await
        }
        Change::Totals { job_id, created_unix_ms, totals } => Ok(run!(
            connection,
            "UPDATE job SET totals = $3 WHERE job_id = $1 AND created_unix_ms = $2",
            job_id.as_str(),
            *created_unix_ms,
            totals,
        )?),
        // A job that was deleted meanwhile must not get models.
        Change::ModelPart { job_id, format, revision, part, state } => {
            let added = run!(
                connection,
                "INSERT INTO model_state (job_id, revision, part, format, at_unix_ms, state)
                 SELECT $1, $2, $3, $4, $5, $6 WHERE EXISTS (SELECT 1 FROM job WHERE job_id = $1)",
                job_id.as_str(),
                *revision,
                integer(*part),
                i64::from(*format),
                at_unix_ms,
                state,
            )?;
            // The first part of this revision that is written, after parts of attempts that failed.
            if *part == 1 {
                let incomplete = "DELETE FROM model_state WHERE job_id = $1 AND revision <> $2
                    AND revision NOT IN (SELECT revision FROM model_state WHERE job_id = $1 AND part = 0)";
                run!(connection, incomplete, job_id.as_str(), *revision)?;
            }
            if *part == 0 {
                let others = "DELETE FROM model_state WHERE job_id = $1 AND revision <> $2";
                run!(connection, others, job_id.as_str(), *revision)?;
            }
            Ok(added)
        }
        Change::DeviceModel { device, format, state } => {
            let kept = run!(
                connection,
                "INSERT INTO device_model VALUES ($1, $2, $3, $4)
                 ON CONFLICT (device) DO UPDATE SET format = excluded.format, at_unix_ms = excluded.at_unix_ms,
                     state = excluded.state",
                device,
                i64::from(*format),
                at_unix_ms,
                state,
            )?;
            run!(
                connection,
                "DELETE FROM device_model WHERE device NOT IN
                     (SELECT device FROM device_model ORDER BY at_unix_ms DESC, device LIMIT $1)",
                DEVICES_MAX,
            )?;
            Ok(kept)
        }
        Change::RollUp(old) => roll_up::apply(connection, old).await,
        Change::Access(change) => access::apply(connection, change, at_unix_ms).await,
        Change::Probe { bytes } => schema::probe(connection, *bytes).await,
    }
}

/// Inserts what charts show of iterations of a job, unless it or they were deleted.
async fn insert_steps(
    connection: &mut Connection,
    job_id: &str,
    created_unix_ms: i64,
    steps: &[ShownStep],
) -> Result<u64, StoreError> {
    let kept_from = "SELECT kept_from FROM job WHERE job_id = $1 AND created_unix_ms = $2";
    let kept_from = scalar!(&mut *connection, i64, kept_from, job_id, created_unix_ms)?;
    let Some(kept_from) = kept_from else { return Ok(0) };
    let steps = || steps.iter().filter(|step| integer(step.iteration) >= kept_from);
    let columns = vec![
        Column::text(steps().map(|_| job_id)),
        Column::integer(steps().map(|step| integer(step.iteration))),
        Column::integer(steps().map(|step| step.at_unix_ms)),
        Column::text(steps().map(|step| step.shown.as_str())),
    ];
    if steps().next().is_none() {
        return Ok(0);
    }
    let sql = "INSERT INTO step (job_id, iteration, at_unix_ms, shown) {}
        ON CONFLICT (job_id, iteration) DO UPDATE SET at_unix_ms = excluded.at_unix_ms, shown = excluded.shown";
    execute(connection, sql, RowPosition::Insert, columns).await
}

/// Deletes the oldest rows of a job, and returns their number.
async fn trim(connection: &mut Connection, job_id: &str) -> Result<u64, StoreError> {
    run!(connection, "UPDATE job SET kept_from = $2 WHERE job_id = $1", job_id, i64::MAX)?;
    let reports = run!(
        connection,
        "DELETE FROM report WHERE job_id = $1 AND iteration <= coalesce(
             (SELECT iteration FROM report WHERE job_id = $1 ORDER BY iteration LIMIT 1 OFFSET $2), $3)",
        job_id,
        TRIM_ROWS,
        i64::MAX,
    )?;
    let allocations = run!(
        connection,
        "DELETE FROM allocation WHERE job_id = $1 AND iteration <= coalesce(
             (SELECT iteration FROM allocation WHERE job_id = $1 ORDER BY iteration LIMIT 1 OFFSET $2), $3)",
        job_id,
        TRIM_ROWS,
        i64::MAX,
    )?;
    let steps = run!(
        connection,
        "DELETE FROM step WHERE job_id = $1 AND iteration <= coalesce(
             (SELECT iteration FROM step WHERE job_id = $1 ORDER BY iteration LIMIT 1 OFFSET $2), $3)",
        job_id,
        TRIM_ROWS,
        i64::MAX,
    )?;
    Ok(reports + allocations + steps)
}

async fn member(
    connection: &mut Connection,
    job_id: &str,
    event: &MemberEvent,
    generation: u64,
    at_unix_ms: i64,
) -> Result<(), StoreError> {
    let worker = event.worker.as_str();
    let kind = match &event.kind {
        MemberEventKind::Joined(request) => {
            // Each join begins a generation, so the generation is above the seats of all earlier joins.
            run!(connection, "INSERT INTO worker (job_id, worker, seat, state, request, last_seen_unix_ms) VALUES
                     ($1, $2, $5, 'live', $3, $4)
                 ON CONFLICT (job_id, worker) DO UPDATE SET seat = excluded.seat, state = 'live', request = excluded.request,
                     last_seen_unix_ms = excluded.last_seen_unix_ms",
                job_id, worker, to_json(request)?, at_unix_ms, integer(generation))?;
            "joined"
        }
        MemberEventKind::Rejoined(request) => {
            run!(
                connection,
                "UPDATE worker SET request = $3, last_seen_unix_ms = $4 WHERE job_id = $1 AND worker = $2",
                job_id,
                worker,
                to_json(request)?,
                at_unix_ms
            )?;
            return Ok(());
        }
        kind @ (MemberEventKind::Left | MemberEventKind::Expired) => {
            let state = if matches!(kind, MemberEventKind::Left) { "left" } else { "expired" };
            run!(
                connection,
                "UPDATE worker SET state = $3, last_seen_unix_ms = $4 WHERE job_id = $1 AND worker = $2",
                job_id,
                worker,
                state,
                at_unix_ms
            )?;
            state
        }
        MemberEventKind::OutOfMemory(cap) => {
            run!(
                connection,
                "UPDATE worker SET oom_cap = $3 WHERE job_id = $1 AND worker = $2",
                job_id,
                worker,
                integer(*cap)
            )?;
            "out_of_memory"
        }
        MemberEventKind::MemoryChanged => {
            run!(
                connection,
                "UPDATE worker SET oom_cap = NULL WHERE job_id = $1 AND worker = $2",
                job_id,
                worker
            )?;
            return Ok(());
        }
        MemberEventKind::Override(wanted) => {
            run!(
                connection,
                "UPDATE worker SET operator_override = $3 WHERE job_id = $1 AND worker = $2",
                job_id,
                worker,
                wanted.as_ref().map(to_json).transpose()?
            )?;
            "override"
        }
    };
    run!(
        connection,
        "INSERT INTO event (job_id, at_unix_ms, kind, worker, generation) VALUES ($1, $2, $3, $4, $5)",
        job_id,
        at_unix_ms,
        kind,
        worker,
        integer(generation)
    )?;
    Ok(())
}
