//! Single requests to a predictor or an agent, and checks of settings before anything is sent.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenstep_client::failover::Outcome;
use evenstep_client::http::{
    HeaderName, HeaderValue, Method, Request, Response, TimeLimit, Transport, TransportConfig,
};
use evenstep_client::{Client, ClientConfig, ClientTlsFiles, Servers, SystemClock, TokenSource};
use evenstep_protocol::{JobId, JobSpec, OomReport, WorkerId};
use pyo3::prelude::*;

use crate::errors::{EvenstepError, invalid_setting, request_failed};

/// Returns a list of servers.
pub fn servers(text: &str) -> PyResult<Servers> {
    text.parse().map_err(|error| invalid_setting(format!("server {error}")))
}

/// Returns the time limit of a request.
pub fn timeout(seconds: f64) -> PyResult<Duration> {
    let positive = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
    positive.ok_or_else(|| invalid_setting(format!("timeout_s {seconds}: must be finite and above 0")))
}

/// CAs that a client trusts, its own certificate, and its token.
#[pyclass(frozen, module = "evenstep._native")]
pub struct ClientTls(evenstep_client::ClientTls);

#[pymethods]
impl ClientTls {
    #[new]
    #[pyo3(signature = (ca = None, certificate = None, key = None, environ = HashMap::new()))]
    #[expect(clippy::needless_pass_by_value, reason = "the signature that PyO3 requires")]
    fn new(
        ca: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        environ: HashMap<String, String>,
    ) -> PyResult<Self> {
        let token =
            TokenSource::of_environment(|name| environ.get(name).map(Into::into)).map_err(invalid_setting)?;
        let loaded = evenstep_client::ClientTls::load(ClientTlsFiles { ca, certificate, key, token });
        loaded.map(Self).map_err(invalid_setting)
    }
}

fn tls_or_default(tls: Option<&ClientTls>) -> evenstep_client::ClientTls {
    tls.map_or_else(Default::default, |tls| tls.0.clone())
}

/// Returns a client of a job.
pub fn client(list: &str, job_id: &str, timeout_s: f64, tls: Option<&ClientTls>) -> PyResult<Client> {
    let job_id = JobId::new(job_id).map_err(invalid_setting)?;
    let request_timeout = timeout(timeout_s)?;
    let config = ClientConfig { request_timeout, tls: tls_or_default(tls), ..ClientConfig::default() };
    Ok(Client::new(&servers(list)?, job_id, config))
}

/// Checks the id of a job and returns it.
#[pyfunction]
pub fn check_job_id(job_id: &str) -> PyResult<&str> {
    JobId::new(job_id).map(|_| job_id).map_err(invalid_setting)
}

/// Checks the id of a worker and returns it.
#[pyfunction]
pub fn check_worker_id(worker: &str) -> PyResult<&str> {
    WorkerId::new(worker).map(|_| worker).map_err(invalid_setting)
}

/// Returns the base URLs in a comma-separated list.
#[pyfunction]
pub fn parse_servers(text: &str) -> PyResult<Vec<String>> {
    Ok(servers(text)?.urls().to_vec())
}

/// Checks the names and types of job options.
#[pyfunction]
pub fn check_job_options(text: &str) -> PyResult<()> {
    let checked = serde_json::from_str::<JobSpec>(text).map(drop);
    checked.map_err(|error| invalid_setting(format!("job_options: {error}")))
}

/// Reports that a worker ran out of memory, and returns its new cap.
#[pyfunction]
#[pyo3(signature = (servers, job_id, worker, iteration, local_batch, timeout_s, tls = None))]
#[expect(clippy::too_many_arguments, reason = "Python passes them")]
pub fn report_oom(
    py: Python<'_>,
    servers: &str,
    job_id: &str,
    worker: &str,
    iteration: u64,
    local_batch: u64,
    timeout_s: f64,
    tls: Option<&ClientTls>,
) -> PyResult<u64> {
    let client = client(servers, job_id, timeout_s, tls)?;
    let worker = WorkerId::new(worker).map_err(invalid_setting)?;
    let reported = py.detach(|| client.report_oom(&worker, &OomReport { iteration, local_batch }));
    reported.map(|response| response.max_local_batch).map_err(|error| request_failed(&error))
}

/// A kept connection to one server: a base URL, or a Unix socket as `unix:///PATH`.
#[pyclass(frozen, module = "evenstep._native")]
pub struct Http(Transport);

#[pymethods]
impl Http {
    #[new]
    #[pyo3(signature = (server, tls = None))]
    fn new(server: &str, tls: Option<&ClientTls>) -> PyResult<Self> {
        let config = TransportConfig {
            user_agent: concat!("evenstep-python/", env!("CARGO_PKG_VERSION")),
            response_bytes_max: ClientConfig::default().response_bytes_max,
            limit: TimeLimit::Phase,
            clock: Arc::new(SystemClock),
            tls: tls_or_default(tls),
        };
        Ok(Self(match server.strip_prefix("unix://") {
            Some(socket) if socket.starts_with('/') => Transport::unix(socket.into(), config),
            Some(_) => {
                return Err(invalid_setting(format!(
                    "server {server:?}: must be like unix:///run/agent.sock"
                )));
            }
            None => Transport::new(&servers(server)?, config),
        }))
    }

    /// Requests a resource.
    fn get(&self, py: Python<'_>, path: &str, timeout_s: f64) -> PyResult<HttpResponse> {
        let limit = timeout(timeout_s)?;
        let request = Request { method: &Method::GET, path, body: None };
        let sent = py.detach(|| self.0.send(request, limit, Outcome::<Response, String>::Responded));
        let response = sent.map_err(|error| EvenstepError::new_err(error.to_string()))?;
        let header = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let headers = response.headers.iter().map(header).collect();
        Ok(HttpResponse { status: response.status, headers, body: response.body })
    }
}

/// The response of a server.
#[pyclass(frozen, get_all, module = "evenstep._native")]
pub struct HttpResponse {
    status: u16,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}
