//! Allocation requests: validate, observe, decide, commit, publish.

use std::sync::Arc;

use evenstep_core::attempts::{Attempts, Segment};
use evenstep_core::job::{DecideError, JobState, PlannedIteration};
use evenstep_core::learning_rate::Controller;
use evenstep_core::plan::Unplannable;
use evenstep_protocol::{AllocateRequest, JobId, LearningRateRule, WorkerReport};
use evenstep_store::{Change, StoreError, StoredAllocation, StoredSegment, unknown_reason};

use super::error::JobError;
use super::held::StateGuard;
use super::job::Job;
use super::load::{self, log_skipped};
use super::responses::ResponseBytes;
use super::validate::validate;
use crate::clock::Now;
use crate::long::compute;

/// Approximate size of a response without its shares, in bytes; used to allocate its buffer.
const RESPONSE_BYTES: usize = 1024;
/// Approximate size of one worker's share in a response, in bytes.
const SHARE_BYTES: usize = 400;

/// Number of workers for which learning and planning take at most about a millisecond.
const SHORT_WORKERS: usize = 24;

/// The outcome of a request for an allocation.
#[derive(Debug)]
pub struct Allocated {
    /// The response.
    pub response: ResponseBytes,
    /// Whether it was planned for this request; false if the iteration was requested before.
    pub is_new: bool,
}

impl Job {
    /// Returns the allocation of an iteration: the existing one, or a new one that is durable before this
    /// returns.
    ///
    /// # Errors
    /// Any [`JobError`]. If an iteration cannot be planned, the reports of the request are stored
    /// nevertheless, and nothing else changes.
    pub async fn allocate(self: &Arc<Self>, request: AllocateRequest) -> Result<Allocated, JobError> {
        // A repeated request ends here without the lock, so it neither waits for a plan nor delays one.
        if let Some(response) = self.published().response(&request) {
            return Ok(Allocated { response, is_new: false });
        }
        let job = self.clone();
        self.work(|guard| async move { job.plan(guard, request).await }).await
    }

    async fn plan(&self, mut guard: StateGuard, mut request: AllocateRequest) -> Result<Allocated, JobError> {
        let attempts = &guard.state().attempts;
        for report in &mut request.reports {
            report.iteration = attempts.position(report.iteration);
        }
        // Before any change that is stored, so that a rejected request leaves nothing behind.
        let checked = validate(&mut guard.change().state, &request);
        guard.settle();
        checked?;
        // A deletion of the job was interrupted: no iteration of it can be planned.
        if guard.state().kept_from >= i64::MAX.cast_unsigned() {
            let (job_id, kept_from) = (request.job_id.clone(), guard.state().kept_from);
            return Err(JobError::Gone { job_id, iteration: request.iteration, kept_from });
        }
        // Looked up again under the lock, because another request may have planned the iteration while this one waited.
        let (state, iteration) = (guard.state(), request.iteration);
        let position = state.attempts.position(iteration);
        let starts_again = state.starts_again(position, !request.reports.is_empty());
        let known = if starts_again { Known::None } else { self.known_response(state, position).await? };
        let is_void = matches!(known, Known::Void);
        let known = if let Known::Valid(response) = known { Some(response) } else { None };
        let is_new = known.is_none();

        let now = guard.now;
        // From here on the state is ahead of the store. If this request ends before `settle`, the next one reads the state again.
        let held = guard.change();
        let was_regrouped = held.state.regrouped;
        let refused = unknown_reason(&held.unknown_options);
        for report in &request.reports {
            held.state.members.renew(&report.worker, now.steady_ms);
        }
        // After the leases: a repeated report is a sign of life, too, but it must not be learned twice.
        self.published().retain_new(&mut request.reports, held.state.kept_from);
        let reported = request.reports.iter().map(|report| report.iteration.saturating_add(1)).max();
        let unreported = self.published().unreported().max(reported.unwrap_or(0));
        let returns = Returns { starts_again, is_void, position: held.state.next_iteration.max(unreported) };
        let is_long = held.state.workers.len() > SHORT_WORKERS;
        let (observed, planned) = compute(is_long, || {
            // First, because the plan follows from these reports, too.
            let observed = held.state.observe(&request.reports);
            held.state.regrouped &= request.reports.is_empty();
            // Not returned yet if it is an error: the reports are learned now, so they must be stored.
            let planned = match known {
                Some(response) => Ok((response, None)),
                // A plan could break an option that it does not know.
                None if let Some(reason) = refused => {
                    Err(JobError::Unreadable { job_id: request.job_id.clone(), reason })
                }
                None => decide(&mut held.state, &request, returns)
                    .map(|(response, decided)| (response, Some(decided))),
            };
            (observed, planned)
        });
        log_skipped(self.id(), &held.state.attempts, &observed.skipped);

        let reports: Arc<[WorkerReport]> = request.reports.into();
        let mut changes = Vec::with_capacity(5);
        let mut at_unix_ms = now.unix_ms;
        if !reports.is_empty() || planned.as_ref().is_ok_and(|(_, decided)| decided.is_some()) {
            // A restart learns and plans in the order of these times, so each request gets a later one.
            at_unix_ms = held.arrival_unix_ms(now.unix_ms);
        }
        if !reports.is_empty() {
            changes.push(Change::Reports { job_id: self.id().clone(), reports: reports.clone() });
        }
        // Reports may contain gradients: AdaScale learns from them, whether or not an iteration is planned.
        let mut changes_learning_rate =
            !reports.is_empty() && held.state.spec.rule == LearningRateRule::Adascale;
        let planned = planned.map(|(response, decided)| {
            let answer = decided.map(|(decided, segment)| {
                changes_learning_rate |= decided.changes_learning_rate();
                if let Some(Segment { attempt, first_iteration, first_position }) = segment {
                    let segment = StoredSegment { attempt, first_iteration, first_position };
                    changes.push(Change::Segment { job_id: self.id().clone(), segment });
                }
                held.state.regrouped &= !starts_again;
                changes.push(Change::Allocation {
                    job_id: self.id().clone(),
                    iteration: decided.answer.iteration,
                    generation: response.generation,
                    answer: response.body.clone(),
                });
                let answer = decided.answer.clone();
                // Before the write, while the lock is held: if the write fails, the state in doubt is dropped as a whole.
                held.state.apply(decided);
                answer
            });
            (response, answer)
        });
        let regrouped = held.state.regrouped;
        if regrouped != was_regrouped {
            changes.push(Change::Regrouped { job_id: self.id().clone(), regrouped });
        }
        if changes_learning_rate {
            changes.push(learning_rate_change(self.id(), &held.state.learning_rate)?);
        }
        // One write, so that a crash leaves reports, allocation and learning rate together, or none of them.
        if !changes.is_empty() {
            self.store().write(changes, at_unix_ms).await?;
        }
        guard.settle();

        let answer = planned.as_ref().ok().and_then(|(_, answer)| answer.clone());
        let response = planned.map(|(response, _)| response);
        // Only now that they are durable: no client may see an allocation that a crash could undo.
        let attempts = guard.state().attempts.clone();
        self.publish(|published| {
            let position = attempts.position(iteration);
            (published.attempts, published.regrouped) = (attempts, regrouped);
            for report in &*reports {
                published.see(&report.worker, report.iteration);
            }
            if let Ok(response) = &response {
                published.keep(position, response.clone());
            }
        });
        if answer.is_some() {
            self.pace().step(now.steady_ms);
        }
        self.live().allocated(
            self.id(),
            &guard.state().attempts,
            answer,
            &reports,
            &observed.even,
            Now { unix_ms: at_unix_ms, ..now },
        );
        Ok(Allocated { response: response?, is_new })
    }

