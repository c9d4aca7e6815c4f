//! The live streams of the predictor, one thread per stream. Each thread forwards the events of its stream.

use std::io::{ErrorKind, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenstep_client::failover::{Failover, Outcome};
use evenstep_client::{ClientTls, Servers};
use evenstep_protocol::{JobId, Problem};
use serde::de::DeserializeOwned;

use super::sse::{Element, Stream};
use super::state::{FeedEvent, StreamEvent};

/// Capacity of the queue of events. A thread waits while the queue is full.
const QUEUED_EVENTS_MAX: usize = 1024;
/// Timeout for connecting, and for the beginning of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Size limit of a response that is not a stream, in bytes.
const RESPONSE_BYTES_MAX: u64 = 32 << 20;
/// Age at which a stream is reopened. Otherwise the failure of the server's machine would not be noticed.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two attempts to connect.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the nodes' samples are read.
const NODES_EVERY: Duration = Duration::from_secs(5);
/// History that a chart begins with: half an hour, as far as the chart has columns.
const HISTORY_QUERY: &str = "?since_s=1800&points=300";
/// Limit of closing streams. A thread that waits for data of its server ends with the next event.
const CLOSING_STREAMS_MAX: usize = 16;

/// Follows streams.
pub struct Feed {
    source: Source,
    /// Dropping it ends all streams.
    _all: Sender<()>,
    /// The followed job, if any. Dropping it ends the stream of that job.
    followed: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// The subject of a stream.
enum Subject {
    All,
    Job(JobId),
}

/// Reason why a stream ended.
enum End {
    /// The receiver was dropped.
    Left,
    /// The stream reached its maximum age, or the server changed.
    Old,
    /// The job does not exist.
    UnknownJob,
    /// The stream failed, or could not be opened.
    Lost(String),
}

impl Source {
    /// A request with the token of the client, if it has a token.
    fn get(&self, server: &str, path: &str) -> ureq::RequestBuilder<ureq::typestate::WithoutBody> {
        let request = self.http.get(format!("{server}{path}"));
        match self.tls.authorization() {
            Some(authorization) => request.header("authorization", authorization),
            None => request,
        }
    }
}

/// State shared by all threads.
#[derive(Clone)]
struct Source {
    servers: Servers,
    http: ureq::Agent,
    tls: ClientTls,
    news: SyncSender<FeedEvent>,
}

impl Feed {
    /// Starts to follow all jobs.
    ///
    /// # Errors
    /// An error if the system cannot start a thread.
    pub fn start(servers: Servers, tls: ClientTls) -> std::io::Result<(Self, Receiver<FeedEvent>)> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(RESPONSE_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .timeout_recv_body(Some(STREAM_TIMEOUT))
            .tls_config(tls.config())
            .user_agent(concat!("evenstep-predictor/", env!("CARGO_PKG_VERSION")))
            .build();
        let (sender, receiver) = mpsc::sync_channel(QUEUED_EVENTS_MAX);
        let source = Source { servers, http: config.into(), tls, news: sender };
        let (all, left) = mpsc::channel();
        let thread = source.clone().follow(Subject::All, left)?;
        Ok((Self { source, _all: all, followed: None, threads: vec![thread] }, receiver))
    }

    /// Follows this job instead of any other.
    ///
    /// # Errors
    /// A message if too many streams are closing, or the system cannot start a thread.
    pub fn follow(&mut self, job: JobId) -> Result<(), String> {
        self.leave();
        self.threads.retain(|thread| !thread.is_finished());
        if self.threads.len() > CLOSING_STREAMS_MAX {
            return Err("too many connections are closing; go back and try again in a moment".to_owned());
        }
        let (stay, left) = mpsc::channel();
        let thread = self.source.clone().follow(Subject::Job(job), left);
        self.threads.push(thread.map_err(|error| format!("cannot start a thread for the job: {error}"))?);
        self.followed = Some(stay);
        Ok(())
    }

    /// Stops following a job.
    pub fn leave(&mut self) {
        self.followed = None;
    }
}

impl Source {
    /// Starts a thread that opens the stream of a subject again and again, until the sender of `left` is
    /// dropped.
    fn follow(self, subject: Subject, left: Receiver<()>) -> std::io::Result<JoinHandle<()>> {
        // A separate failover order: another predictor may serve the job than the one that lists all jobs.
        let stream =
            StreamThread { failover: Failover::new(self.servers.clone()), source: self, subject, left };
        thread::Builder::new().name("live".into()).spawn(move || stream.run())
    }
}

struct StreamThread {
    source: Source,
    failover: Failover,
    subject: Subject,
    left: Receiver<()>,
}

impl StreamThread {
    fn run(self) {
        loop {
            let end = match self.open() {
                Ok(stream) => self.listen(stream),
                Err(end) => end,
            };
            let heard = match end {
                End::Left => return,
                End::Old => continue,
                End::UnknownJob => StreamEvent::Gone,
                End::Lost(why) => StreamEvent::Lost(why),
            };
            // The job may be created, or served again, later.
            if !self.say(heard) || self.left.recv_timeout(RETRY_EVERY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn path(&self) -> String {
        match &self.subject {
            Subject::All => "/v1/live".to_owned(),
            Subject::Job(job) => format!("/v1/jobs/{}/live", job.in_path()),
        }
    }

    /// Forwards an event. Returns false if the receiver was dropped.
    fn say(&self, heard: StreamEvent) -> bool {
        let news = match &self.subject {
            Subject::All => FeedEvent::All(heard, self.failover.first()),
            Subject::Job(job) => FeedEvent::Job(job.clone(), heard),
        };
        self.source.news.send(news).is_ok()
    }

    fn open(&self) -> Result<Stream<impl Read + use<>>, End> {
        self.send(&self.path()).map(|body| Stream::new(body.into_reader()))
    }

    /// Forwards the events of a stream until it ends.
    fn listen(&self, mut stream: Stream<impl Read>) -> End {
        if !self.say(StreamEvent::Opened) {
            return End::Left;
        }
        // Read after the stream was opened, so that no change in between is missed.
        if let Subject::Job(job) = &self.subject {
            self.fetch(&format!("/v1/jobs/{}/log", job.in_path()), StreamEvent::Logs);
            self.fetch(&format!("/v1/jobs/{}/history{HISTORY_QUERY}", job.in_path()), StreamEvent::History);
            self.fetch(&format!("/v1/jobs/{}/workers", job.in_path()), StreamEvent::Workers);
        }
        let mut nodes_due = Instant::now();
        loop {
            let (name, data) = match stream.next() {
                Ok(Some(Element::Event(name, data))) => (name, data),
                Ok(Some(Element::Alive)) => (String::new(), String::new()),
                Ok(None) => return End::Lost("the predictor ended the stream".to_owned()),
                Err(error) if error.kind() == ErrorKind::TimedOut => return End::Old,
                Err(error) => return End::Lost(format!("the stream failed: {error}")),
            };
            if self.left.try_recv() == Err(TryRecvError::Disconnected) {
                return End::Left;
            }
            let heard = match (name.as_str(), &self.subject) {
                ("jobs", _) => serde_json::from_str(&data).map(StreamEvent::Jobs),
                ("step", _) => serde_json::from_str(&data).map(|step| StreamEvent::Step(Box::new(step))),
                ("log", _) => serde_json::from_str(&data).map(StreamEvent::Log),
                // Deleted, or served by another predictor now: opening the stream again finds out which.
                ("gone", _) => return End::Old,
                ("changed", Subject::Job(job)) => {
                    self.fetch(&format!("/v1/jobs/{}/workers", job.in_path()), StreamEvent::Workers);
                    Ok(StreamEvent::Alive)
                }
                _ => Ok(StreamEvent::Alive),
            };
            let heard = heard.unwrap_or_else(|error| {
                StreamEvent::Lost(format!("cannot read the event {name:?}: {error}"))
            });
            if !self.say(heard) {
                return End::Left;
            }
            if name == "jobs" && Instant::now() >= nodes_due {
                nodes_due = Instant::now() + NODES_EVERY;
                self.fetch("/v1/nodes", StreamEvent::Nodes);
            }
        }
    }

    /// Reads a path and forwards its value. After a failure the previous value stays, and the stream reports
    /// that the connection is lost.
    fn fetch<T: DeserializeOwned>(&self, path: &str, heard: impl FnOnce(T) -> StreamEvent) {
        let Ok(mut body) = self.send(path) else { return };
        if let Ok(value) = body.with_config().limit(RESPONSE_BYTES_MAX).read_json() {
            self.say(heard(value));
        }
    }

    /// Requests a path from the first server that responds.
    fn send(&self, path: &str) -> Result<ureq::Body, End> {
        let answer = self.failover.request(path, |attempt| {
            let answer = match self.source.get(attempt.server, path).call() {
                Ok(answer) => answer,
                Err(error) => return Outcome::Unreachable(self.source.tls.explain(&error)),
            };
            match answer.status().as_u16() {
                200 => Outcome::Responded(Some(answer.into_body())),
                307 => {
                    let location = answer.headers().get("location").and_then(|value| value.to_str().ok());
                    Outcome::Redirected(location.unwrap_or_default().to_owned())
                }
                404 if matches!(self.subject, Subject::Job(_)) => Outcome::Responded(None),
                status => Outcome::Unreachable(refusal(status, answer.into_body())),
            }
        });
        match answer {
            Ok(Some(body)) => Ok(body),
            Ok(None) => Err(End::UnknownJob),
            Err(unreachable) => Err(End::Lost(unreachable.to_string())),
        }
    }
}

/// The message of an error response.
fn refusal(status: u16, mut body: ureq::Body) -> String {
    match body.with_config().limit(RESPONSE_BYTES_MAX).read_json::<Problem>() {
        Ok(problem) => format!("{status} {}", problem.detail),
        Err(_) => format!("{status}, not a response of a predictor; check the URL"),
    }
}
