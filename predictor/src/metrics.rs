//! All metrics of the predictor, collected from the modules that count them. docs/reference/metrics.md describes each.

use std::sync::{Arc, Weak};

use evenstep_observability::Gather;
use evenstep_observability::metrics::prometheus::process_collector::ProcessCollector;
use evenstep_observability::metrics::{Family, collect};

use evenstep_observability::metrics::prometheus::proto::MetricFamily;
use evenstep_server::{Connections, Tls};

use crate::access::{Access, Limits};
use crate::http::Meter;
use crate::jobs::{Jobs, Pool};

/// Returns the function that collects all metrics. It holds weak references, so that exporters do not keep a
/// closed registry alive.
pub fn gather(
    jobs: &Arc<Jobs>,
    pool: &Pool,
    meter: &Meter,
    connections: &Connections,
    access: &Arc<Access>,
    limits: &Arc<Limits>,
    tls: Option<&Tls>,
) -> Gather {
    let (jobs, pool, meter): (Weak<Jobs>, _, _) = (Arc::downgrade(jobs), pool.clone(), meter.clone());
    let (connections, access, tls) = (connections.clone(), access.clone(), tls.cloned());
    let limits = limits.clone();
    let process = ProcessCollector::for_self();
    Arc::new(move || {
        let mut families = [pool.families(), meter.families(), access.families(), limits.families()].concat();
        if let Some(jobs) = jobs.upgrade() {
            families.extend(jobs.families());
            families.extend(jobs.store().families());
        }
        let mut build = Family::gauge("evenstep_build_info", "Version of the running predictor.");
        build.add([("version", env!("CARGO_PKG_VERSION"))], 1.0);
        families.extend(build.done());
        let mut open = Family::gauge("evenstep_http_connections", "Open HTTP connections.");
        open.add([], connections.open() as f64);
        let mut refused = Family::counter(
            "evenstep_http_connections_refused_total",
            "HTTP connections closed at once because a limit was reached.",
        );
        refused.add([], connections.refused() as f64);
        families.extend(open.done().into_iter().chain(refused.done()));
        families.extend(tls.iter().flat_map(tls_families));
        collect(&mut families, &process, []);
        families.sort_by(|a, b| a.name().cmp(b.name()));
        // A metric with labels that never occurred has a name and no series.
        families.retain(|family| !family.get_metric().is_empty());
        families
    })
}

fn tls_families(tls: &Tls) -> impl Iterator<Item = MetricFamily> {
    let status = tls.status();
    let mut reloads = Family::counter("evenstep_tls_reloads_total", "Changes of the TLS files.");
    reloads.add([("outcome", "loaded")], status.reloads as f64);
    reloads.add([("outcome", "failed")], status.failed_reloads as f64);
    let mut failed =
        Family::counter("evenstep_tls_handshake_failures_total", "Connections without a TLS handshake.");
    failed.add([], status.failed_handshakes as f64);
    let mut expiry = Family::gauge(
        "evenstep_tls_certificate_expiry_timestamp_seconds",
        "End of the validity of the server's certificate.",
    );
    if let Some(expires_unix_s) = status.expires_unix_s {
        expiry.add([], expires_unix_s as f64);
    }
    [reloads, failed, expiry].into_iter().filter_map(Family::done)
}
