//! The HTTP API: parses requests and writes responses. One file per endpoint.
//!
//! Every error is problem+json (`problem`). Every body is bounded and checked (`body`).

mod access;
mod admission;
mod allocate;
mod body;
mod docs;
mod health;
mod jobs;
mod limits;
mod live;
mod meter;
mod metrics;
mod nodes;
mod operator;
mod page;
mod plan;
mod problem;
mod reports;
mod store;
mod strict;
mod telemetry;
mod views;
mod workers;

#[cfg(test)]
mod fuzz;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::error_handling::HandleErrorLayer;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::{BoxError, Router};
use evenstep_observability::Gather;
use tokio::sync::{Mutex, watch};
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;

use crate::access::{Access, Hosts, Limits, Refresher};
use crate::jobs::Jobs;
use crate::retention::RetentionStats;
pub use access::{Allowed, ROUTES};
pub use live::Streams;
pub use meter::Meter;
pub use plan::Plans;

/// Size limit of a request body, in bytes. An allocation request with the reports of 10,000 workers fits.
pub const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// State shared by the endpoints.
#[derive(Clone)]
pub struct Api {
    /// The job registry.
    pub jobs: Arc<Jobs>,
    /// Statistics of retention.
    pub retention: RetentionStats,
    /// True once the service shuts down: it is no longer ready, and streams end.
    pub draining: watch::Receiver<bool>,
    /// Request counters.
    pub meter: Meter,
    /// Collects all metrics.
    pub gather: Gather,
    /// The known tokens.
    pub access: Arc<Access>,
    /// Reads tokens that are not known yet.
    pub refresher: Arc<Refresher>,
    /// The limits of tokens.
    pub limits: Arc<Limits>,
    /// Names at which clients without a token may reach the predictor.
    pub hosts: Arc<Hosts>,
    /// Whether clients connect with TLS.
    pub is_secure: bool,
    /// Open event streams.
    pub streams: Streams,
    /// Held during a scrape, so that scrapes run one after the other.
    pub scraping: Arc<Mutex<()>>,
    /// Limit of burst-parallel plans in progress.
    pub plans: Plans,
    /// Folder of the reports.
    pub reports: Option<Arc<Path>>,
}

/// Routes of all endpoints.
pub fn router(api: Api) -> Router {
    let (router, openapi) = docs::document()
        .merge(allocate::router())
        .merge(jobs::router())
        .merge(workers::router())
        .merge(views::router())
        .merge(nodes::router())
        .merge(store::router())
        .merge(operator::router())
        .merge(access::router())
        .merge(live::router())
        .merge(reports::router())
        .merge(plan::router())
        .layer(from_fn_with_state(api.meter.admission.others.clone(), admission::others))
        .merge(health::router())
        .merge(metrics::router())
        .merge(
            telemetry::router()
                .layer(from_fn_with_state(api.meter.admission.telemetry.clone(), admission::telemetry))
                .layer(from_fn_with_state(api.meter.clone(), meter::rejections))
                .layer(from_fn_with_state(api.limits.clone(), limits::telemetry)),
        )
        .split_for_parts();
    let access = from_fn_with_state(api.clone(), access::check);
    let counting = from_fn_with_state(api.meter.clone(), meter::requests);
    let noting = from_fn_with_state(api.jobs.clone(), problem::note_damage);
    router
        .merge(docs::router(openapi))
        .merge(page::router())
        .merge(reports::pages())
        .route_layer(access)
        .fallback(problem::unknown_path)
        .method_not_allowed_fallback(problem::wrong_method)
        .with_state(api)
        .layer(axum::middleware::from_fn(problem::set_redirect_location))
        .layer(noting)
        // Admission bounds bodies.
        .layer(DefaultBodyLimit::disable())
        .layer(
            ServiceBuilder::new()
                .layer(HandleErrorLayer::new(|_: BoxError| problem::timed_out(REQUEST_TIMEOUT)))
                .timeout(REQUEST_TIMEOUT),
        )
        .layer(CatchPanicLayer::custom(problem::panicked))
        .layer(counting)
}
