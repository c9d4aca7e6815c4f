//! `GET /v1/live`: the summary of all jobs, once a second.

use std::convert::Infallible;

use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::Event;
use evenstep_protocol::LiveView;
use futures_util::{Stream, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::super::nodes::Nodes;
use super::feed::CHECK_INTERVAL;
use super::streams::{ALIVE_EVERY, RETRY_AFTER, event, events};
use super::{Api, ErrorResponse};
use crate::access::Caller;

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
