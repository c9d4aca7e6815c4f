//! Streams of server-sent events: the summary that they share, and the conditions of their end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header;
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Sse};
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::feed::Feed;
use crate::access::{Access, Caller, Share};

/// Longest time without an event or a comment. A client that receives nothing for longer has lost the stream.
pub const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// Pause after which a client should reconnect.
pub const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Interval at which a stream checks that its client may still follow it.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Longest life of a stream. Its client connects again, so what is checked only at a connection (certificates, limits,
/// the predictor that a name leads to) holds for all streams after this time.
const LIFE_MAX: Duration = Duration::from_secs(3600);

/// The summary that all streams share, and the conditions of their end.
#[derive(Debug, Clone)]
pub struct Streams {
    access: Arc<Access>,
    ending: watch::Receiver<bool>,
    /// The summary of all jobs.
    pub feed: Arc<Feed>,
}

impl Streams {
    /// Streams end when `ending` becomes true.
    pub fn new(access: Arc<Access>, ending: watch::Receiver<bool>) -> Self {
        Self { access, ending, feed: Arc::default() }
    }

    /// Sends the events of a source, and comments while it has none. It ends with its source, with the right of its client
    /// (the token is revoked or expires, or the session ends), after an hour, or with the service. Then its connection is
    /// closed. `place` is held until then.
    pub fn follow(
        self,
        caller: Caller,
        place: Share,
        source: impl Stream<Item = Event> + Send + 'static,
    ) -> impl IntoResponse {
        let events = source.take_until(self.over(caller)).map(move |event| {
            let _held = &place;
            Ok::<_, Infallible>(event)
        });
        let events = Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE_EVERY));
        ([(header::CONNECTION, "close")], events)
    }

    /// Completes when a stream of this client must end.
    async fn over(mut self, caller: Caller) {
        let denied = async {
            let mut tick = interval(CHECK_EVERY);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while self.access.holds(&caller) {
                tick.tick().await;
            }
        };
        tokio::select! {
            // The sender is dropped only with the service.
            _ = self.ending.wait_for(|ending| *ending) => {}
            () = denied => {}
            () = sleep(LIFE_MAX) => {}
        }
    }
}

/// An event with a JSON value. If the value cannot be serialized, the event holds the error.
pub fn event(name: &str, value: &impl Serialize) -> Event {
    Event::default()
        .event(name)
        .json_data(value)
        .unwrap_or_else(|error| Event::default().comment(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Auth, Credentials};
    use crate::clock::Clock;

    #[tokio::test(start_paused = true)]
    async fn a_stream_has_a_longest_life() {
        let (clock, _now) = Clock::manual(1_000_000);
        let (_going, ending) = watch::channel(false);
        let access = Arc::new(Access::new(Auth::None, None, clock));
        let caller = access.identify(Credentials::default()).unwrap();
        let begun = tokio::time::Instant::now();
        Streams::new(access, ending).over(caller).await;
        assert_eq!(begun.elapsed(), LIFE_MAX);
    }
}
