//! Allocation requests: validate, observe, decide, commit, publish.

use std::sync::Arc;

use evenstep_core::job::{DecideError, JobState, PlannedIteration};
use evenstep_core::learning_rate::Controller;
use evenstep_core::plan::Unplannable;
use evenstep_protocol::{AllocateRequest, JobId, LearningRateRule, WorkerReport};
use evenstep_store::{Change, StoreError, StoredAllocation, unknown_reason};

use super::error::JobError;
use super::held::StateGuard;
use super::job::Job;
use super::load::log_skipped;
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
        // Before any change that is stored, so that a rejected request leaves nothing behind.
        let checked = validate(&mut guard.change().state, &request);
        guard.settle();
        checked?;
        // Looked up again under the lock, because another request may have planned the iteration while this one waited.
        let known = self.known_response(guard.state(), request.iteration).await?;
        let is_new = known.is_none();

        let now = guard.now;
        // From here on the state is ahead of the store. If this request ends before `settle`, the next one reads the state again.
        let held = guard.change();
        let refused = unknown_reason(&held.unknown_options);
        for report in &request.reports {
            held.state.members.renew(&report.worker, now.steady_ms);
        }
        // After the leases: a repeated report is a sign of life, too, but it must not be learned twice.
        self.published().retain_new(&mut request.reports, held.state.kept_from);
        let is_long = held.state.workers.len() > SHORT_WORKERS;
        let (observed, planned) = compute(is_long, || {
            // First, because the plan follows from these reports, too.
            let observed = held.state.observe(&request.reports);
            // Not returned yet if it is an error: the reports are learned now, so they must be stored.
            let planned = match known {
                Some(response) => Ok((response, None)),
                // A plan could break an option that it does not know.
                None if let Some(reason) = refused => {
                    Err(JobError::Unreadable { job_id: request.job_id.clone(), reason })
                }
                None => decide(&held.state, &request).map(|(response, decided)| (response, Some(decided))),
            };
            (observed, planned)
        });
        log_skipped(self.id(), &observed.skipped);

        let reports: Arc<[WorkerReport]> = request.reports.into();
        let mut changes = Vec::with_capacity(3);
        let mut at_unix_ms = now.unix_ms;
        if !reports.is_empty() {
            // A restart learns in the order of these times, so the reports of each request get a later one.
            at_unix_ms = held.arrival_unix_ms(now.unix_ms);
            changes.push(Change::Reports { job_id: self.id().clone(), reports: reports.clone() });
        }
        // Reports may contain gradients: AdaScale learns from them, whether or not an iteration is planned.
        let mut changes_learning_rate =
            !reports.is_empty() && held.state.spec.rule == LearningRateRule::Adascale;
        let planned = planned.map(|(response, decided)| {
            let answer = decided.map(|decided| {
                changes_learning_rate |= decided.changes_learning_rate();
                changes.push(Change::Allocation {
                    job_id: self.id().clone(),
                    iteration: request.iteration,
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
        self.publish(|published| {
            for report in &*reports {
                published.see(&report.worker, report.iteration);
            }
            if let Ok(response) = &response {
                published.keep(request.iteration, response.clone());
            }
        });
        if answer.is_some() {
            self.pace().step(now.steady_ms);
        }
        self.live().allocated(
            self.id(),
            answer,
            &reports,
            &observed.even,
            Now { unix_ms: at_unix_ms, ..now },
        );
        Ok(Allocated { response: response?, is_new })
    }

    /// Returns the existing response of an iteration, from memory or the store. If one of its workers has
    /// departed since, the response is void: no rank can have carried it out, and the iteration is planned
    /// again.
    async fn known_response(
        &self,
        state: &JobState,
        iteration: u64,
    ) -> Result<Option<ResponseBytes>, JobError> {
        if let Some(response) = self.published().valid(iteration) {
            return Ok(Some(response.clone()));
        }
        if iteration >= state.next_iteration {
            return Ok(None);
        }
        let Some(stored) = self.stored_response(iteration).await? else {
            self.check_kept(iteration).await?;
            return Ok(None);
        };
        let stored = Some(stored).filter(|stored| stored.generation >= state.members.departed_generation());
        Ok(stored.map(ResponseBytes::from))
    }

    /// Reads a response that is not in memory. It is returned byte for byte, so a damaged one is an error.
    async fn stored_response(&self, iteration: u64) -> Result<Option<StoredAllocation>, JobError> {
        let stored = self.store().answer(self.id(), iteration).await?;
        let parsed = compute(true, || stored.as_ref().map(StoredAllocation::parse).transpose());
        parsed.map_err(|error| JobError::of_row(self.id(), error))?;
        Ok(stored)
    }

    /// Rejects an iteration whose allocation may have been deleted by age. Called after the allocation was not found, so that it is
    /// not deleted in between.
    async fn check_kept(&self, iteration: u64) -> Result<(), JobError> {
        let kept_from = self.store().kept_from(self.id()).await?;
        if iteration < kept_from {
            return Err(JobError::Gone { job_id: self.id().clone(), iteration, kept_from });
        }
        Ok(())
    }

    /// Returns the existing response of an iteration, for the other ranks; never plans.
    ///
    /// # Errors
    /// [`JobError::NotAllocated`], [`JobError::Void`], [`JobError::Gone`], or an error of the store.
    pub async fn allocated(&self, iteration: u64) -> Result<ResponseBytes, JobError> {
        if let Some(response) = self.published().valid(iteration) {
            return Ok(response.clone());
        }
        let Some(stored) = self.stored_response(iteration).await? else {
            self.check_kept(iteration).await?;
            return Err(JobError::NotAllocated { job_id: self.id().clone(), iteration });
        };
        let (current, departed) = self.store().generations(self.id()).await?;
        if stored.generation < departed {
            let (job_id, planned) = (self.id().clone(), stored.generation);
            return Err(JobError::Void { job_id, iteration, planned, current });
        }
        Ok(stored.into())
    }
}

/// Plans an iteration without changing the state.
fn decide(
    state: &JobState,
    request: &AllocateRequest,
) -> Result<(ResponseBytes, PlannedIteration), JobError> {
    let decided = state.decide(request).map_err(|undecided| refusal(state, &request.job_id, undecided))?;
    let answer = &*decided.answer;
    let mut body = Vec::with_capacity(RESPONSE_BYTES + SHARE_BYTES * answer.allocations.len());
    serde_json::to_writer(&mut body, answer)
        .map_err(|source| StoreError::Corrupt { what: "answer", source })?;
    Ok((ResponseBytes { generation: answer.generation, body: body.into() }, decided))
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
