//! The predictor's HTTP interface, as one trainer uses it.

use std::time::{Duration, Instant};

use evenstep_protocol::{
    AllocateAnswer, AllocateRequest, JobId, JobSpec, JoinAnswer, JoinRequest, Problem, WorkerId,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Agent, Body};

/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

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

/// A predictor and a job of ours.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    server: String,
    job_id: JobId,
}

/// An answer and how long it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed<T> {
    /// The answer.
    pub answer: T,
    /// From sending the request to having read the answer, in seconds.
    pub round_trip_s: f64,
    /// What the predictor says of it (`server-timing`), in seconds.
    pub server_s: Option<f64>,
}

impl Client {
    /// A client for one job; `timeout` bounds each phase of a request.
    pub fn new(server: &str, job_id: JobId, timeout: Duration) -> Self {
        // Not timeout_global: with it ureq resolves the host's name in a new thread for every request.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(timeout))
            .timeout_send_request(Some(timeout))
            .timeout_send_body(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_recv_body(Some(timeout))
            .build();
        Self { agent: config.into(), server: server.trim_end_matches('/').to_owned(), job_id }
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
        let url = format!("{}/v1/jobs/{}", self.server, self.job_id);
        read(self.agent.put(url).send_json(spec)).map(|_: serde::de::IgnoredAny| ())
    }

    /// Lets a worker take part. Joining again renews its lease.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn join(&self, request: &JoinRequest) -> Result<JoinAnswer, AskError> {
        self.post(&format!("/v1/jobs/{}/workers", self.job_id), request).map(|timed| timed.answer)
    }

    /// Says that a worker leaves.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn leave(&self, worker: &WorkerId) -> Result<JoinAnswer, AskError> {
        // Of the characters that an id may hold only the slash means something in a path.
        let worker = worker.as_str().replace('/', "%2F");
        let url = format!("{}/v1/jobs/{}/workers/{worker}", self.server, self.job_id);
        read(self.agent.delete(url).call())
    }

    /// Asks for the batches of an iteration.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn allocate(&self, request: &AllocateRequest) -> Result<Timed<AllocateAnswer>, AskError> {
        self.post("/allocate", request)
    }

    fn post<T: DeserializeOwned>(&self, path: &str, request: &impl Serialize) -> Result<Timed<T>, AskError> {
        let started = Instant::now();
        let response = self.agent.post(format!("{}{path}", self.server)).send_json(request);
        let header = response.as_ref().ok().and_then(|response| response.headers().get("server-timing"));
        let server_s = header.and_then(|value| server_timing_s(value.to_str().ok()?));
        let answer = read(response)?;
        Ok(Timed { answer, round_trip_s: started.elapsed().as_secs_f64(), server_s })
    }
}

fn read<T: DeserializeOwned>(response: Result<Response<Body>, ureq::Error>) -> Result<T, AskError> {
    let mut response = response.map_err(|error| AskError::Silent(error.to_string()))?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    let body = body.map_err(|error| AskError::Silent(error.to_string()))?;
    if status.is_success() {
        // A DELETE may answer nothing at all.
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        return serde_json::from_slice(body).map_err(|error| AskError::Unusable(error.to_string()));
    }
    Err(refusal(status.as_u16(), &body))
}

fn refusal(status: u16, body: &[u8]) -> AskError {
    let problem: Option<Problem> = serde_json::from_slice(body).ok();
    let slug = problem.as_ref().map_or("", |problem| problem.slug());
    let detail = match &problem {
        Some(problem) => format!("{status} {}: {}", problem.title, problem.detail),
        None => format!("status {status}"),
    };
    match (status, slug) {
        (409, "stale-generation") => AskError::Stale(detail),
        (404, "unknown-job" | "unknown-worker") => AskError::Unknown(detail),
        // Busy and paused are states that pass: leases run out and workers come back.
        (429 | 500.., _) => AskError::Silent(detail),
        _ => AskError::Refused(detail),
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

    #[test]
    fn nobody_there_is_silence() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = format!("http://127.0.0.1:{port}/");
        let client = Client::new(&server, JobId::new("job").unwrap(), Duration::from_millis(250));
        let started = Instant::now();
        assert!(matches!(client.put_job(&JobSpec::new(8)), Err(AskError::Silent(_))));
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
