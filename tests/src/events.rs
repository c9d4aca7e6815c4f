//! Server-sent events for tests.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::{Agent, Body};

/// Maximum duration of a stream.
const FOLLOW_MAX: Duration = Duration::from_secs(300);

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Name of the event.
    pub name: String,
    /// Data of the event.
    pub data: String,
}

impl Event {
    /// Returns the parsed data.
    ///
    /// # Panics
    /// The data is not of this type.
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A stream of events.
pub struct Events {
    lines: BufReader<ureq::BodyReader<'static>>,
}

impl Events {
    /// Opens the stream at `url`.
    ///
    /// # Panics
    /// The server does not send a stream.
    pub fn open(url: &str) -> Self {
        Self::open_with(url, &[])
    }

    /// Opens the stream at `url` with these request headers.
    ///
    /// # Panics
    /// The server does not send a stream.
    pub fn open_with(url: &str, headers: &[(&str, &str)]) -> Self {
        let config = Agent::config_builder().timeout_recv_body(Some(FOLLOW_MAX)).build();
        let request = Agent::from(config).get(url);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = request.call().unwrap_or_else(|error| panic!("{url}: {error}"));
        let content_type = response.headers().get("content-type").and_then(|value| value.to_str().ok());
        assert_eq!(content_type, Some("text/event-stream"), "{url}");
        let body: Body = response.into_body();
        Self { lines: BufReader::new(body.into_reader()) }
    }

    /// Returns the next event with one of these names, or `None` at the end of the stream.
    ///
    /// # Panics
    /// The stream is interrupted, or no such event arrives in time.
    pub fn next_of(&mut self, names: &[&str]) -> Option<Event> {
        self.find(|event| names.contains(&event.name.as_str()))
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let (mut name, mut data) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).expect("a stream that continues or ends");
            let line = line.trim_end();
            if read == 0 {
                return None;
            } else if let Some(said) = line.strip_prefix("event:") {
                said.trim_start().clone_into(&mut name);
            } else if let Some(said) = line.strip_prefix("data:") {
                data.push_str(said.trim_start());
            } else if line.is_empty() && !name.is_empty() {
                return Some(Event { name, data });
            }
        }
    }
}
