//! Reads a job from the store.

use evenstep_core::job::{FORMAT, JobState, Models, Restored, Skipped, WorkerState, controller};
use evenstep_core::job::{read_device_model, read_models};
use evenstep_core::membership::{FLAP_DEPARTURES, Member, State};
use evenstep_protocol::{AllocateAnswer, JobId, JobSpec, WorkerId, WorkerReport};
use evenstep_store::{Store, StoreError, StoredWorker};

/// Iterations whose reports are replayed through the models when a job is read from the store. Without stored models this is all
/// they learn from: with a forgetting factor of 0.9985, older reports have at most a fifth of the weight of the newest.
pub const HISTORY_ITERATIONS: u64 = 1024;

/// Reads a job and replays its recent reports; `None` if the job does not exist. `on_report` is called with each of these reports.
///
/// # Errors
/// What the store says.
pub async fn load(
    store: &Store,
    job_id: &JobId,
    now_unix_ms: i64,
    on_report: impl FnMut(&WorkerReport),
) -> Result<Option<JobState>, StoreError> {
    let Some(stored) = store.job(job_id).await? else { return Ok(None) };
    let reports = store.recent_reports(job_id, HISTORY_ITERATIONS).await?;
    let last_answer: Option<AllocateAnswer> = match stored.last_iteration {
        Some(last) => store.answer(job_id, last).await?.map(|last| last.parse()).transpose()?,
        None => None,
    };
    reports.iter().for_each(on_report);
    let models = models(store, job_id).await?;
    let learning_rate = learning_rate(stored.learning_rate.as_deref(), &stored.spec)?;
    let kept_from = store.kept_from(job_id).await?;
    let mut state = JobState::restore(Restored {
        learning_rate,
        kept_from,
        models,
        last_answer,
        spec: stored.spec,
        generation: stored.generation,
        departed_generation: stored.departed_generation,
        last_iteration: stored.last_iteration,
        members: stored.workers.iter().map(|worker| member(worker, now_unix_ms)).collect(),
        workers: stored.workers.into_iter().map(worker).collect(),
    });
    for worker in state.workers.keys().cloned().collect::<Vec<_>>() {
        warm_start(store, &mut state, &worker).await?;
    }
    log_skipped(job_id, &state.replay(&reports));
    Ok(Some(state))
}

/// Lets a worker whose models have learned nothing start from what was learned on a device of its kind.
///
/// # Errors
/// What the store says.
pub async fn warm_start(store: &Store, state: &mut JobState, worker: &WorkerId) -> Result<(), StoreError> {
    let Some(device) = state.device_of_cold(worker) else { return Ok(()) };
    let learned = store.device_model(device, FORMAT).await?;
    // Without a model that can be read the worker starts cold.
    if let Some(earlier) = learned.and_then(|learned| read_device_model(&learned).ok()) {
        state.warm_start(worker, earlier);
    }
    Ok(())
}

/// Logs the parts of reports from which nothing was learned.
pub fn log_skipped(job_id: &JobId, skipped: &[Skipped]) {
    for skipped in skipped {
        match skipped {
            Skipped::Profile { .. } => tracing::warn!(%job_id, "{skipped}"),
            Skipped::Gradients { .. } => tracing::debug!(%job_id, "{skipped}"),
        }
    }
}

async fn models(store: &Store, job_id: &JobId) -> Result<Models, StoreError> {
    let Some(state) = store.models(job_id, FORMAT).await? else { return Ok(Models::new()) };
    // Models that cannot be read learn again from the recent reports.
    Ok(read_models(&state).unwrap_or_else(|error| {
        tracing::warn!(%job_id, %error, "stored models cannot be read: they learn again");
        Models::new()
    }))
}

fn learning_rate(
    stored: Option<&str>,
    spec: &JobSpec,
) -> Result<evenstep_core::learning_rate::Controller, StoreError> {
    let corrupt = |source| StoreError::Corrupt { what: "learning rate", source };
    match stored {
        Some(state) => serde_json::from_str(state).map_err(corrupt),
        // HTTP accepts only settings that make a rule; a database that another program wrote may hold others.
        None => controller(spec).map_err(|error| StoreError::Corrupt {
            what: "learning-rate rule",
            source: <serde_json::Error as serde::de::Error>::custom(error),
        }),
    }
}

fn member(worker: &StoredWorker, now_unix_ms: i64) -> Member<WorkerId> {
    let state = match worker.state.as_str() {
        "live" => State::Live,
        "left" => State::Left,
        _ => State::Expired,
    };
    // Workers cannot renew leases while the service is down, so each live worker starts with a full lease.
    let last_seen_ms = if state == State::Live { now_unix_ms } else { worker.last_seen_unix_ms };
    let departures = worker.departures_unix_ms.iter().rev().take(FLAP_DEPARTURES).rev();
    // The clock may have been set back: a departure in the future must not make a worker wait.
    let departures_ms = departures.map(|at_unix_ms| now_unix_ms.min(*at_unix_ms)).collect();
    Member { id: worker.request.worker.clone(), state, last_seen_ms, departures_ms }
}

fn worker(worker: StoredWorker) -> (WorkerId, WorkerState) {
    let state = WorkerState {
        oom_cap: worker.oom_cap,
        operator_override: worker.operator_override,
        request: worker.request,
    };
    (state.request.worker.clone(), state)
}
