//! An HTTP listener for scrapers on other machines. It serves only `/metrics` and `/healthz`.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evenstep_server::{Limits, Options, Tls};

use crate::Gather;
use crate::metrics;

/// Maximum number of open connections. A scraper uses one.
const CONNECTIONS_MAX: usize = 32;

/// Health check of the program. The error is the reason why it is unhealthy.
pub type Healthy = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Returns the response of `/metrics`.
pub fn answer(gather: &Gather) -> Response {
    match metrics::text(&gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot encode metrics");
            (StatusCode::INTERNAL_SERVER_ERROR, "cannot encode metrics\n").into_response()
        }
    }
}

/// Serves requests on `listener` until `stop` completes, with TLS if given.
///
/// # Errors
/// If the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    gather: Gather,
    healthy: Healthy,
    tls: Option<Tls>,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let limits = Limits { per_address: CONNECTIONS_MAX, ..Limits::new(CONNECTIONS_MAX) };
    let options = Options { tls, ..Options::new(limits) };
    evenstep_server::serve(listener, router(gather, healthy), options, stop).await;
    Ok(())
}

fn router(gather: Gather, healthy: Healthy) -> Router {
    let health = async move || match healthy() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    };
    Router::new()
        .route("/metrics", get(async move || answer(&gather)))
        .route("/healthz", get(health))
        .fallback(async || (StatusCode::NOT_FOUND, "not found; available paths: /metrics, /healthz\n"))
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;
    use crate::metrics::Family;

    fn get(address: SocketAddr, path: &str) -> (u16, String) {
        let client: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut answer = client.get(format!("http://{address}{path}")).call().unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    }

    #[test]
    fn a_scraper_gets_metrics_and_health_and_nothing_else() {
        let gather: Gather = Arc::new(|| {
            let mut workers = Family::gauge("evenstep_workers", "Workers.");
            workers.add([], 4.0);
            workers.done().into_iter().collect()
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = thread::spawn(move || {
            let healthy: Healthy = Arc::new(|| Err("asleep".into()));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let stopped = async { stopped.await.unwrap() };
            runtime.block_on(serve(listener, gather, healthy, None, stopped)).unwrap();
        });
        let (status, text) = get(address, "/metrics");
        assert_eq!((status, text.lines().last()), (200, Some("evenstep_workers 4")));
        assert_eq!(get(address, "/healthz"), (503, "asleep\n".into()));
        assert_eq!(get(address, "/sample").0, 404);
        // Idle connections make room for others.
        let silent: Vec<_> = (0..2 * CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert_eq!(get(address, "/metrics").0, 200);
        stop.send(()).unwrap();
        server.join().unwrap();
        assert!(TcpStream::connect(address).is_err(), "the listener closes at the end");
        drop(silent);
    }
}
