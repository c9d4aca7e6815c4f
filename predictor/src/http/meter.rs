//! What is counted of requests; docs/metrics.md says what each means. And their spans.

use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_observability::metrics::prometheus::{HistogramVec, IntCounterVec};
use evenstep_observability::metrics::{collect, counters, histograms};
use tracing::Instrument;
use tracing::field::Empty;

/// Durations of `POST /allocate`, in seconds.
const ALLOCATES_S: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 5.0,
    30.0,
];
/// Why telemetry is sent away, as it is counted.
const REJECTIONS: [&str; 4] = ["busy", "invalid", "too_large", "store"];

/// The meter of all requests.
#[derive(Debug, Clone)]
pub struct Meter {
    requests: IntCounterVec,
    allocates: HistogramVec,
    samples: IntCounterVec,
    rejected: IntCounterVec,
}

impl Default for Meter {
    /// Nothing counted yet. What may happen is there from the beginning, so that a rate over it is 0 and not absent.
    fn default() -> Self {
        let samples = counters("evenstep_telemetry_samples_total", "Samples of nodes that were stored.", &[]);
        samples.with_label_values::<&str>(&[]);
        let rejected = counters(
            "evenstep_telemetry_rejected_total",
            "Batches of telemetry that were sent away.",
            &["reason"],
        );
        for reason in REJECTIONS {
            rejected.with_label_values(&[reason]);
        }
        let allocates = histograms(
            "evenstep_allocate_duration_seconds",
            "POST /allocate in the service.",
            &["answer"],
            ALLOCATES_S,
        );
        for answer in ["new", "repeated", "refused"] {
            allocates.with_label_values(&[answer]);
        }
        let requests = counters("evenstep_http_requests_total", "Requests.", &["route", "status"]);
        Self { requests, allocates, samples, rejected }
    }
}

impl Meter {
    /// What was counted.
    pub fn families(&self) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        collect(&mut families, &self.allocates, []);
        for counted in [&self.requests, &self.samples, &self.rejected] {
            collect(&mut families, counted, []);
        }
        families
    }

    /// A request for an allocation came to this `answer`: `new`, `repeated` or `refused`.
    pub fn allocated(&self, answer: &str, took: Duration) {
        self.allocates.with_label_values(&[answer]).observe(took.as_secs_f64());
    }

    /// So many samples are durable, that were not before.
    pub fn stored(&self, samples: u64) {
        self.samples.with_label_values::<&str>(&[]).inc_by(samples);
    }
}

/// Counts a request by its route and the class of its status, and puts a span around it.
pub async fn requests(State(meter): State<Meter>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
    let span = tracing::debug_span!("http", method = %request.method(), route, status = Empty);
    let response = next.run(request).instrument(span.clone()).await;
    let status = response.status().as_u16();
    span.record("status", status);
    let class = match status {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    };
    meter.requests.with_label_values(&[route, class]).inc();
    response
}

/// Counts telemetry that is sent away, by why.
pub async fn rejections(State(meter): State<Meter>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let reason = match response.status() {
        StatusCode::TOO_MANY_REQUESTS => "busy",
        StatusCode::PAYLOAD_TOO_LARGE => "too_large",
        status if status.is_client_error() => "invalid",
        status if status.is_server_error() => "store",
        _ => return response,
    };
    meter.rejected.with_label_values(&[reason]).inc();
    response
}