    /// Returns the existing response of the iteration at a position, from memory or the store. If one of its workers has
    /// departed since, the response is void: the iteration is planned again, unless the run has passed it.
    async fn known_response(&self, state: &JobState, position: u64) -> Result<Known, JobError> {
        if let Some(response) = self.published().valid(position) {
            return Ok(Known::Valid(response.clone()));
        }
        if position >= state.next_iteration {
            return Ok(Known::None);
        }
        let Some(stored) = self.stored_response(position).await? else {
            self.check_kept(&state.attempts, position).await?;
            return Ok(Known::None);
        };
        let is_void = stored.generation < state.members.departed_generation();
        let is_known = !is_void || state.is_carried_out(position) || !state.is_void();
        Ok(if is_known { Known::Valid(stored.into()) } else { Known::Void })
    }

    /// Reads a response that is not in memory. It is returned byte for byte, so a damaged one is an error.
    async fn stored_response(&self, position: u64) -> Result<Option<StoredAllocation>, JobError> {
        let stored = self.store().answer(self.id(), position).await?;
        let parsed = compute(true, || stored.as_ref().map(StoredAllocation::parse).transpose());
        parsed.map_err(|error| JobError::of_row(self.id(), error))?;
        Ok(stored)
    }

    /// Rejects a position whose allocation may have been deleted by age. Called after the allocation was not found, so that it is
    /// not deleted in between.
    async fn check_kept(&self, attempts: &Attempts, position: u64) -> Result<(), JobError> {
        let kept_from = self.store().kept_from(self.id()).await?;
        if position < kept_from {
            let [iteration, kept_from] = [position, kept_from].map(|at| attempts.at(at).iteration);
            return Err(JobError::Gone { job_id: self.id().clone(), iteration, kept_from });
        }
        Ok(())
    }

