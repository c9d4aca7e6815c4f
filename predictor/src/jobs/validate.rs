//! Checks of allocation requests, before anything changes.

use evenstep_core::job::{JobState, LOOK_AHEAD_MAX};
use evenstep_protocol::AllocateRequest;

use super::error::JobError;

/// Checks a request against the state of its job. Its reports have positions already. They are of earlier iterations than the
/// requested one, so its limit is theirs. A report beyond it, once accepted, would be newer than every later report of its
/// worker, so nothing would be learned from those.
///
/// A rejected request changes nothing but the progress that its reports show; see [`JobState::reached`].
///
/// # Errors
/// The [`JobError`] of the first rule that the request breaks.
pub fn validate(state: &mut JobState, request: &AllocateRequest) -> Result<(), JobError> {
    let current = state.members.generation();
    if request.generation != current {
        let job_id = request.job_id.clone();
        return Err(JobError::StaleGeneration { job_id, asked: request.generation, current });
    }
    let (live, needed) = (state.members.live().count() as u64, state.spec.min_workers.max(1));
    if live < needed {
        return Err(JobError::Paused { job_id: request.job_id.clone(), live, needed });
    }
    let global_batch = state.global_batch();
    // With `per_worker_batch`, the client sends the samples remaining in the epoch. The global batch may have
    // changed meanwhile.
    let too_many = request.global_batch.filter(|samples| *samples > global_batch);
    if let Some(samples) = too_many.filter(|_| state.spec.per_worker_batch.is_none()) {
        return Err(JobError::Invalid(format!(
            "global_batch: {samples} exceeds the job's {global_batch}; it may only be smaller, for the last batch of an epoch"
        )));
    }
    if let Some(report) = request.reports.iter().find(|report| !state.members.knows(&report.worker)) {
        let worker = report.worker.to_string();
        return Err(JobError::UnknownWorker { job_id: request.job_id.clone(), worker });
    }
    let position = state.attempts.position(request.iteration);
    if position > state.next_iteration.saturating_add(LOOK_AHEAD_MAX) {
        let reached = state.reached(&request.reports);
        if position > reached.saturating_add(LOOK_AHEAD_MAX) {
            let reached = state.attempts.at(reached).iteration;
            return Err(JobError::Invalid(format!(
                "iteration: {} is more than {LOOK_AHEAD_MAX} ahead of {reached}, the first without an allocation that some \
                 worker with samples has not reported; after an outage, report the latest iteration of each worker. \
                 Otherwise correct the iteration count",
                request.iteration
            )));
        }
    }
    Ok(())
}
