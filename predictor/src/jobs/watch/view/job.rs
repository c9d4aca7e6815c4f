//! Views of a job as a whole.

use evenstep_core::attempts::Attempts;
use evenstep_core::job::{JobState, global_batch};
use evenstep_protocol::{JobId, JobSummary, JobView};
use evenstep_store::StoredSummary;

use super::super::account::Account;
use super::super::live::Live;
use super::super::status::{Facts, Status};
use super::verdict::verdict;
use crate::clock::Now;
use crate::jobs::load::attempts;

/// The view of a job in memory.
pub fn job(state: &JobState, job_id: &JobId, live: &Live, now: Now) -> JobView {
    let facts = live.facts();
    let known = StoredSummary {
        job_id: job_id.clone(),
        segments: Vec::new(),
        spec: Some(state.spec.clone()),
        unreadable: facts.unreadable.clone(),
        generation: state.members.generation(),
        live_workers: state.members.live().count() as u64,
        next_iteration: state.next_iteration,
        last_decision: state.last_allocation.as_ref().map(|last| last.decision.clone()),
        past: facts.past.clone(),
        totals: None,
    };
    JobView {
        gain: live.account().and_then(|account| account.gain()),
        hedge: state.hedge_view(),
        ..view(known, &state.attempts, &facts, now)
    }
}

/// The view of a job that is not in memory. This predictor has followed it since `active_ms`.
pub fn stored(stored: StoredSummary, active_ms: i64, now: Now) -> JobView {
    let facts = Facts {
        live: stored.live_workers,
        min_workers: stored.spec.as_ref().map_or(0, |spec| spec.min_workers),
        past: stored.past.clone(),
        active_ms,
        unreadable: stored.unreadable.clone(),
        ..Facts::default()
    };
    let attempts = attempts(stored.segments.clone());
    view(stored, &attempts, &facts, now)
}

/// The view of a job, without what only its state and its statistics tell.
fn view(known: StoredSummary, attempts: &Attempts, facts: &Facts, now: Now) -> JobView {
    let next = attempts.at(known.next_iteration);
    let Status { state, since_unix_ms, reason } = facts.status(now);
    JobView {
        state,
        state_since_unix_ms: since_unix_ms,
        state_reason: reason,
        created_unix_ms: facts.past.created_unix_ms,
        gain: None,
        global_batch: known.spec.as_ref().map_or(0, |spec| global_batch(spec, known.live_workers)),
        generation: known.generation,
        attempt: next.attempt,
        next_iteration: next.iteration,
        live_workers: known.live_workers,
        last_decision: known.last_decision,
        hedge: None,
        job_id: known.job_id,
        spec: known.spec,
    }
}

/// The summary of a job: its state and its statistics.
pub fn summary(live: &Live, job_id: &JobId, now: Now) -> JobSummary {
    let seen = live.lock();
    let means = seen.means();
    let reported = seen.reported();
    let iteration = reported.map(|(position, _)| seen.attempts.at(position));
    let account = seen.account();
    let status = seen.status(now);
    let verdict = Some(verdict(&seen, &status, account.as_ref(), now));
    let Status { state, since_unix_ms, reason } = status;
    JobSummary {
        job_id: job_id.clone(),
        state: Some(state),
        state_since_unix_ms: since_unix_ms,
        state_reason: Some(reason),
        url: None,
        created_unix_ms: Some(seen.facts.past.created_unix_ms).filter(|at| *at > 0),
        unit: seen.unit().to_owned(),
        live_workers: seen.facts.live,
        slow_workers: seen.slow.len() as u64,
        iteration: iteration.map(|at| at.iteration),
        attempt: iteration.map(|at| at.attempt),
        at_unix_ms: reported.map(|(_, at)| at),
        step_time_s: means.map(|means| means.step_time_s),
        samples_per_s: means.map(|means| means.samples_per_s),
        waiting_share: account.as_ref().and_then(Account::lost_share),
        error_ratio: means.and_then(|means| means.error_ratio),
        trained_s: account.as_ref().and_then(Account::trained_s),
        time_lost_s: account.as_ref().and_then(Account::lost_s),
        gain: account.as_ref().and_then(Account::gain),
        time_saved: account.as_ref().and_then(Account::saved),
        reason: seen.reason(),
        verdict,
    }
}