    /// Returns the existing response of an iteration, for the other ranks; never plans.
    ///
    /// # Errors
    /// [`JobError::NotAllocated`], [`JobError::Void`], [`JobError::Gone`], or an error of the store.
    pub async fn allocated(self: &Arc<Self>, iteration: u64) -> Result<ResponseBytes, JobError> {
        let job_id = || self.id().clone();
        let in_memory = {
            let published = self.published();
            published.loaded.then(|| (published.attempts.clone(), published.regrouped))
        };
        let (attempts, may_start_again) = match in_memory {
            Some(known) => known,
            None => {
                let (.., regrouped) = self.store().generations(self.id()).await?;
                (load::attempts(self.store().segments(self.id()).await?), regrouped)
            }
        };
        let position = attempts.position(iteration);
        let known = self.published().valid(position).cloned();
        let response = match known {
            Some(response) => response,
            None => {
                let Some(stored) = self.stored_response(position).await? else {
                    self.check_kept(&attempts, position).await?;
                    return Err(JobError::NotAllocated { job_id: job_id(), iteration });
                };
                let (current, departed, _) = self.store().generations(self.id()).await?;
                let planned = stored.generation;
                if planned < departed {
                    return Err(JobError::Void { job_id: job_id(), iteration, planned, current });
                }
                stored.into()
            }
        };
        if may_start_again {
            let guard = self.lock_in_time().await?;
            let state = guard.state();
            let is_training = state.members.live().next().is_some();
            // A request may begin an attempt with this iteration, or just did: no rank may get the allocation of the one before.
            if state.attempts.position(iteration) != position
                || (is_training && state.starts_again(position, false))
            {
                return Err(JobError::NotAllocated { job_id: job_id(), iteration });
            }
        }
        Ok(response)
    }
}

/// The existing response of an iteration.
enum Known {
    None,
    Void,
    Valid(ResponseBytes),
}

/// Whether and how the run returns to the requested iteration.
#[derive(Debug, Clone, Copy)]
struct Returns {
    starts_again: bool,
    /// Whether the iteration has a void allocation.
    is_void: bool,
    /// The first position that has neither an allocation nor a report.
    position: u64,
}

/// Plans an iteration. The state does not change, except that the segment that begins with the iteration is added, if one does.
fn decide(
    state: &mut JobState,
    request: &AllocateRequest,
    returns: Returns,
) -> Result<(ResponseBytes, (PlannedIteration, Option<Segment>)), JobError> {
    let (before, iteration) = (state.attempts.clone(), request.iteration);
    let is_open = !state.is_carried_out(before.position(iteration));
    let Returns { starts_again, is_void, position } = returns;
    let segment = match (starts_again, is_open) {
        (true, _) => Some(state.next_attempt(iteration, position)),
        (false, true) => state.void_segment(iteration, is_void, position),
        (false, false) => None,
    };
    segment.into_iter().for_each(|segment| state.attempts.push(segment));
    let at = AllocateRequest {
        global_batch: request.global_batch,
        ..AllocateRequest::new(request.job_id.clone(), request.generation, state.attempts.position(iteration))
    };
    let planned = state.decide(&at).map_err(|undecided| refusal(state, &at.job_id, undecided));
    let planned = planned.and_then(|mut planned| Ok((body(&mut planned, iteration)?, (planned, segment))));
    if planned.is_err() {
        state.attempts = before;
    }
    planned
}

/// Encodes the response, with the iteration of the client.
fn body(planned: &mut PlannedIteration, iteration: u64) -> Result<ResponseBytes, StoreError> {
    let answer = Arc::make_mut(&mut planned.answer);
    let position = std::mem::replace(&mut answer.iteration, iteration);
    let mut body = Vec::with_capacity(RESPONSE_BYTES + SHARE_BYTES * answer.allocations.len());
    serde_json::to_writer(&mut body, answer)
        .map_err(|source| StoreError::Corrupt { what: "answer", source })?;
    answer.iteration = position;
    Ok(ResponseBytes { generation: answer.generation, body: body.into() })
}

fn refusal(state: &JobState, job_id: &JobId, undecided: DecideError) -> JobError {
    match undecided {
        DecideError::Unplannable(Unplannable::Infeasible(source)) => {
            let crossed = source.crossed.and_then(|crossed| state.members.live().nth(crossed.rank));
            let binding = state.binding(&source).map(Box::new);
            JobError::Infeasible { job_id: job_id.clone(), crossed: crossed.cloned(), binding, source }
        }
        DecideError::Unplannable(Unplannable::Sizes(error)) => {
            JobError::Invalid(format!("allowed_sizes of job {job_id}: {error}"))
        }
        DecideError::LearningRate(error) => JobError::Invalid(error.to_string()),
    }
}

/// Returns the change that stores the state of the learning-rate rule.
pub(super) fn learning_rate_change(job_id: &JobId, controller: &Controller) -> Result<Change, StoreError> {
    let state = serde_json::to_string(controller);
    let state = state.map_err(|source| StoreError::Corrupt { what: "learning rate", source })?;
    Ok(Change::LearningRate { job_id: job_id.clone(), state })
}
