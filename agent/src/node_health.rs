//! The node health check of NVIDIA's resiliency extension for PyTorch (NVRx): one call of gRPC over a Unix socket.
//!
//! The launcher calls it before a rendezvous. A node is unhealthy if a predictor says that a worker on it has been a straggler
//! for long; then the launcher can use another node. Without a response of a predictor, the node is healthy.
//!
//! `frames` has the HTTP/2 of this call.

mod frames;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use evenstep_client::failover::Outcome;
use evenstep_client::http::{Method, Request, TimeLimit, Transport, TransportConfig};
use evenstep_client::{ClientTls, Servers, SystemClock};
use evenstep_protocol::{NodeHealthView, NodeId, NodeStraggler};
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep, timeout};

/// Time limit of a request to one predictor.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// Maximum size of its response, in bytes.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;
/// Time for which a response is used again, because all launchers of a node send their calls at once.
const KEPT: Duration = Duration::from_secs(1);
/// Maximum number of open connections; more wait. Each is closed after a time.
const CONNECTIONS_MAX: usize = 16;
const CONNECTION_MAX: Duration = Duration::from_secs(300);
/// Pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of stragglers that a response names.
const NAMED_MAX: usize = 16;

/// The call. Its arguments are for other checks, and are ignored.
#[derive(Clone, PartialEq, Eq, Message)]
struct HealthCheckRequest {
    #[prost(string, repeated, tag = "1")]
    args: Vec<String>,
}

/// The response. The launcher takes `success` with no failure in `output` for healthy.
#[derive(Clone, PartialEq, Eq, Message)]
struct HealthCheckResponse {
    #[prost(bool, tag = "1")]
    success: bool,
    #[prost(int32, tag = "2")]
    exit_code: i32,
    #[prost(string, tag = "3")]
    output: String,
    #[prost(string, tag = "4")]
    error: String,
}

/// Queries the predictors whether this node is healthy.
#[derive(Debug)]
pub struct NodeHealth {
    /// One for each predictor: each knows only the jobs that it owns.
    predictors: Vec<Transport>,
    path: String,
    last: Mutex<Option<(Instant, HealthCheckResponse)>>,
}

impl NodeHealth {
    /// Sends no request yet. A node is unhealthy if a worker on it has been a straggler for `after`.
    pub fn new(servers: Option<&Servers>, tls: &ClientTls, node: &NodeId, after: Duration) -> Self {
        let config = || TransportConfig {
            user_agent: concat!("evenstep-agent/", env!("CARGO_PKG_VERSION")),
            response_bytes_max: RESPONSE_BYTES_MAX,
            limit: TimeLimit::Attempt,
            clock: Arc::new(SystemClock),
            tls: tls.clone(),
        };
        let urls = servers.map_or(&[][..], Servers::urls);
        let one = |url: &String| Some(Transport::new(&url.parse().ok()?, config()));
        Self {
            predictors: urls.iter().filter_map(one).collect(),
            path: format!("/v1/nodes/{node}/health?after_s={}", after.as_secs()),
            last: Mutex::default(),
        }
    }

    /// Serves calls until it is dropped.
    pub async fn serve(self, listener: UnixListener) {
        let (health, places) = (Arc::new(self), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let health = health.clone();
                    tokio::spawn(async move {
                        let answered = frames::serve(stream, &*health);
                        if let Ok(Err(error)) = timeout(CONNECTION_MAX, answered).await {
                            tracing::debug!(%error, "a connection of the node health check failed");
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of the node health check");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl frames::Answer for NodeHealth {
    async fn answer(&self, call: &[u8]) -> Option<Vec<u8>> {
        HealthCheckRequest::decode(call).ok()?;
        // Others wait here, and use the same response.
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < KEPT
        {
            return Some(answer.encode_to_vec());
        }
        let asked = self.predictors.iter().cloned().map(|predictor| {
            let path = self.path.clone();
            tokio::task::spawn_blocking(move || ask(&predictor, &path))
        });
        let mut found = Vec::new();
        for asked in asked.collect::<Vec<_>>() {
            found.extend(asked.await.ok().flatten());
        }
        let answer = judge(&found);
        let encoded = answer.encode_to_vec();
        *last = Some((Instant::now(), answer));
        Some(encoded)
    }
}

/// Returns the health that a predictor reports; `None` without one.
fn ask(predictor: &Transport, path: &str) -> Option<NodeHealthView> {
    let request = Request { method: &Method::GET, path, body: None };
    let response = predictor.send(request, REQUEST_MAX, Outcome::<_, String>::Responded);
    let response = response.map_err(|error| error.to_string()).and_then(|response| match response.status {
        200 => serde_json::from_slice(&response.body).map_err(|error| error.to_string()),
        status => Err(format!("status {status}")),
    });
    response.map_err(|error| tracing::warn!(%error, "no predictor says whether this node is healthy")).ok()
}

fn judge(found: &[NodeHealthView]) -> HealthCheckResponse {
    let mut stragglers: Vec<&NodeStraggler> =
        found.iter().filter(|view| !view.healthy).flat_map(|view| &view.stragglers).collect();
    stragglers.sort_by(|one, other| one.straggler.speed_ratio.total_cmp(&other.straggler.speed_ratio));
    let count = stragglers.len();
    let mut error = String::new();
    for straggler in stragglers.into_iter().take(NAMED_MAX) {
        let separator = if error.is_empty() { "" } else { "; " };
        let view = &straggler.straggler;
        let _ = write!(
            error,
            "{separator}worker {} of job {} has {:.0} % of its expected speed since iteration {}: {}",
            straggler.worker,
            straggler.job_id,
            100.0 * view.speed_ratio,
            view.since_iteration,
            view.detail
        );
    }
    let output = format!("{{\"fail_count\": {count}}}");
    HealthCheckResponse { success: count == 0, exit_code: i32::from(count > 0), output, error }
}
