//! Loads a job from the store.

use std::collections::BTreeMap;
use std::fmt::Display;

use evenstep_core::attempts::{Attempts, Iteration, Segment};
use evenstep_core::job::{FORMAT, JOINS_MAX, JobState, Models, Restored, Skipped, WorkerState, controller};
use evenstep_core::job::{read_device_model, read_learning_rate, read_models};
use evenstep_core::learning_rate::Controller;
use evenstep_core::membership::{FLAP_DEPARTURES, Member, State};
use evenstep_protocol::{AllocateResponse, JobId, JobSpec, WorkerId, WorkerReport};
use evenstep_store::{Store, StoreError, StoredAllocation, StoredSegment, StoredWorker};

use crate::clock::Now;
use crate::long::compute;

/// Number of iterations whose reports are replayed through the models when a job is loaded. Without stored
/// models, the models learn only from these. With a forgetting factor of 0.9985, older reports have at most a
/// fifth of the weight of the newest.
pub const HISTORY_ITERATIONS: u64 = 1024;

/// Number of reports beyond which fewer iterations are replayed: after stored models, and without.
const HISTORY_REPORTS: [u64; 2] = [1 << 16, 1 << 14];
/// Number of iterations that are replayed even if they have more reports.
const HISTORY_ITERATIONS_MIN: u64 = 8;

/// Number of reports for which learning takes at most about a millisecond.
const SHORT_REPORTS: usize = 24;

/// Maximum number of iterations whose allocations are read at once, and of shares in them.
const ALLOCATIONS_AT_ONCE: (u64, u64) = (16, 4096);
/// Maximum number of allocations in memory.
const ALLOCATIONS_MAX: usize = 64;

/// Number of the latest allocations among which the current plan is. The shares of a few may vary on purpose or be for the ragged end
/// of an epoch.
const PLANS_MAX: usize = 16;

/// Number of the latest iterations whose reports may be sent again. A client requests as many ahead of its reports.
const KNOWN_ITERATIONS: u64 = 64;

/// Loads a job and replays its recent reports. Also returns the names of its options that this version does not know.
/// Returns `None` if the job does not exist. Calls `on_report` with the worker and the position of each report that may be sent
/// again, and `on_time` with the times at which these and the recent allocations were stored. `renewed_ms` is the time of a live
/// worker's latest renewal of its lease.
///
/// # Errors
/// An error of the store.
pub async fn load(
    store: &Store,
    job_id: &JobId,
    now: Now,
    renewed_ms: impl Fn(&WorkerId) -> i64,
    mut on_report: impl FnMut(&WorkerId, u64),
    mut on_time: impl FnMut(i64),
) -> Result<Option<(JobState, Vec<String>)>, StoreError> {
    let Some(stored) = store.job(job_id, JOINS_MAX).await? else { return Ok(None) };
    let mut models = models(store, job_id).await?;
    let [stored_max, new_max] = HISTORY_REPORTS;
    let reports_max = if models.next_iteration() > 0 { stored_max } else { new_max };
    let recent = store.recent_iterations(job_id, reports_max, HISTORY_ITERATIONS).await?;
    let (by_reports, newest) = recent.unwrap_or_default();
    let first = by_reports.min(newest.saturating_sub(HISTORY_ITERATIONS_MIN - 1));
    if first > models.next_iteration() {
        models.skip_until(first);
    }
    let first = first.max(models.next_iteration());
    let arrivals = store.recent_arrivals(job_id, first).await?;
    let last_allocation: Option<AllocateResponse> = match stored.last_iteration {
        Some(last) => store.answer(job_id, last).await?.map(|last| last.parse()).transpose()?,
        None => None,
    };
    for (at_unix_ms, reports) in &arrivals {
        on_time(*at_unix_ms);
        reports.iter().for_each(|report| on_report(&report.worker, report.iteration));
    }
    // Of the reports that the models have learned, only their existence.
    let known = (newest + 1).saturating_sub(KNOWN_ITERATIONS);
    let learned = if known < first { store.reported(job_id, known).await? } else { Vec::new() };
    for (worker, reported, at_unix_ms) in learned {
        on_time(at_unix_ms);
        let is_reported = |at: &u64| reported >> (at - known) & 1 == 1;
        (known..=newest).filter(is_reported).for_each(|iteration| on_report(&worker, iteration));
    }
    let learning_rate = learning_rate(stored.learning_rate.as_deref(), &stored.spec)?;
    let kept_from = store.kept_from(job_id).await?;
    let (segments, regrouped) = (stored.segments, stored.regrouped);
    let mut state = JobState::restore(Restored {
        learning_rate,
        kept_from,
        models,
        last_allocation,
        spec: stored.spec,
        generation: stored.generation,
        departed_generation: stored.departed_generation,
        last_iteration: stored.last_iteration,
        members: stored.workers.iter().map(|worker| member(worker, now, &renewed_ms)).collect(),
        workers: stored.workers.into_iter().map(worker).collect(),
    });
    (state.attempts, state.regrouped) = (attempts(segments), regrouped);
    restore_in_force(store, job_id, &mut state).await?;
    for worker in state.workers.keys().cloned().collect::<Vec<_>>() {
        if !state.models.forecaster().knows(&worker) {
            warm_start(store, &mut state, &worker).await?;
        }
    }
    let planned = match stored.last_iteration {
        Some(last) => {
            // Allocations may be far ahead of reports.
            let first = if arrivals.is_empty() {
                last.saturating_sub(KNOWN_ITERATIONS - 1).max(first)
            } else {
                first
            };
            store.allocation_times(job_id, first.max(last.saturating_sub(HISTORY_ITERATIONS - 1))).await?
        }
        None => Vec::new(),
    };
    planned.iter().for_each(|(at_unix_ms, _)| on_time(*at_unix_ms));
    replay(store, job_id, &mut state, &arrivals, &planned).await?;
    Ok(Some((state, stored.unknown_options)))
}

