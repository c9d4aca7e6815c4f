//! The predictor's HTTP interface as one job uses it.

use std::time::Duration;

use evenstep_protocol::{
    AllocateRequest, AllocateResponse, JobId, JobSpec, JoinRequest, JoinResponse, OomReport, OomResponse,
    Problem, WorkerId, WorkerState,
};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::config::ClientConfig;
use crate::error::{Error, ErrorKind, Operation};
use crate::failover::Outcome;
use crate::http::{Method, Request, Response, TimeLimit, Transport, TransportConfig};
use crate::servers::Servers;

/// HTTP requests of one job. Every request may be repeated. Clones share the connections and the server that
/// responded last.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Transport,
    job_id: JobId,
    config: ClientConfig,
}

/// The part of a job's view that decides whether a run may begin. Later versions may add options to the other parts.
#[derive(Debug, Deserialize)]
pub(crate) struct KnownJob {
    pub next_iteration: u64,
    pub live_workers: u64,
}

#[derive(Debug, Deserialize)]
struct KnownWorkers {
    workers: Vec<KnownWorker>,
}

#[derive(Debug, Deserialize)]
struct KnownWorker {
    worker: WorkerId,
    state: WorkerState,
}

/// A response and its duration.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed<T> {
    /// The response.
    pub response: T,
    /// Time from sending the request to reading the complete response, failed attempts at other servers
    /// included, in seconds.
    pub round_trip_s: f64,
    /// Processing time of the predictor (`server-timing`), in seconds.
    pub server_time_s: Option<f64>,
}

impl Client {
    /// Creates a client of these servers for one job. It connects on the first request.
    pub fn new(servers: &Servers, job_id: JobId, config: ClientConfig) -> Self {
        let transport = Transport::new(
            servers,
            TransportConfig {
                user_agent: concat!("evenstep-client/", env!("CARGO_PKG_VERSION")),
                response_bytes_max: config.response_bytes_max,
                limit: TimeLimit::Phase,
                clock: config.clock.clone(),
                tls: config.tls.clone(),
            },
        );
        Self { transport, job_id, config }
    }

    /// Returns the job id.
    pub fn job_id(&self) -> &JobId {
        &self.job_id
    }

    /// Replaces the list of servers, also in clones.
    pub fn set_servers(&self, servers: &Servers) {
        self.transport.set_servers(servers);
    }

    /// Returns the time limits and bounds.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Returns the same client with the time limit of requests at the end of a run.
    #[must_use]
    pub(crate) fn at_end_of_run(mut self) -> Self {
        self.config.request_timeout = self.config.request_timeout.max(self.config.leave_timeout);
        self
    }

    /// Returns the progress of the job; `None` if it does not exist.
    ///
    /// # Errors
    /// The predictor does not respond or rejects the request.
    pub(crate) fn job(&self) -> Result<Option<KnownJob>, Error> {
        let path = format!("/v1/jobs/{}", self.job_id.in_path());
        match self.send(&Method::GET, &path, None) {
            Ok(Timed { response, .. }) => Ok(Some(response)),
            Err(ErrorKind::Unknown(_)) => Ok(None),
            Err(kind) => Err(kind.in_operation(Operation::RegisterJob(self.job_id.clone()))),
        }
    }

    /// Returns the live workers of the job.
    ///
    /// # Errors
    /// The predictor does not respond or rejects the request.
    pub(crate) fn live_workers(&self) -> Result<Vec<WorkerId>, Error> {
        let path = format!("/v1/jobs/{}/workers", self.job_id.in_path());
        let known = self.send(&Method::GET, &path, None).map(|timed: Timed<KnownWorkers>| timed.response);
        let known = known.map_err(|kind| kind.in_operation(Operation::RegisterJob(self.job_id.clone())))?;
        let live = known.workers.into_iter().filter(|known| known.state == WorkerState::Live);
        Ok(live.map(|known| known.worker).collect())
    }

