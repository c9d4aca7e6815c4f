//! An agent and a predictor that authenticate each other by certificates.

use std::path::Path;

use evenstep_protocol::NodesView;
use evenstep_tests::agent::Agent;
use evenstep_tests::certificates::Authority;
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Predictor, binaries, store};

/// The documentation of metrics.
const METRICS: &str = include_str!("../../../docs/reference/metrics.md");

#[test]
fn an_agent_delivers_and_is_scraped_over_mutual_tls() {
    let name = "tls::an_agent_delivers_and_is_scraped_over_mutual_tls";
    let Some(agent) = binaries::find("evenstep-agent", name) else { return };
    let Some(predictor) = binaries::find("evenstep-predictor", name) else { return };
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("site"));
    let ca = authority.write(&folder.path().join("ca.pem"));
    let scraper = authority.issue("scraper");
    let option = |name: &str, file: &Path| format!("--{name}={}", file.display());
    let server_options = |name: &str| {
        let (certificate, key) = authority.issue(name).write(folder.path(), name);
        [option("tls-cert", &certificate), option("tls-key", &key), option("tls-client-ca", &ca)]
    };
    let store = store::sqlite_address(folder.path());
    let options = server_options("predictor");
    let predictor = Predictor::start_over(&predictor, &store, &options.each_ref().map(String::as_str));
    assert!(predictor.url.starts_with("https://127.0.0.1:"), "{}", predictor.url);

    let (certificate, key) = authority.issue("agent").write(folder.path(), "uplink");
    let mut options = server_options("agent").to_vec();
    options.extend([option("ca", &ca), option("client-cert", &certificate), option("client-key", &key)]);
    options.push("--metrics-listen=127.0.0.1:0".to_owned());
    let agent = Agent::start_with(&agent, "node-a", &predictor.url, &folder.path().join("spool"), &options);
    let client = Client::trusting(&predictor.url, &authority, Some(&scraper));
    until("samples arrive", || {
        let nodes: NodesView = client.get("/v1/nodes").json();
        nodes.nodes.iter().any(|node| node.samples >= 10).then_some(())
    });
    assert_eq!(agent.status()["uplink"]["failed_attempts"], 0);

    let url = format!("https://{}", agent.metrics.unwrap());
    assert!(Client::trusting(&url, &authority, None).try_get("/metrics").is_err(), "without a certificate");
    let metrics = Client::trusting(&url, &authority, Some(&scraper)).get("/metrics").body;
    for name in [
        "evenstep_agent_tls_reloads_total",
        "evenstep_agent_tls_handshake_failures_total",
        "evenstep_agent_tls_certificate_expiry_timestamp_seconds",
    ] {
        assert!(metrics.contains(&format!("\n{name}{{node=\"node-a\"")), "{name}: {metrics}");
        assert!(METRICS.contains(name), "{name} is not in docs/reference/metrics.md");
    }
}
