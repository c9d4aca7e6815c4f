//! Events of streams, and the state of a connection.

use std::time::Duration;

use evenstep_protocol::{HistoryView, JobId, LiveView, LogEntry, LogView, NodesView, StepView, WorkersView};

/// Longest time without an event. A stream sends at least one every 5 s: after this time the connection is
/// lost or the server hangs.
const SILENCE_MAX: Duration = Duration::from_secs(12);

/// An event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedEvent {
    /// An event of the stream of all jobs, and the URL of its server.
    All(StreamEvent, String),
    /// An event of one job.
    Job(JobId, StreamEvent),
}

/// An event, or data that was read because of one.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// The stream was opened.
    Opened,
    /// The server is alive.
    Alive,
    /// The stream failed or cannot be opened, with the reason. It is opened again after a pause.
    Lost(String),
    /// The summary of all jobs.
    Jobs(LiveView),
    /// Nodes with their latest samples.
    Nodes(NodesView),
    /// An iteration whose workers have reported.
    Step(Box<StepView>),
    /// A new entry of the job's log.
    Log(LogEntry),
    /// The job's log so far.
    Logs(LogView),
    /// The job's history, thinned out.
    History(HistoryView),
    /// The job's workers.
    Workers(WorkersView),
    /// The job does not exist any more.
    Gone,
}

/// State of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ConnectionState {
    /// Not connected yet.
    #[default]
    Connecting,
    /// Connected; the time of the latest event.
    Live(Duration),
    /// Disconnected; since when and why.
    Lost(Duration, String),
}

impl ConnectionState {
    /// Changes the state by an event.
    pub fn apply(&mut self, heard: &StreamEvent, now: Duration) {
        *self = match (heard, &self) {
            // The outage began when it was first noticed.
            (StreamEvent::Lost(why), Self::Lost(since, _)) => Self::Lost(*since, why.clone()),
            (StreamEvent::Lost(why), _) => Self::Lost(now, why.clone()),
            _ => Self::Live(now),
        };
    }

    /// Time without an event, if it is too long.
    pub fn without_events_for(&self, now: Duration) -> Option<Duration> {
        let (Self::Live(since) | Self::Lost(since, _)) = self else { return None };
        let silent = now.saturating_sub(*since);
        (silent > SILENCE_MAX || matches!(self, Self::Lost(..))).then_some(silent)
    }
}