    /// Registers the job, or changes its options.
    ///
    /// # Errors
    /// The predictor does not respond or rejects the request.
    pub fn register_job(&self, spec: &JobSpec) -> Result<(), Error> {
        let path = format!("/v1/jobs/{}", self.job_id.in_path());
        let sent = self.send_json(&Method::PUT, &path, spec).map(|_: Timed<IgnoredAny>| ());
        sent.map_err(|kind| kind.in_operation(Operation::RegisterJob(self.job_id.clone())))
    }

    /// Joins a worker to the job, or renews its lease.
    ///
    /// # Errors
    /// The predictor does not respond or rejects the request.
    pub fn join(&self, request: &JoinRequest) -> Result<JoinResponse, Error> {
        let path = format!("/v1/jobs/{}/workers", self.job_id.in_path());
        let joined = self.send_json(&Method::POST, &path, request).map(|timed| timed.response);
        joined.map_err(|kind| kind.in_operation(Operation::Join(request.worker.clone())))
    }

    /// Removes a worker from the job.
    ///
    /// # Errors
    /// The predictor does not respond or rejects the request.
    pub fn leave(&self, worker: &WorkerId) -> Result<JoinResponse, Error> {
        let left = self.send(&Method::DELETE, &self.worker_path(worker), None).map(|timed| timed.response);
        left.map_err(|kind| kind.in_operation(Operation::Leave(worker.clone())))
    }

    /// Reports that a worker ran out of memory. From then on its batches are smaller than that.
    ///
    /// # Errors
    /// The predictor does not respond or rejects the request.
    pub fn report_oom(&self, worker: &WorkerId, report: &OomReport) -> Result<OomResponse, Error> {
        let path = format!("{}/oom", self.worker_path(worker));
        let reported = self.send_json(&Method::POST, &path, report).map(|timed| timed.response);
        reported.map_err(|kind| kind.in_operation(Operation::ReportOom(worker.clone())))
    }

    /// Requests the allocation of an iteration and delivers reports of earlier ones.
    ///
    /// # Errors
    /// The predictor does not respond or rejects the request.
    pub fn allocate(&self, request: &AllocateRequest) -> Result<Timed<AllocateResponse>, Error> {
        let allocated = self.send_json(&Method::POST, "/allocate", request);
        allocated.map_err(|kind| kind.in_operation(Operation::Allocate(request.iteration)))
    }

    fn worker_path(&self, worker: &WorkerId) -> String {
        format!("/v1/jobs/{}/workers/{}", self.job_id.in_path(), worker.in_path())
    }

    fn send_json<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Timed<T>, ErrorKind> {
        let body = serde_json::to_vec(body).map_err(|error| ErrorKind::Rejected(error.to_string()))?;
        self.send(method, path, Some(&body))
    }

    fn send<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Timed<T>, ErrorKind> {
        let ClientConfig { request_timeout, handover_attempts_max, handover_pause, ref clock, .. } =
            self.config;
        let started = clock.now();
        let since = || clock.now().saturating_duration_since(started);
        let mut handover_attempts = 0;
        let response = loop {
            let left = request_timeout.saturating_sub(since());
            match self.transport.send(Request { method, path, body }, left, judge) {
                Ok(response) => {
                    let left = request_timeout.saturating_sub(since());
                    match rate_limit_pause(&response).filter(|pause| *pause < left) {
                        Some(pause) => clock.sleep(pause),
                        None => break response,
                    }
                }
                // The owner that a server redirected to is shutting down. The job is free a few milliseconds later.
                Err(unreachable) if unreachable.redirected && handover_attempts < handover_attempts_max => {
                    handover_attempts += 1;
                    clock.sleep(handover_pause);
                }
                Err(unreachable) => return Err(ErrorKind::Unreachable(unreachable.to_string())),
            }
        };
        let round_trip_s = Duration::as_secs_f64(&since());
        Ok(Timed { response: parse(&response)?, round_trip_s, server_time_s: response.server_time_s() })
    }
}

