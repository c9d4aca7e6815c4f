//! The HTTP API: parses requests and writes responses. One file per endpoint.
//!
//! Every error is problem+json (`problem`). Every body is bounded and checked (`body`).

mod access;
mod admission;
mod allocate;
mod api;
mod body;
mod docs;
mod fallback;
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
mod pools;
mod problem;
mod reports;
mod store;
mod strict;
mod telemetry;
mod views;
mod workers;

#[cfg(test)]
mod fuzz;

use std::time::Duration;

use axum::error_handling::HandleErrorLayer;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::{BoxError, Router};
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;

pub use access::{Allowed, ROUTES};
pub use api::Api;
pub use live::Streams;
pub use meter::Meter;
pub use pools::Pools;

/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

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
        .fallback(fallback::unknown_path)
        .method_not_allowed_fallback(fallback::wrong_method)
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
