//! `GET /v1/live`: the summary of all jobs, once a second.

use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::Event;
use evenstep_protocol::LiveView;
use futures_util::stream;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::super::nodes::Nodes;
use super::feed::CHECK_INTERVAL;
use super::streams::{ALIVE_EVERY, RETRY_AFTER, event};
use super::{Api, ErrorResponse};
use crate::access::Caller;

/// Follow the summary of all jobs.
///
/// Server-sent events named `jobs`: at most one per second, and at least one every five seconds.
#[utoipa::path(
    get, path = "/v1/live", tag = "jobs",
    responses(
        (status = 200, description = "Events, until either side ends", content_type = "text/event-stream", body = LiveView),
        (status = 429, description = "Too many streams"),
    )
)]
pub async fn follow(State(api): State<Api>, caller: Caller) -> Result<impl IntoResponse, ErrorResponse> {
    let place = api.pools.streams.take(&caller).await?;
    // A client learns why there is no summary, instead of waiting for it.
    api.streams.feed.look(&api.jobs).await?;
    let mut looks = interval(CHECK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let streams = api.streams.clone();
    let follower = EventSource { api, caller: caller.clone(), looks, sent: None, begins: true };
    let source = stream::unfold(follower, |mut follower| async { Some((follower.next().await, follower)) });
    Ok(streams.follow(caller, place, source))
}

struct EventSource {
    api: Api,
    caller: Caller,
    looks: Interval,
    /// Version and time of the last event.
    sent: Option<(u64, Instant)>,
    begins: bool,
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

    async fn next(&mut self) -> Event {
        if std::mem::take(&mut self.begins) {
            return Event::default().retry(RETRY_AFTER);
        }
        loop {
            self.looks.tick().await;
            let looked = self.api.streams.feed.look(&self.api.jobs).await;
            // The store failed. The client can see the age of its summary, and the next read may succeed.
            let Ok((number, view)) = looked else { continue };
            let is_known = self.sent.is_some_and(|(sent, at)| sent == number && at.elapsed() < ALIVE_EVERY);
            if !is_known {
                self.sent = Some((number, Instant::now()));
                return if self.caller.jobs().is_all() {
                    event("jobs", &*view)
                } else {
                    event("jobs", &self.own(&view))
                };
            }
        }
    }
}
