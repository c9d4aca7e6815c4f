//! `GET /v1/jobs/{id}/live`: a job as it runs.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::Event;
use evenstep_protocol::{JobId, Problem, StepView};
use futures_util::{Stream, stream};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::{ALIVE_EVERY, Api, InPath, RETRY_AFTER, Refusal, Streams, event, events};
use crate::jobs::{Cursor, Job, Jobs};

/// The time from step to step, at least: nobody sees more, and of short steps the newest says most.
const STEP_EVERY: Duration = Duration::from_millis(100);

/// A job as it runs, as server-sent events: `step` (the latest iteration whose workers reported, at most 10 a second), `log` (an
/// entry of the log), `changed` (workers, wishes or overrides changed: ask for them again) and `gone` (the job was deleted, or is
/// another predictor's now; the last event).
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}/live", tag = "jobs", params(("job_id" = String, Path, description = "The job")),
    responses(
        (status = 200, description = "Events, until either side ends", content_type = "text/event-stream", body = StepView),
        (status = 404, description = "Unknown job", body = Problem),
        (status = 503, description = "Too many streams", body = Problem),
    )
)]
pub async fn follow(
    State(api): State<Api>,
    InPath(job_id): InPath<JobId>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let job = api.jobs.job(&job_id).await?;
    // In memory from here on: what is to be followed must be there.
    job.view().await?;
    let place = api.streams.enter()?;
    let mut changes = job.live().watch();
    changes.mark_changed();
    let follower = Follower {
        jobs: api.jobs,
        cursor: job.live().cursor(),
        job,
        changes,
        streams: api.streams,
        waiting: VecDeque::from([Event::default().retry(RETRY_AFTER)]),
        next_step: Instant::now(),
        is_over: false,
        _place: place,
    };
    Ok(events(stream::unfold(follower, |mut follower| async {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    })))
}

struct Follower {
    jobs: Arc<Jobs>,
    job: Arc<Job>,
    changes: watch::Receiver<()>,
    cursor: Cursor,
    streams: Streams,
    /// At most what one look brings.
    waiting: VecDeque<Event>,
    next_step: Instant,
    is_over: bool,
    _place: OwnedSemaphorePermit,
}

impl Follower {
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
                // A job that nobody has any more changes no more: whether it is gone is looked at all the same.
                let _ = timeout(ALIVE_EVERY, self.changes.changed()).await;
                sleep_until(self.next_step).await;
            };
            tokio::select! {
                () = changed => self.look(),
                () = self.streams.ended() => return None,
            }
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
            self.next_step = Instant::now() + STEP_EVERY;
            self.waiting.push_back(event("step", &step));
        }
        if updates.changed {
            self.waiting.push_back(event("changed", &json!({})));
        }
        self.waiting.extend(updates.log.iter().map(|entry| event("log", entry)));
    }
}