/// Restores the current plan, if the last allocation does not show it.
async fn restore_in_force(store: &Store, job_id: &JobId, state: &mut JobState) -> Result<(), StoreError> {
    let mut before = state.last_allocation.as_ref().and_then(|last| last.iteration.checked_sub(1));
    for _ in 1..PLANS_MAX {
        let Some(until) = before.filter(|_| !state.has_plan()) else { break };
        let Some(stored) = store.answer_until(job_id, until).await? else { break };
        state.restore_in_force(&stored.parse()?);
        before = stored.iteration.checked_sub(1);
    }
    Ok(())
}

/// Learns from reports and restores plans, in the order of their times. `planned` are the positions that were planned, in this
/// order.
async fn replay(
    store: &Store,
    job_id: &JobId,
    state: &mut JobState,
    arrivals: &[(i64, Vec<WorkerReport>)],
    planned: &[(i64, u64)],
) -> Result<(), StoreError> {
    let mut answers = Answers::default();
    let (most, shares) = ALLOCATIONS_AT_ONCE;
    let at_once = (shares / (state.workers.len() as u64).max(1)).clamp(1, most);
    let mut learned = 0;
    let mut learn_until = |state: &mut JobState, at_unix_ms| {
        let arrived = arrivals.partition_point(|(at, _)| *at <= at_unix_ms).max(learned);
        let new = arrivals.get(learned..arrived).unwrap_or_default();
        let is_long = new.iter().map(|(_, reports)| reports.len()).sum::<usize>() > SHORT_REPORTS;
        compute(is_long, || new.iter().for_each(|(_, reports)| state.replay(reports)));
        learned = arrived;
    };
    for (at_unix_ms, position) in planned {
        // The plan of a request follows from its reports.
        learn_until(state, *at_unix_ms);
        let read = async || store.answers(job_id, *position, at_once).await;
        if let Some(stored) = answers.take(*position, read).await? {
            state.restore_plan(&stored.parse()?);
        }
    }
    learn_until(state, i64::MAX);
    Ok(())
}

/// Allocations that were read with others and not used yet. Each is used once, in almost any order: several ranks request ahead.
#[derive(Debug, Default)]
struct Answers(BTreeMap<u64, StoredAllocation>);

impl Answers {
    /// Returns the allocation at a position. If it is not here, reads it and those after it.
    async fn take(
        &mut self,
        position: u64,
        read: impl AsyncFnOnce() -> Result<Vec<StoredAllocation>, StoreError>,
    ) -> Result<Option<StoredAllocation>, StoreError> {
        if !self.0.contains_key(&position) {
            self.0.extend(read().await?.into_iter().map(|stored| (stored.iteration, stored)));
        }
        let stored = self.0.remove(&position);
        while self.0.len() > ALLOCATIONS_MAX {
            self.0.pop_first();
        }
        Ok(stored)
    }
}

