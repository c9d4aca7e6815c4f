//! The predictor's HTTP interface, as one trainer uses it: of several servers it asks one that answers.

use std::time::{Duration, Instant};

use evenstep_protocol::servers::{Outcome, Route, Turn};
use evenstep_protocol::{
    AllocateAnswer, AllocateRequest, JobId, JobSpec, JoinAnswer, JoinRequest, Problem, Servers, WorkerId,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::header::{self, HeaderName};
use ureq::http::{Method, Request, Response, StatusCode};
use ureq::{Agent, AsSendBody, Body};

/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// How often, and how long after each other, a job is looked for that is changing hands.
const HANDOVER_LOOKS_MAX: u32 = 10;
const HANDOVER_PAUSE: Duration = Duration::from_millis(20);

/// Why the predictor gave no usable answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AskError {
    /// It cannot be reached, is too slow, or is in trouble itself.
    #[error("the predictor is silent: {0}")]
    Silent(String),
    /// We train in another generation than the job's.
    #[error("our generation is stale: {0}")]
    Stale(String),
    /// It does not know the job or a worker of ours.
    #[error("the predictor does not know us: {0}")]
    Unknown(String),
    /// It refused the request.
    #[error("the predictor refused: {0}")]
    Refused(String),
    /// Its answer makes no sense to us.
    #[error("unusable answer: {0}")]
    Unusable(String),
}

/// Predictors and a job of ours. Clones share what they learned of who answers.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    route: Route,
    job_id: JobId,
    timeout: Duration,
}

/// An answer and how long it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed<T> {
    /// The answer.
    pub answer: T,
    /// From sending the request to having read the answer, whoever else was asked in between, in seconds.
    pub round_trip_s: f64,
    /// What the predictor says of it (`server-timing`), in seconds.
    pub server_s: Option<f64>,
}

/// What a predictor answered.
struct Received {
    status: u16,
    body: Vec<u8>,
    server_s: Option<f64>,
}

impl Client {
    /// A client for one job; `timeout` bounds each phase of a request, and when the last server is begun to be asked.
    pub fn new(servers: &Servers, job_id: JobId, timeout: Duration) -> Self {
        let config = Agent::config_builder().http_status_as_error(false).max_redirects(0).build();
        Self { agent: config.into(), route: Route::new(servers.clone()), job_id, timeout }
    }

    /// The same, with at least this long for a request.
    #[must_use]
    pub fn with_timeout_of_at_least(mut self, timeout: Duration) -> Self {
        self.timeout = self.timeout.max(timeout);
        self
    }

    /// The job.
    pub fn job_id(&self) -> &JobId {
        &self.job_id
    }

    /// Says what the job wants. Saying it again changes nothing.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn put_job(&self, spec: &JobSpec) -> Result<(), AskError> {
        let path = format!("/v1/jobs/{}", self.job_id);
        self.send(&Method::PUT, &path, spec).map(|_: Timed<serde::de::IgnoredAny>| ())
    }

    /// Lets a worker take part. Joining again renews its lease.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn join(&self, request: &JoinRequest) -> Result<JoinAnswer, AskError> {
        let path = format!("/v1/jobs/{}/workers", self.job_id);
        self.send(&Method::POST, &path, request).map(|timed| timed.answer)
    }

    /// Says that a worker leaves.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn leave(&self, worker: &WorkerId) -> Result<JoinAnswer, AskError> {
        // Of the characters that an id may hold only the slash means something in a path.
        let worker = worker.as_str().replace('/', "%2F");
        let path = format!("/v1/jobs/{}/workers/{worker}", self.job_id);
        self.ask(&Method::DELETE, &path, None).map(|timed| timed.answer)
    }

    /// Asks for the batches of an iteration.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn allocate(&self, request: &AllocateRequest) -> Result<Timed<AllocateAnswer>, AskError> {
        self.send(&Method::POST, "/allocate", request)
    }

    fn send<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Timed<T>, AskError> {
        let body = serde_json::to_vec(body).map_err(|error| AskError::Unusable(error.to_string()))?;
        self.ask(method, path, Some(&body))
    }

    /// Asks whoever answers. All that is asked may be asked again: a server that fell silent may have heard it.
    fn ask<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Timed<T>, AskError> {
        let started = Instant::now();
        let mut looks = 0;
        let received = loop {
            let mut is_pointed = false;
            let asked = self.route.ask(path, |turn| {
                let outcome = self.turn(turn, started, method, path, body);
                is_pointed |= matches!(outcome, Outcome::Elsewhere(_));
                outcome
            });
            match asked {
                Ok(received) => break received,
                // The owner that one pointed to is ending: it takes a few milliseconds until the job is free.
                Err(_) if is_pointed && looks < HANDOVER_LOOKS_MAX => {
                    looks += 1;
                    pause(HANDOVER_PAUSE);
                }
                Err(unanswered) => return Err(AskError::Silent(unanswered.to_string())),
            }
        };
        let answer = read(&received)?;
        Ok(Timed { answer, round_trip_s: started.elapsed().as_secs_f64(), server_s: received.server_s })
    }

    /// One server's turn to be asked.
    fn turn(
        &self,
        turn: Turn<'_>,
        started: Instant,
        method: &Method,
        path: &str,
        body: Option<&[u8]>,
    ) -> Outcome<Received, String> {
        let left = self.timeout.saturating_sub(started.elapsed());
        // The last one has all that is left. The one before has half of it: it answered last, so it is the likeliest.
        let limit = if turn.others == 0 { left } else { left / 2 };
        if limit.is_zero() {
            return Outcome::Silent("no time was left to ask it".to_owned());
        }
        let request = Request::builder().method(method).uri(format!("{}{path}", turn.server));
        let response = match body {
            Some(body) => {
                let request = request.header(header::CONTENT_TYPE, "application/json").body(body);
                request.map_err(ureq::Error::from).and_then(|request| self.run(request, limit))
            }
            None => request.body(()).map_err(ureq::Error::from).and_then(|request| self.run(request, limit)),
        };
        response.map_or_else(|error| Outcome::Silent(error.to_string()), heard)
    }

    fn run(&self, request: Request<impl AsSendBody>, limit: Duration) -> Result<Response<Body>, ureq::Error> {
        // Not timeout_global: with it ureq resolves the host's name in a new thread for every request.
        let request = self
            .agent
            .configure_request(request)
            .timeout_connect(Some(limit))
            .timeout_send_request(Some(limit))
            .timeout_send_body(Some(limit))
            .timeout_recv_response(Some(limit))
            .timeout_recv_body(Some(limit))
            .build();
        self.agent.run(request)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "gives a predictor that is ending the time to give its jobs up"
)]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// What came of one server's turn.
fn heard(mut response: Response<Body>) -> Outcome<Received, String> {
    let status = response.status();
    let text = |name: HeaderName| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
    if status == StatusCode::TEMPORARY_REDIRECT {
        return Outcome::Elsewhere(text(header::LOCATION).unwrap_or_default());
    }
    let server_s = text(HeaderName::from_static("server-timing")).and_then(|value| server_timing_s(&value));
    let body = match response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec() {
        Ok(body) => body,
        Err(error) => return Outcome::Silent(error.to_string()),
    };
    if matches!(status.as_u16(), 502..=504) {
        let (slug, detail) = in_words(status.as_u16(), &body);
        // These are about the job, whose owner everybody else would point to.
        if !matches!(slug.as_str(), "paused" | "cooling-down") {
            return Outcome::Silent(detail);
        }
    }
    Outcome::Answered(Received { status: status.as_u16(), body, server_s })
}

