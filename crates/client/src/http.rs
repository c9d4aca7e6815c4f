//! Requests over HTTP with failover: sends to one server after the other until one responds, within one time limit.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::header;
use ureq::http::{self, StatusCode};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, AsSendBody, Body};

use crate::clock::Clock;
use crate::failover::{AllUnreachable, Attempt, Failover, Outcome};
use crate::servers::Servers;
use crate::tls::ClientTls;
use crate::unix::UnixConnector;

pub use ureq::http::{HeaderMap, HeaderName, HeaderValue, Method};

/// Connections to the predictors of one list. Clones share the connections and the server that responded
/// last.
#[derive(Debug, Clone)]
pub struct Transport {
    http: Arc<Mutex<(ClientTls, Agent)>>,
    failover: Failover,
    config: TransportConfig,
}

/// Options of a [`Transport`].
#[derive(Debug, Clone)]
pub struct TransportConfig {
    /// The `user-agent` header.
    pub user_agent: &'static str,
    /// Maximum number of bytes read of a response body; the rest is cut off.
    pub response_bytes_max: u64,
    /// Scope of the time limit of an attempt.
    pub limit: TimeLimit,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// TLS, for servers with `https://`.
    pub tls: ClientTls,
}

/// Scope of the time limit of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeLimit {
    /// Each phase (connect, send, receive). An attempt starts no thread.
    Phase,
    /// The whole attempt. A separate thread then resolves the host name.
    Attempt,
}

/// A request. Every request may be repeated: a server that did not respond may still have executed it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path below the base URL, with a leading slash.
    pub path: &'a str,
    /// The JSON body, if any.
    pub body: Option<&'a [u8]>,
}

/// A complete response.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, cut to the maximum length.
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the pause that the server requests before the next attempt. Only the form in seconds is
    /// supported: predictors send no other.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = text(&self.headers, header::RETRY_AFTER)?;
        seconds.trim().parse().ok().map(Duration::from_secs)
    }

    /// Returns the processing time of an allocation in seconds: `dur` of the metric `allocate` in the
    /// `server-timing` header, which is in milliseconds.
    pub fn server_time_s(&self) -> Option<f64> {
        server_time_s(text(&self.headers, HeaderName::from_static("server-timing"))?)
    }
}

impl Transport {
    /// Creates a transport, which connects on demand.
    pub fn new(servers: &Servers, config: TransportConfig) -> Self {
        let http = (config.tls.clone(), agent(&config.tls, config.user_agent));
        Self { http: Arc::new(Mutex::new(http)), failover: Failover::new(servers.clone()), config }
    }

    /// Creates a transport to the server that listens on a Unix socket, without TLS and token.
    pub fn unix(socket: PathBuf, config: TransportConfig) -> Self {
        let config = TransportConfig { tls: ClientTls::default(), ..config };
        let http = Agent::with_parts(
            agent_config(&config.tls, config.user_agent),
            UnixConnector(socket),
            DefaultResolver::default(),
        );
        // An address needs no look-up.
        let failover = Failover::new(Servers::local());
        Self { http: Arc::new(Mutex::new((config.tls.clone(), http))), failover, config }
    }

    /// Returns the base URL of the server that is tried first.
    pub fn first_server(&self) -> String {
        self.failover.first()
    }

    /// Replaces the list of servers, also in clones.
    pub fn set_servers(&self, servers: &Servers) {
        self.failover.replace(servers.clone());
    }

    /// Sends a request to one server after the other until `judge` accepts a response. The last server may
    /// use all the remaining time of `timeout`, each other server half of it: the first is the server that
    /// responded last, which is the most likely to respond.
    ///
    /// # Errors
    /// No server responded, or `judge` accepted none of the responses.
    pub fn send<T, E: From<String>>(
        &self,
        request: Request<'_>,
        timeout: Duration,
        judge: impl Fn(Response) -> Outcome<T, E>,
    ) -> Result<T, AllUnreachable<E>> {
        let started = self.config.clock.now();
        self.failover.request(request.path, |attempt| {
            match self.attempt(attempt, request, started, timeout) {
                Outcome::Responded(response) => judge(response),
                Outcome::Unreachable(reason) => Outcome::Unreachable(E::from(reason)),
                Outcome::Redirected(location) => Outcome::Redirected(location),
            }
        })
    }