/// Initializes the models of a worker without observations from the models of a device of the same kind.
///
/// # Errors
/// An error of the store.
pub async fn warm_start(store: &Store, state: &mut JobState, worker: &WorkerId) -> Result<(), StoreError> {
    let Some(device) = state.device_if_unmeasured(worker) else { return Ok(()) };
    let learned = store.device_model(device, FORMAT).await?;
    // Without a readable model, the worker starts cold.
    if let Some(earlier) = learned.and_then(|learned| read_device_model(&learned).ok()) {
        state.warm_start(worker, earlier);
    }
    Ok(())
}

/// Returns the attempts of a run with these segments.
pub fn attempts(segments: Vec<StoredSegment>) -> Attempts {
    Attempts::restore(segments.into_iter().map(|stored| {
        let StoredSegment { attempt, first_iteration, first_position } = stored;
        Segment { attempt, first_iteration, first_position }
    }))
}

/// Logs the parts of reports that the models skipped.
pub fn log_skipped(job_id: &JobId, attempts: &Attempts, skipped: &[Skipped]) {
    for skipped in skipped {
        match skipped {
            Skipped::Gradients { iteration, source } => {
                let Iteration { attempt, iteration } = attempts.at(*iteration);
                tracing::debug!(%job_id, attempt, iteration, "cannot use the gradients of an iteration: {source}");
            }
        }
    }
}

async fn models(store: &Store, job_id: &JobId) -> Result<Models, StoreError> {
    let parts = store.models(job_id, FORMAT).await?;
    if parts.is_empty() {
        return Ok(Models::new());
    }
    // Unreadable models learn again from the recent reports.
    let read = compute(true, || read_models(&parts));
    Ok(read.unwrap_or_else(|error| {
        tracing::warn!(%job_id, %error, "cannot read stored models; new models learn from recent reports");
        Models::new()
    }))
}

fn learning_rate(stored: Option<&str>, spec: &JobSpec) -> Result<Controller, StoreError> {
    let corrupt = |error: &dyn Display| StoreError::Corrupt {
        what: "learning rate",
        source: <serde_json::Error as serde::de::Error>::custom(error),
    };
    match stored {
        Some(state) => read_learning_rate(state).map_err(|error| corrupt(&error)),
        // The HTTP API only accepts valid settings, but a database that another program wrote may hold
        // others.
        None => controller(spec).map_err(|error| corrupt(&error)),
    }
}

fn member(worker: &StoredWorker, now: Now, renewed_ms: impl Fn(&WorkerId) -> i64) -> Member<WorkerId> {
    let state = match worker.state.as_str() {
        "live" => State::Live,
        "left" => State::Left,
        _ => State::Expired,
    };
    let worker_id = &worker.request.worker;
    let last_seen_ms =
        if state == State::Live { renewed_ms(worker_id) } else { now.steady_ms_at(worker.last_seen_unix_ms) };
    let departures = worker.departures_unix_ms.iter().rev().take(FLAP_DEPARTURES).rev();
    let departures_ms = departures.map(|at_unix_ms| now.steady_ms_at(*at_unix_ms)).collect();
    Member { id: worker.request.worker.clone(), state, last_seen_ms, departures_ms }
}

fn worker(worker: StoredWorker) -> (WorkerId, WorkerState) {
    let mut state = WorkerState::new(worker.request);
    state.oom_cap = worker.oom_cap;
    state.operator_override = worker.operator_override;
    worker.join_generations.into_iter().for_each(|generation| state.join(generation));
    (state.request.worker.clone(), state)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// A query for each out of order would take seconds on a busy server of PostgreSQL.
    #[tokio::test]
    async fn allocations_of_requests_ahead_are_read_about_once() {
        let (at_once, all) = (ALLOCATIONS_AT_ONCE.0, 1024);
        for ahead in [1, 4, 16, 32] {
            let mut random = ChaCha8Rng::seed_from_u64(ahead);
            let mut order: Vec<(u64, u64)> =
                (0..all).map(|at| (at + random.random_range(0..ahead), at)).collect();
            order.sort_unstable();
            let (mut answers, mut reads) = (Answers::default(), 0);
            for (_, position) in order {
                let read = async || {
                    reads += 1;
                    let stored =
                        |iteration| StoredAllocation { iteration, generation: 1, answer: "{}".into() };
                    Ok((position..all.min(position + at_once)).map(stored).collect())
                };
                assert_eq!(answers.take(position, read).await.unwrap().unwrap().iteration, position);
                assert!(answers.0.len() <= ALLOCATIONS_MAX);
            }
            assert!(reads <= 4 * all / at_once, "{reads} reads of {at_once} for {ahead} ahead");
        }
    }
}
