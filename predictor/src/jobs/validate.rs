//! Checks of allocation requests, before anything changes.

use evenstep_core::job::JobState;
use evenstep_protocol::AllocateRequest;

use super::error::JobError;

/// Limit of iterations that a request may be ahead of the first iteration that was not requested yet.
pub const LOOK_AHEAD_MAX: u64 = 64;
/// Limit of iterations that a report may be ahead of the first iteration without an allocation. While the
/// predictor is unreachable, workers train on and then report iterations that were never requested: up to 19
/// days of training with 10 iterations per second.
///
/// A report beyond the limit comes from a wrong counter. Accepted, it would be newer than every later report
/// of its worker, so nothing would be learned from those.
pub const OUTAGE_ITERATIONS_MAX: u64 = 1 << 24;

/// Checks a request against the state of its job.
///
/// # Errors
/// The [`JobError`] of the first rule that the request breaks.
pub fn validate(state: &JobState, request: &AllocateRequest) -> Result<(), JobError> {
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
    let next = state.next_iteration;
    if let Some(report) =
        request.reports.iter().find(|report| next > 0 && report.iteration >= next + OUTAGE_ITERATIONS_MAX)
    {
        return Err(JobError::Invalid(format!(
            "reports: iteration {} of worker {} is {OUTAGE_ITERATIONS_MAX} or more after {next}, the first iteration without \
             an allocation; correct the worker's iteration count",
            report.iteration, report.worker
        )));
    }
    let reported = request.reports.iter().map(|report| report.iteration + 1).max().unwrap_or(0);
    let newest = next.max(reported);
    if next > 0 && request.iteration > newest + LOOK_AHEAD_MAX {
        return Err(JobError::Invalid(format!(
            "iteration: {} is more than {LOOK_AHEAD_MAX} ahead of {newest}, the first that has neither an allocation nor a report",
            request.iteration
        )));
    }
    Ok(())
}