    fn attempt(
        &self,
        attempt: Attempt<'_>,
        request: Request<'_>,
        started: Instant,
        timeout: Duration,
    ) -> Outcome<Response, String> {
        let left = timeout.saturating_sub(self.config.clock.now().saturating_duration_since(started));
        let limit = if attempt.remaining == 0 { left } else { left / 2 };
        if limit.is_zero() {
            return Outcome::Unreachable("not tried: the time limit had passed".to_owned());
        }
        let mut response = self.exchange(attempt.server, request, limit);
        let is_rejected = |response: &http::Response<Body>| {
            matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        };
        if response.as_ref().is_ok_and(is_rejected) && self.renew_token() {
            response = self.exchange(attempt.server, request, limit);
        }
        response.map_or_else(|error| self.unreachable(&error), |response| self.read(response))
    }

    fn exchange(
        &self,
        server: &str,
        request: Request<'_>,
        limit: Duration,
    ) -> Result<http::Response<Body>, ureq::Error> {
        let mut head =
            http::Request::builder().method(request.method).uri(format!("{server}{}", request.path));
        if let Some(authorization) = self.http().0.authorization() {
            head = head.header(header::AUTHORIZATION, authorization);
        }
        match request.body {
            Some(body) => self.run(head.header(header::CONTENT_TYPE, "application/json").body(body)?, limit),
            None => self.run(head.body(())?, limit),
        }
    }

    /// Reads the token again. Returns whether it changed.
    fn renew_token(&self) -> bool {
        let mut http = self.http();
        let renewed = http.0.with_renewed_token();
        let has_changed = renewed.is_some();
        http.0 = renewed.unwrap_or_else(|| http.0.clone());
        has_changed
    }

    /// Describes an error. If new certificates may resolve it, the next attempt uses them.
    fn unreachable<T>(&self, error: &ureq::Error) -> Outcome<T, String> {
        let tls = self.http().0.clone();
        if let Some(renewed) = tls.renewed(error) {
            let agent = agent(&renewed, self.config.user_agent);
            *self.http() = (renewed, agent);
        }
        Outcome::Unreachable(tls.explain(error))
    }

    fn http(&self) -> MutexGuard<'_, (ClientTls, Agent)> {
        // Every change leaves the value valid, so a panic of another thread does no harm.
        self.http.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(
        &self,
        request: http::Request<impl AsSendBody>,
        limit: Duration,
    ) -> Result<http::Response<Body>, ureq::Error> {
        let agent = self.http().1.clone();
        let configured = agent.configure_request(request);
        let request = match self.config.limit {
            TimeLimit::Attempt => configured.timeout_global(Some(limit)).build(),
            // With timeout_global ureq resolves the host name in a new thread for every request.
            TimeLimit::Phase => configured
                .timeout_connect(Some(limit))
                .timeout_send_request(Some(limit))
                .timeout_send_body(Some(limit))
                .timeout_recv_response(Some(limit))
                .timeout_recv_body(Some(limit))
                .build(),
        };
        agent.run(request)
    }

    fn read(&self, response: http::Response<Body>) -> Outcome<Response, String> {
        let (head, body) = response.into_parts();
        if head.status == StatusCode::TEMPORARY_REDIRECT {
            return Outcome::Redirected(text(&head.headers, header::LOCATION).unwrap_or_default().to_owned());
        }
        let mut bytes = Vec::new();
        match body.into_reader().take(self.config.response_bytes_max).read_to_end(&mut bytes) {
            Ok(_) => Outcome::Responded(Response {
                status: head.status.as_u16(),
                headers: head.headers,
                body: bytes,
            }),
            Err(error) => Outcome::Unreachable(format!("the response was interrupted: {error}")),
        }
    }
}

fn agent(tls: &ClientTls, user_agent: &'static str) -> Agent {
    agent_config(tls, user_agent).into()
}

fn agent_config(tls: &ClientTls, user_agent: &'static str) -> Config {
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        // Predictors and agents are in the cluster or on this machine; proxies of the environment are for others.
        .proxy(None)
        .tls_config(tls.config())
        .user_agent(user_agent)
        .build()
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn server_time_s(header: &str) -> Option<f64> {
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
        assert_eq!(server_time_s("allocate;dur=1.5"), Some(0.0015));
        assert_eq!(server_time_s("db;dur=9, allocate;desc=\"x\"; dur=2"), Some(0.002));
        for absent in ["", "db;dur=9", "allocate", "allocate;dur=x", "allocate;dur=inf"] {
            assert_eq!(server_time_s(absent), None, "{absent}");
        }
    }
}
