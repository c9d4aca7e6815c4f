//! The live streams of the predictor, each on a thread of its own: what they say is sent on as news.

use std::io::{ErrorKind, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenstep_client::Servers;
use evenstep_client::failover::{Failover, Outcome};
use evenstep_protocol::{JobId, Problem};
use serde::de::DeserializeOwned;

use super::sse::{Said, Stream};
use super::state::{Heard, News};

/// News that wait to be taken in; whoever has more waits.
const NEWS_MAX: usize = 1024;
/// What connecting, and the begin of an answer, may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer that is no stream, in bytes.
const ANSWER_BYTES_MAX: u64 = 32 << 20;
/// A stream is opened anew after this time: nothing else notices a server whose machine is gone.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);
/// The time from attempt to attempt while nobody answers.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// The time from look to look at the nodes' samples.
const NODES_EVERY: Duration = Duration::from_secs(5);
/// The past that a chart begins with: half an hour, as far as it has columns.
const PAST: &str = "?since_s=1800&points=300";
/// Streams of jobs that are on their way out, at most. A thread that waits for words of its server ends with the next.
const LEAVING_MAX: usize = 16;

/// Follows streams.
pub struct Feed {
    source: Source,
    /// To drop it is to follow nothing any more.
    _all: Sender<()>,
    /// The job that is followed, if one is: to drop it is to leave that.
    followed: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// What is followed.
enum Subject {
    All,
    Job(JobId),
}

/// Why a stream is not listened to any more.
enum End {
    /// Nobody wants to hear more.
    Left,
    /// It has lasted long enough.
    Old,
    /// There is no such job.
    NotThere,
    /// Why it broke off, or why there is none.
    Lost(String),
}

/// What every thread has.
#[derive(Clone)]
struct Source {
    servers: Servers,
    http: ureq::Agent,
    news: SyncSender<News>,
}

impl Feed {
    /// Follows all jobs from now on.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(servers: Servers) -> std::io::Result<(Self, Receiver<News>)> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(ANSWER_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_recv_body(Some(STREAM_TIMEOUT))
            .user_agent(concat!("evenstep-predictor/", env!("CARGO_PKG_VERSION")))
            .build();
        let (sender, receiver) = mpsc::sync_channel(NEWS_MAX);
        let source = Source { servers, http: config.into(), news: sender };
        let (all, left) = mpsc::channel();
        let thread = source.clone().follow(Subject::All, left)?;
        Ok((Self { source, _all: all, followed: None, threads: vec![thread] }, receiver))
    }

    /// Follows this job, and no other any more.
    ///
    /// # Errors
    /// In words, where that cannot be.
    pub fn follow(&mut self, job: JobId) -> Result<(), String> {
        self.leave();
        self.threads.retain(|thread| !thread.is_finished());
        if self.threads.len() > LEAVING_MAX {
            return Err("too many connections are being closed: go back and try again in a moment".to_owned());
        }
        let (stay, left) = mpsc::channel();
        let thread = self.source.clone().follow(Subject::Job(job), left);
        self.threads.push(thread.map_err(|error| format!("no thread to follow the job: {error}"))?);
        self.followed = Some(stay);
        Ok(())
    }

    /// Follows no job any more.
    pub fn leave(&mut self) {
        self.followed = None;
    }
}

impl Source {
    /// A thread that opens the stream of a subject again and again, until `left` has no sender any more.
    fn follow(self, subject: Subject, left: Receiver<()>) -> std::io::Result<JoinHandle<()>> {
        // A failover order of its own: a job may be another predictor's than the one that knows all of them.
        let stream = Following { failover: Failover::new(self.servers.clone()), source: self, subject, left };
        thread::Builder::new().name("live".into()).spawn(move || stream.run())
    }
}

struct Following {
    source: Source,
    failover: Failover,
    subject: Subject,
    left: Receiver<()>,
}

impl Following {
    fn run(self) {
        loop {
            let end = match self.open() {
                Ok(stream) => self.listen(stream),
                Err(end) => end,
            };
            let heard = match end {
                End::Left => return,
                End::Old => continue,
                End::NotThere => Heard::Gone,
                End::Lost(why) => Heard::Lost(why),
            };
            // It may come, or come back.
            if !self.say(heard) || self.left.recv_timeout(RETRY_EVERY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn path(&self) -> String {
        match &self.subject {
            Subject::All => "/v1/live".to_owned(),
            Subject::Job(job) => format!("/v1/jobs/{job}/live"),
        }
    }

    /// False where nobody hears it.
    fn say(&self, heard: Heard) -> bool {
        let news = match &self.subject {
            Subject::All => News::All(heard, self.failover.first()),
            Subject::Job(job) => News::Job(job.clone(), heard),
        };
        self.source.news.send(news).is_ok()
    }

    fn open(&self) -> Result<Stream<impl Read + use<>>, End> {
        self.ask(&self.path()).map(|body| Stream::new(body.into_reader()))
    }

    /// Hands on what a stream says until it ends.
    fn listen(&self, mut stream: Stream<impl Read>) -> End {
        if !self.say(Heard::Linked) {
            return End::Left;
        }
        // Behind the opening of the stream, so that nothing is missed in between.
        if let Subject::Job(job) = &self.subject {
            self.fetch(&format!("/v1/jobs/{job}/log"), Heard::Logs);
            self.fetch(&format!("/v1/jobs/{job}/history{PAST}"), Heard::History);
            self.fetch(&format!("/v1/jobs/{job}/workers"), Heard::Workers);
        }
        let mut nodes_due = Instant::now();
        loop {
            let (name, data) = match stream.next() {
                Ok(Some(Said::Event(name, data))) => (name, data),
                Ok(Some(Said::Alive)) => (String::new(), String::new()),
                Ok(None) => return End::Lost("the predictor ended the stream".to_owned()),
                Err(error) if error.kind() == ErrorKind::TimedOut => return End::Old,
                Err(error) => return End::Lost(format!("the stream broke off: {error}")),
            };
            if self.left.try_recv() == Err(TryRecvError::Disconnected) {
                return End::Left;
            }
            let heard = match (name.as_str(), &self.subject) {
                ("jobs", _) => serde_json::from_str(&data).map(Heard::Jobs),
                ("step", _) => serde_json::from_str(&data).map(|step| Heard::Step(Box::new(step))),
                ("log", _) => serde_json::from_str(&data).map(Heard::Log),
                // Deleted, or another predictor's by now: whoever is asked next knows.
                ("gone", _) => return End::Old,
                ("changed", Subject::Job(job)) => {
                    self.fetch(&format!("/v1/jobs/{job}/workers"), Heard::Workers);
                    Ok(Heard::Alive)
                }
                _ => Ok(Heard::Alive),
            };
            let heard = heard.unwrap_or_else(|error| Heard::Lost(format!("the event {name:?}: {error}")));
            if !self.say(heard) {
                return End::Left;
            }
            if name == "jobs" && Instant::now() >= nodes_due {
                nodes_due = Instant::now() + NODES_EVERY;
                self.fetch("/v1/nodes", Heard::Nodes);
            }
        }
    }

    /// Says what is at a path. Where nothing is to be had, what was known before stays, and the stream tells that the link is bad.
    fn fetch<T: DeserializeOwned>(&self, path: &str, heard: impl FnOnce(T) -> Heard) {
        let Ok(mut body) = self.ask(path) else { return };
        if let Ok(value) = body.with_config().limit(ANSWER_BYTES_MAX).read_json() {
            self.say(heard(value));
        }
    }

    /// What the first of the servers that answers has at a path.
    fn ask(&self, path: &str) -> Result<ureq::Body, End> {
        let answer = self.failover.request(path, |attempt| {
            let answer = match self.source.http.get(format!("{}{path}", attempt.server)).call() {
                Ok(answer) => answer,
                Err(error) => return Outcome::Unreachable(error.to_string()),
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
            Ok(None) => Err(End::NotThere),
            Err(unreachable) => Err(End::Lost(unreachable.to_string())),
        }
    }
}

/// What a refusal says.
fn refusal(status: u16, mut body: ureq::Body) -> String {
    match body.with_config().limit(ANSWER_BYTES_MAX).read_json::<Problem>() {
        Ok(problem) => format!("{status} {}", problem.detail),
        Err(_) => format!("{status}, which is no answer of a predictor"),
    }
}