fn read<T: DeserializeOwned>(received: &Received) -> Result<T, AskError> {
    if (200..300).contains(&received.status) {
        // A DELETE may answer nothing at all.
        let body: &[u8] = if received.body.is_empty() { b"null" } else { &received.body };
        return serde_json::from_slice(body).map_err(|error| AskError::Unusable(error.to_string()));
    }
    Err(refusal(received.status, &received.body))
}

fn refusal(status: u16, body: &[u8]) -> AskError {
    let (slug, detail) = in_words(status, body);
    match (status, slug.as_str()) {
        (409, "stale-generation") => AskError::Stale(detail),
        (404, "unknown-job" | "unknown-worker") => AskError::Unknown(detail),
        // Busy and paused are states that pass: leases run out and workers come back.
        (429 | 500.., _) => AskError::Silent(detail),
        _ => AskError::Refused(detail),
    }
}

/// The kind of a refusal, empty where it is none of the predictor's, and the whole of it in words.
fn in_words(status: u16, body: &[u8]) -> (String, String) {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => (problem.slug().to_owned(), format!("{status} {}: {}", problem.title, problem.detail)),
        Err(_) => (String::new(), format!("status {status}")),
    }
}

/// The `dur` of the metric `allocate` in a `server-timing` header, which counts in milliseconds.
fn server_timing_s(header: &str) -> Option<f64> {
    let metric =
        header.split(',').find(|metric| metric.split(';').next().map(str::trim) == Some("allocate"))?;
    let duration = metric.split(';').find_map(|part| part.trim().strip_prefix("dur="))?;
    let milliseconds: f64 = duration.parse().ok()?;
    milliseconds.is_finite().then_some(milliseconds / 1e3)
}

#[cfg(test)]
mod failover;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_timing_is_read_in_seconds() {
        assert_eq!(server_timing_s("allocate;dur=1.5"), Some(0.0015));
        assert_eq!(server_timing_s("db;dur=9, allocate;desc=\"x\"; dur=2"), Some(0.002));
        for absent in ["", "db;dur=9", "allocate", "allocate;dur=x", "allocate;dur=inf"] {
            assert_eq!(server_timing_s(absent), None, "{absent}");
        }
    }

    #[test]
    fn refusals_are_told_apart() {
        let problem = |slug: &str, status: u16| {
            let kind = format!("{}{slug}", Problem::TYPE_PREFIX);
            let body = serde_json::json!({"type": kind, "title": "t", "status": status, "detail": "d"});
            refusal(status, body.to_string().as_bytes())
        };
        assert!(matches!(problem("stale-generation", 409), AskError::Stale(_)));
        assert!(matches!(problem("unknown-job", 404), AskError::Unknown(_)));
        assert!(matches!(problem("busy", 429), AskError::Silent(_)));
        assert!(matches!(problem("infeasible", 422), AskError::Refused(_)));
        assert!(matches!(problem("paused", 503), AskError::Silent(_)));
        assert!(matches!(refusal(404, b"not found"), AskError::Refused(_)));
        assert!(matches!(refusal(502, b"<html>"), AskError::Silent(_)));
    }
}
