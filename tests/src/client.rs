//! A client of the predictor's HTTP interface for tests: status, headers and bytes.

use std::time::Duration;

use evenstep_protocol::{
    AllocateRequest, ForecastView, JobSpec, JobView, JoinRequest, JoinResponse, PROBLEM_CONTENT_TYPE,
    Problem, SamplesView, WorkerId,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::certificates::{Authority, Identity};
use crate::wait::until;

/// Longer than any healthy response takes.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Maximum number of redirects that a following client accepts.
const REDIRECTS_MAX: usize = 3;

/// A client with separate connections.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    url: String,
    hops: usize,
    repeats: Repeats,
    token: Option<String>,
}

/// Which rejected requests a client repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeats {
    Nothing,
    /// While the job is being loaded, as a training loop does.
    Loading,
    Unavailable,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// `content-type`.
    pub content_type: Option<String>,
    /// `connection`.
    pub connection: Option<String>,
    /// `retry-after`.
    pub retry_after: Option<String>,
    /// `location`.
    pub location: Option<String>,
    /// The body.
    pub body: String,
}

impl Reply {
    /// Returns the parsed body of a success.
    ///
    /// # Panics
    /// The response is not a success.
    pub fn json<T: DeserializeOwned>(&self) -> T {
        assert!((200..300).contains(&self.status), "{self:?}");
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the problem of a rejection.
    ///
    /// # Panics
    /// The response has another status or slug, or is not problem+json.
    pub fn problem(&self, status: u16, slug: &str) -> Problem {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.content_type.as_deref(), Some(PROBLEM_CONTENT_TYPE), "{self:?}");
        let problem: Problem = serde_json::from_str(&self.body).expect("a problem");
        assert_eq!(problem.kind, format!("{}{slug}", Problem::TYPE_PREFIX), "{self:?}");
        assert_eq!((problem.status, problem.slug()), (status, slug));
        assert!(!problem.title.is_empty() && !problem.detail.is_empty(), "{self:?}");
        problem
    }
}

impl Client {
    /// Creates a client of the server at `http://host:port`.
    pub fn new(url: &str) -> Self {
        Self::with_tls(url, TlsConfig::builder().build())
    }

    /// Creates a client of the server at `https://host:port`, which has a certificate of `authority`. The client's own
    /// certificate is `own`.
    pub fn trusting(url: &str, authority: &Authority, own: Option<&Identity>) -> Self {
        let certificate = |pem: &str| Certificate::from_pem(pem.as_bytes()).expect("a certificate");
        let own = own.map(|own| {
            let key = PrivateKey::from_pem(own.key.as_bytes()).expect("a key");
            ClientCert::new_with_certs(&[certificate(&own.certificate)], key)
        });
        let roots = RootCerts::new_with_certs(&[certificate(&authority.certificate())]);
        Self::with_tls(url, TlsConfig::builder().root_certs(roots).client_cert(own).build())
    }

    fn with_tls(url: &str, tls: TlsConfig) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(tls)
            .max_redirects(0)
            .timeout_connect(Some(TIMEOUT))
            .timeout_recv_response(Some(TIMEOUT))
            .timeout_recv_body(Some(TIMEOUT))
            .build();
        Self { agent: config.into(), url: url.to_owned(), hops: 0, repeats: Repeats::Nothing, token: None }
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Creates a client that follows redirects.
    pub fn following(url: &str) -> Self {
        Self { hops: REDIRECTS_MAX, ..Self::new(url) }
    }

    /// Creates a client that follows redirects, and repeats requests while the predictor is unavailable, for example
    /// because a busy machine let its lease expire.
    pub fn patient(url: &str) -> Self {
        Self { repeats: Repeats::Unavailable, ..Self::following(url) }
    }

    /// Returns the same client, which repeats requests while the job is being loaded: on a busy machine a load may take longer than
    /// the predictor lets a request wait.
    pub fn while_loading(self) -> Self {
        Self { repeats: Repeats::Loading, ..self }
    }

