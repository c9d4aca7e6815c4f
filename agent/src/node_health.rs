//! The node health check of NVIDIA's resiliency extension for PyTorch (NVRx): one call of gRPC over the agent's Unix socket.
//!
//! The launcher asks before a rendezvous. A node is unhealthy if a predictor says that a worker on it has been a straggler
//! for long; then the launcher can use another node. Without a response of a predictor, the node is healthy.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use evenstep_client::http::{Method, Request as PredictorRequest, TimeLimit, Transport, TransportConfig};
use evenstep_client::{ClientTls, Servers, SystemClock, failover::Outcome};
use evenstep_protocol::{NodeHealthView, NodeId};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Path of the call: `/PACKAGE.SERVICE/METHOD`.
pub const PATH: &str = "/nvhcd.HealthCheckService/RunHealthCheck";
/// Maximum size of a call, in bytes.
const CALL_BYTES_MAX: usize = 64 << 10;
/// Size of the head of a message in gRPC: a flag for compression, and the length.
const HEAD_BYTES: usize = 5;
/// Time limit of a request to one predictor.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of its response, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Time for which an answer is used again, because all launchers of a node ask at once.
const KEPT: Duration = Duration::from_secs(1);

/// Status codes of gRPC.
const OK: &str = "0";
const INVALID_ARGUMENT: &str = "3";
const UNIMPLEMENTED: &str = "12";

/// The call. Its arguments are for other checks, and are ignored.
#[derive(Clone, PartialEq, Eq, Message)]
struct HealthCheckRequest {
    #[prost(string, repeated, tag = "1")]
    args: Vec<String>,
}

/// The answer. The launcher takes `success` with no failure in `output` for healthy.
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

/// Asks the predictors whether this node is healthy.
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
            response_bytes_max: ANSWER_BYTES_MAX,
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

    async fn answer(&self) -> HealthCheckResponse {
        // Others wait here, and use the same answer.
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = last.as_ref().filter(|(at, _)| at.elapsed() < KEPT) {
            let _ = at;
            return answer.clone();
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
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

/// Returns what a predictor says; `None` if it does not say it.
fn ask(predictor: &Transport, path: &str) -> Option<NodeHealthView> {
    let request = PredictorRequest { method: &Method::GET, path, body: None };
    let response = predictor.send(request, TIMEOUT, Outcome::<_, String>::Responded);
    let response = response.map_err(|error| error.to_string()).and_then(|response| match response.status {
        200 => serde_json::from_slice(&response.body).map_err(|error| error.to_string()),
        status => Err(format!("status {status}")),
    });
    response.map_err(|error| tracing::warn!(%error, "no predictor says whether this node is healthy")).ok()
}

fn judge(found: &[NodeHealthView]) -> HealthCheckResponse {
    let stragglers = found.iter().filter(|view| !view.healthy).flat_map(|view| &view.stragglers);
    let mut error = String::new();
    let mut count = 0;
    for straggler in stragglers {
        let separator = if count == 0 { "" } else { "; " };
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
        count += 1;
    }
    let output = format!("{{\"fail_count\": {count}}}");
    HealthCheckResponse { success: count == 0, exit_code: i32::from(count > 0), output, error }
}

/// Answers a call over HTTP/2.
pub async fn check(State(health): State<Arc<NodeHealth>>, request: Request) -> Response {
    let is_grpc = |value: &HeaderValue| value.as_bytes().starts_with(b"application/grpc");
    if !request.headers().get(header::CONTENT_TYPE).is_some_and(is_grpc) {
        return failed(INVALID_ARGUMENT, "content-type must be application/grpc");
    }
    let Ok(body) = to_bytes(request.into_body(), CALL_BYTES_MAX).await else {
        return failed(INVALID_ARGUMENT, "a call has at most 64 KiB");
    };
    let message = match framed(&body) {
        Ok(message) => message,
        Err((code, rule)) => return failed(code, rule),
    };
    if HealthCheckRequest::decode(message).is_err() {
        return failed(INVALID_ARGUMENT, "must be a nvhcd.HealthCheckRequest");
    }
    let message = health.answer().await.encode_to_vec();
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    framed.extend(message);
    let trailers = async { Some(Ok(HeaderMap::from_iter([status(OK)]))) };
    let body = Body::new(Full::new(Bytes::from(framed)).with_trailers(trailers));
    ([(header::CONTENT_TYPE, "application/grpc")], body).into_response()
}

/// Returns the message in the body of a call.
fn framed(body: &[u8]) -> Result<&[u8], (&'static str, &'static str)> {
    let Some((head, message)) = body.split_first_chunk::<HEAD_BYTES>() else {
        return Err((INVALID_ARGUMENT, "a message begins with 5 bytes"));
    };
    let [compressed, length @ ..] = *head;
    if compressed != 0 {
        return Err((UNIMPLEMENTED, "messages must not be compressed"));
    }
    if u32::from_be_bytes(length) as usize != message.len() {
        return Err((INVALID_ARGUMENT, "must be one whole message"));
    }
    Ok(message)
}

fn status(code: &'static str) -> (header::HeaderName, HeaderValue) {
    (header::HeaderName::from_static("grpc-status"), HeaderValue::from_static(code))
}

fn failed(code: &'static str, rule: &'static str) -> Response {
    let message = (header::HeaderName::from_static("grpc-message"), HeaderValue::from_static(rule));
    let content = (header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    ([content, status(code), message], ()).into_response()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(evenstep_fuzz::config(256))]

        /// Any bytes are a message of their length, or an error.
        #[test]
        fn calls_are_framed(body in prop::collection::vec(any::<u8>(), 0..40), is_right in any::<bool>()) {
            let mut body = body;
            if is_right {
                let length = u32::try_from(body.len()).unwrap();
                body.splice(0..0, [vec![0], length.to_be_bytes().to_vec()].concat());
                prop_assert_eq!(framed(&body), Ok(&body[HEAD_BYTES..]));
            } else if let Ok(message) = framed(&body) {
                prop_assert_eq!(message.len() + HEAD_BYTES, body.len());
            }
        }
    }
}