/// Returns whether another server should be tried.
fn judge(response: Response) -> Outcome<Response, String> {
    // 421: a port that requires TLS. The predictor may have been restarted with it during the run.
    if matches!(response.status, 421 | 502..=504) {
        let (slug, detail) = describe(&response);
        // The first three concern the job: other servers would redirect to its owner, which sent them. The last one lasts until
        // someone changes the settings.
        if !matches!(slug.as_str(), "loading" | "paused" | "cooling-down" | "foreign-host") {
            return Outcome::Unreachable(detail);
        }
    }
    Outcome::Responded(response)
}

/// Returns the pause before a retry if the client's token sends more requests per second than it may. Giving up would
/// cost more requests, because the run then registers again.
fn rate_limit_pause(response: &Response) -> Option<Duration> {
    let is_limited = response.status == 429 && describe(response).0 == "limit-requests-per-s";
    response.retry_after().filter(|_| is_limited)
}

fn parse<T: DeserializeOwned>(response: &Response) -> Result<T, ErrorKind> {
    if !(200..300).contains(&response.status) {
        return Err(rejection(response));
    }
    // The response to a DELETE may be empty.
    let body: &[u8] = if response.body.is_empty() { b"null" } else { &response.body };
    serde_json::from_slice(body).map_err(|error| ErrorKind::InvalidResponse(error.to_string()))
}

fn rejection(response: &Response) -> ErrorKind {
    let (slug, detail) = describe(response);
    match (response.status, slug.as_str()) {
        (409, "stale-generation") => ErrorKind::StaleGeneration(detail),
        (404, "unknown-job" | "unknown-worker") => ErrorKind::Unknown(detail),
        (422, "infeasible") => ErrorKind::Infeasible(detail),
        // These limits of the token remain until someone changes something.
        (429, "limit-jobs" | "limit-workers") => ErrorKind::Rejected(detail),
        // Busy and paused are temporary: leases expire and workers return.
        (429 | 500.., _) => ErrorKind::Unreachable(detail),
        _ => ErrorKind::Rejected(detail),
    }
}

/// Returns the type of the problem, empty if a predictor did not send it, and a description of the problem.
fn describe(response: &Response) -> (String, String) {
    let status = response.status;
    match serde_json::from_slice::<Problem>(&response.body) {
        Ok(problem) => (problem.slug().to_owned(), format!("{status} {}: {}", problem.title, problem.detail)),
        Err(_) => (String::new(), format!("status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, body: &str) -> Response {
        Response { status, headers: Default::default(), body: body.into() }
    }

    #[test]
    fn rejections_are_told_apart() {
        let problem = |slug: &str, status: u16| {
            let kind = format!("{}{slug}", Problem::TYPE_PREFIX);
            let body = serde_json::json!({"type": kind, "title": "t", "status": status, "detail": "d"});
            rejection(&response(status, &body.to_string()))
        };
        assert!(matches!(problem("stale-generation", 409), ErrorKind::StaleGeneration(_)));
        assert!(matches!(problem("unknown-job", 404), ErrorKind::Unknown(_)));
        assert!(matches!(problem("busy", 429), ErrorKind::Unreachable(_)));
        assert!(matches!(problem("limit-requests-per-s", 429), ErrorKind::Unreachable(_)));
        assert!(matches!(problem("limit-workers", 429), ErrorKind::Rejected(_)));
        assert!(matches!(problem("infeasible", 422), ErrorKind::Infeasible(_)));
        assert!(matches!(problem("paused", 503), ErrorKind::Unreachable(_)));
        assert!(matches!(rejection(&response(404, "not found")), ErrorKind::Rejected(_)));
        assert!(matches!(rejection(&response(502, "<html>")), ErrorKind::Unreachable(_)));
    }
}
