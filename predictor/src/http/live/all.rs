//! `GET /v1/live`: the summary of all jobs, once a second.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::Event;
use evenstep_protocol::LiveView;
use futures_util::{Stream, stream};
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::super::nodes::Nodes;
use super::{ALIVE_EVERY, Api, ErrorResponse, RETRY_AFTER, event, events};
use crate::access::Caller;
use crate::jobs::{JobError, Jobs};

/// Interval at which the summary is read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Follow the summary of all jobs.
///
/// Server-sent events named `jobs`: at most one per second, and at least one every five seconds.
#[utoipa::path(
    get, path = "/v1/live", tag = "jobs",
    responses(
        (status = 200, description = "Events, until either side ends", content_type = "text/event-stream", body = LiveView),
        (status = 503, description = "Too many streams"),
    )
)]
pub async fn follow(
    State(api): State<Api>,
    caller: Caller,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ErrorResponse> {
    let place = api.streams.enter()?;
    // A client learns why there is no summary, instead of waiting for it.
    api.streams.feed.look(&api.jobs).await?;
    let mut looks = interval(CHECK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let follower = EventSource { api, caller, looks, sent: None, begins: true, _place: place };
    Ok(events(stream::unfold(follower, |mut follower| async {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    })))
}

/// The latest summary. All clients share it, so the store is read once a second for any number of clients.
#[derive(Debug, Default)]
pub struct Feed(Mutex<Option<(Instant, u64, Arc<LiveView>)>>);

impl Feed {
    /// Returns the summary, at most one interval old, and its version. The version rises when anything but
    /// the time changed.
    async fn look(&self, jobs: &Jobs) -> Result<(u64, Arc<LiveView>), JobError> {
        let mut latest = self.0.lock().await;
        if let Some((at, number, view)) = &*latest
            && at.elapsed() < CHECK_INTERVAL
        {
            return Ok((*number, view.clone()));
        }
        let view = Arc::new(jobs.live().await?);
        let number = match &*latest {
            Some((_, number, before)) if (&before.jobs, &before.nodes) == (&view.jobs, &view.nodes) => {
                *number
            }
            Some((_, number, _)) => number + 1,
            None => 0,
        };
        *latest = Some((Instant::now(), number, view.clone()));
        Ok((number, view))
    }
}

struct EventSource {
    api: Api,
    caller: Caller,
    looks: Interval,
    /// Version and time of the last event.
    sent: Option<(u64, Instant)>,
    begins: bool,
    _place: OwnedSemaphorePermit,
}

impl EventSource {
    /// The part of a summary that the client may see.
    fn own(&self, view: &LiveView) -> LiveView {
        let nodes = Nodes::of(&self.api.jobs, &self.caller);
        LiveView {
            now_unix_ms: view.now_unix_ms,
            jobs: view.jobs.iter().filter(|job| self.caller.may_use(&job.job_id)).cloned().collect(),
            nodes: view.nodes.iter().filter(|node| nodes.include(&node.node)).cloned().collect(),
        }
    }

    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.begins) {
            return Some(Event::default().retry(RETRY_AFTER));
        }
        loop {
            tokio::select! {
                _ = self.looks.tick() => {}
                () = self.api.streams.ended() => return None,
            }
            let looked = self.api.streams.feed.look(&self.api.jobs).await;
            // The store failed. The client can see the age of its summary, and the next read may succeed.
            let Ok((number, view)) = looked else { continue };
            let is_known = self.sent.is_some_and(|(sent, at)| sent == number && at.elapsed() < ALIVE_EVERY);
            if !is_known {
                self.sent = Some((number, Instant::now()));
                return Some(if self.caller.jobs().is_all() {
                    event("jobs", &*view)
                } else {
                    event("jobs", &self.own(&view))
                });
            }
        }
    }
}