    /// Returns the same client with a token.
    pub fn with_token(self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self }
    }

    /// Returns the token as a request header.
    fn authorization(&self) -> String {
        self.token.as_ref().map_or_else(String::new, |token| format!("Bearer {token}"))
    }

    /// Sends a request, and follows redirects if the client follows them.
    fn send(
        &self,
        path: &str,
        send: impl Fn(&str) -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Reply, ureq::Error> {
        if self.repeats == Repeats::Nothing {
            return self.send_once(path, send);
        }
        until("the predictor is available", || {
            let answer = self.send_once(path, &send);
            let is_unavailable = answer.as_ref().is_ok_and(|answer| {
                let is_loading = answer.body.contains("problem:loading");
                answer.status == 503 && (is_loading || self.repeats == Repeats::Unavailable)
            });
            (!is_unavailable).then_some(answer)
        })
    }

    fn send_once(
        &self,
        path: &str,
        send: impl Fn(&str) -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Reply, ureq::Error> {
        let mut answer = reply(send(&format!("{}{path}", self.url)))?;
        for _ in 0..self.hops {
            let Some(location) = answer.location.take().filter(|_| answer.status == 307) else { break };
            answer = reply(send(&location))?;
        }
        Ok(answer)
    }

    /// Sends `GET`.
    pub fn get(&self, path: &str) -> Reply {
        self.try_get(path).unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }

    /// Sends `GET` to a server that may be down.
    ///
    /// # Errors
    /// The server does not respond.
    pub fn try_get(&self, path: &str) -> Result<Reply, ureq::Error> {
        self.send(path, |url| self.agent.get(url).header("authorization", self.authorization()).call())
    }

    /// Sends `DELETE`.
    pub fn delete(&self, path: &str) -> Reply {
        self.try_delete(path).unwrap_or_else(|error| panic!("DELETE {path}: {error}"))
    }

    /// Sends `DELETE` to a server that may be down.
    ///
    /// # Errors
    /// The server does not respond.
    pub fn try_delete(&self, path: &str) -> Result<Reply, ureq::Error> {
        self.send(path, |url| self.agent.delete(url).header("authorization", self.authorization()).call())
    }

    /// Sends `PUT` with JSON.
    pub fn put(&self, path: &str, body: &impl Serialize) -> Reply {
        self.send(path, |url| {
            self.agent.put(url).header("authorization", self.authorization()).send_json(body)
        })
        .unwrap_or_else(|error| panic!("PUT {path}: {error}"))
    }

    /// Sends `POST` with JSON.
    pub fn post(&self, path: &str, body: &impl Serialize) -> Reply {
        self.try_post(path, body).unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// Sends `POST` with JSON to a server that may be down.
    ///
    /// # Errors
    /// The server does not respond.
    pub fn try_post(&self, path: &str, body: &impl Serialize) -> Result<Reply, ureq::Error> {
        self.send(path, |url| {
            self.agent.post(url).header("authorization", self.authorization()).send_json(body)
        })
    }

    /// Sends `POST` with any text.
    pub fn post_text(&self, path: &str, body: &str) -> Reply {
        let send = |url: &str| {
            let request = self.agent.post(url).header("authorization", self.authorization());
            request.content_type("application/json").send(body)
        };
        self.send(path, send).unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// Creates or changes a job.
    pub fn put_job(&self, job: &str, spec: &JobSpec) -> JobView {
        self.put(&format!("/v1/jobs/{job}"), spec).json()
    }

    /// Returns the summary of a job.
    pub fn job(&self, job: &str) -> JobView {
        self.get(&format!("/v1/jobs/{job}")).json()
    }

    /// Returns the first iteration of a job without a request; 0 for an unknown job.
    pub fn next_iteration(&self, job: &str) -> u64 {
        let reply = self.get(&format!("/v1/jobs/{job}"));
        if reply.status == 404 { 0 } else { reply.json::<JobView>().next_iteration }
    }

    /// Returns the forecast of each worker.
    pub fn forecast(&self, job: &str) -> ForecastView {
        self.get(&format!("/v1/jobs/{job}/forecast")).json()
    }

    /// Joins a worker without bounds.
    pub fn join(&self, job: &str, worker: &str) -> JoinResponse {
        let worker = WorkerId::new(worker).expect("a worker id");
        let request = JoinRequest::new(worker);
        self.post(&format!("/v1/jobs/{job}/workers"), &request).json()
    }

    /// Removes a worker.
    pub fn leave(&self, job: &str, worker: &str) -> JoinResponse {
        self.delete(&format!("/v1/jobs/{job}/workers/{}", worker.replace('/', "%2F"))).json()
    }

    /// Requests an allocation.
    pub fn allocate(&self, request: &AllocateRequest) -> Reply {
        self.post("/allocate", request)
    }

    /// Reads the allocation of an iteration.
    pub fn allocated(&self, job: &str, iteration: u64) -> Reply {
        self.get(&format!("/allocate?job_id={job}&iteration={iteration}"))
    }

    /// Returns the newest samples of a node.
    pub fn samples(&self, node: &str, limit: u64) -> SamplesView {
        self.get(&format!("/v1/nodes/{node}/samples?limit={limit}")).json()
    }
}

fn reply(response: Result<Response<Body>, ureq::Error>) -> Result<Reply, ureq::Error> {
    let mut response = response?;
    let header = |name: &str| Some(response.headers().get(name)?.to_str().expect("text").to_owned());
    let names = ["content-type", "connection", "retry-after", "location"];
    let [content_type, connection, retry_after, location] = names.map(header);
    let status = response.status().as_u16();
    let body = response.body_mut().with_config().limit(u64::MAX).read_to_string()?;
    Ok(Reply { status, content_type, connection, retry_after, location, body })
}
