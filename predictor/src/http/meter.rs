//! Counters and spans of requests; docs/reference/metrics.md describes each metric.

use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_observability::metrics::prometheus::{HistogramVec, IntCounterVec};
use evenstep_observability::metrics::{collect, counters, histograms};

use super::admission::Admission;
use crate::access::Auth;

/// Histogram buckets of `POST /allocate`, in seconds.
const ALLOCATES_S: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 5.0,
    30.0,
];
/// Reasons for rejecting telemetry, as values of a label.
const REJECTIONS: [&str; 4] = ["busy", "invalid", "too_large", "store"];

/// The counters of all requests.
#[derive(Debug, Clone)]
pub struct Meter {
    requests: IntCounterVec,
    allocates: HistogramVec,
    samples: IntCounterVec,
    rejected: IntCounterVec,
    /// Admission of requests.
    pub admission: Admission,
}

impl Meter {
    /// Counters at zero. All label values exist from the start, so that rates over them are 0 and not absent.
    pub fn new(auth: Auth) -> Self {
        let samples = counters("evenstep_telemetry_samples_total", "Node samples stored.", &[]);
        samples.with_label_values::<&str>(&[]);
        let rejected =
            counters("evenstep_telemetry_rejected_total", "Telemetry batches rejected.", &["reason"]);
        for reason in REJECTIONS {
            rejected.with_label_values(&[reason]);
        }
        let allocates = histograms(
            "evenstep_allocate_duration_seconds",
            "Duration of POST /allocate in the service.",
            &["answer"],
            ALLOCATES_S,
        );
        for answer in ["new", "repeated", "refused"] {
            allocates.with_label_values(&[answer]);
        }
        let requests = counters("evenstep_http_requests_total", "Requests.", &["route", "status"]);
        Self { requests, allocates, samples, rejected, admission: Admission::new(auth) }
    }

    /// The metric families.
    pub fn families(&self) -> Vec<MetricFamily> {
        let mut families: Vec<MetricFamily> = self.admission.families().into_iter().collect();
        collect(&mut families, &self.allocates, []);
        for counted in [&self.requests, &self.samples, &self.rejected] {
            collect(&mut families, counted, []);
        }
        families
    }

    /// Counts an allocation request with its outcome: `new`, `repeated` or `refused`.
    pub fn allocated(&self, answer: &str, took: Duration) {
        self.allocates.with_label_values(&[answer]).observe(took.as_secs_f64());
    }

    /// Counts samples that are now durable and were not before.
    pub fn stored(&self, samples: u64) {
        self.samples.with_label_values::<&str>(&[]).inc_by(samples);
    }
}

/// Counts a request by its route and status class.
pub async fn requests(State(meter): State<Meter>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
    let response = next.run(request).await;
    let class = match response.status().as_u16() {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    };
    meter.requests.with_label_values(&[route, class]).inc();
    response
}

/// Counts rejected telemetry by reason.
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
