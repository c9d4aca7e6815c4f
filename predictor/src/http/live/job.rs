//! `GET /v1/jobs/{id}/live`: events of a running job.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::Event;
use evenstep_protocol::{JobId, JobSummary, StepView};
use futures_util::stream;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::streams::{ALIVE_EVERY, RETRY_AFTER, event};
use super::{Api, ErrorResponse, InPath};
use crate::access::Caller;
use crate::jobs::{Cursor, Job, Jobs, summary};

/// Shortest interval between two `step` events. People cannot follow more, and the newest iteration is the
/// most relevant.
const STEP_EVERY: Duration = Duration::from_millis(100);
/// The interval of jobs with many workers, per worker: their events are large.
const STEP_EVERY_OF_WORKER: Duration = Duration::from_millis(1);
/// Shortest interval between two `summary` events.
const SUMMARY_EVERY: Duration = Duration::from_secs(1);

/// Follow a running job.
///
/// Server-sent events:
/// - `step`: the latest iteration whose workers reported, without the ragged end of an epoch, at most 10 per second. Jobs with more than 100 workers
///   have fewer: one per second for each 1,000 workers.
/// - `summary`: state and statistics of the job, at most one per second.
/// - `log`: an entry of the log.
/// - `changed`: workers, job options or overrides changed; read them again.
/// - `gone`: the job was deleted, or another predictor serves it now. The last event.
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/live", tag = "jobs",
    responses(
        (status = 200, description = "Events, until either side ends", content_type = "text/event-stream", body = StepView),
        (status = 429, description = "Too many streams"),
    )
)]
pub async fn follow(
    State(api): State<Api>,
    caller: Caller,
    InPath(job_id): InPath<JobId>,
) -> Result<impl IntoResponse, ErrorResponse> {
    let job = api.jobs.job(&job_id).await?;
    // Loads the job into memory, where its events are.
    job.view().await?;
    let place = api.pools.streams.take(&caller).await?;
    let mut changes = job.live().watch();
    changes.mark_changed();
    let follower = EventSource {
        jobs: api.jobs,
        cursor: job.live().cursor(),
        job,
        changes,
        waiting: VecDeque::from([Event::default().retry(RETRY_AFTER)]),
        next_step: Instant::now(),
        summary: None,
        is_over: false,
    };
    let source = stream::unfold(follower, |mut follower| async {
        let event = follower.next().await?;
        Some((event, follower))
    });
    Ok(api.streams.follow(caller, place, source))
}

struct EventSource {
    jobs: Arc<Jobs>,
    job: Arc<Job>,
    changes: watch::Receiver<()>,
    cursor: Cursor,
    /// Events of the last look at the job that are not sent yet.
    waiting: VecDeque<Event>,
    next_step: Instant,
    /// The latest `summary` event, and its time.
    summary: Option<(JobSummary, Instant)>,
    is_over: bool,
}

impl EventSource {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            let changed = async {
                // The sender is dropped with the job, so an error of `changed` needs no handling: the
                // registry is checked below.
                let _ = timeout(ALIVE_EVERY, self.changes.changed()).await;
                sleep_until(self.next_step).await;
            };
            changed.await;
            self.look();
        }
    }

    fn look(&mut self) {
        if !self.jobs.has(&self.job) {
            self.waiting.push_back(event("gone", &json!({})));
            self.is_over = true;
            return;
        }
        self.changes.mark_unchanged();
        let updates = self.job.live().updates(&mut self.cursor);
        if let Some(step) = updates.step {
            let workers = u32::try_from(step.workers.len()).unwrap_or(u32::MAX);
            self.next_step = Instant::now() + STEP_EVERY.max(STEP_EVERY_OF_WORKER.saturating_mul(workers));
            self.waiting.push_back(event("step", &step));
        }
        if updates.changed {
            self.waiting.push_back(event("changed", &json!({})));
        }
        if self.summary.as_ref().is_none_or(|(_, sent)| sent.elapsed() >= SUMMARY_EVERY) {
            let summary = summary(self.job.live(), self.job.id(), self.jobs.now());
            if self.summary.as_ref().is_none_or(|(sent, _)| *sent != summary) {
                self.waiting.push_back(event("summary", &summary));
                self.summary = Some((summary, Instant::now()));
            }
        }
        self.waiting.extend(updates.log.iter().map(|entry| event("log", entry)));
    }
}
