//! Tests of the real agent's Prometheus metrics.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::support::agent::Agent;
use crate::support::promtool::complaints;
use crate::support::receiver::{Receiver, reject, take};
use evenstep_tests::wait::until;
use serde_json::Value;

/// Documentation of the metric names.
const NAMES: &str = include_str!("../../../docs/reference/metrics.md");

fn name(series: &str) -> &str {
    series.split('{').next().unwrap()
}

#[test]
fn metrics_are_named_as_documented_and_clean() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let own = std::process::id().to_string();
    let agent = Agent::start(&receiver.url(), spool.path(), &["--watch-pid", &own]);
    let series = until("all metrics have values", || {
        let series = agent.metrics();
        let all = [
            "evenstep_node_cpu_ratio{node=\"node-a\",mode=\"busy\"}".to_owned(),
            format!("evenstep_process_cpu_cores{{node=\"node-a\",pid=\"{own}\"}}"),
            "evenstep_agent_uplink_up{node=\"node-a\"}".to_owned(),
        ];
        all.iter().all(|name| series.contains_key(name)).then_some(series)
    });
    let names: BTreeSet<&str> = series.keys().map(|series| name(series)).collect();
    let documented = |name: &&str| NAMES.contains(&format!("`{name}`"));
    let unknown: Vec<_> = names.iter().filter(|name| !documented(name)).collect();
    assert!(unknown.is_empty(), "not in docs/reference/metrics.md: {unknown:?}");
    assert!(series.keys().all(|series| series.contains("node=\"node-a\"")), "{series:#?}");
    assert_eq!(series["evenstep_agent_uplink_up{node=\"node-a\"}"], 1.0);

    // The status is queried later than the metrics, and counters only increase.
    let status = agent.status();
    let count = |name: &str| series[&format!("{name}{{node=\"node-a\"}}")];
    for (name, now) in [
        ("evenstep_agent_samples_taken_total", &status["samples_taken"]),
        ("evenstep_agent_samples_sent_total", &status["uplink"]["samples_acknowledged"]),
    ] {
        assert!((1.0..=now.as_f64().unwrap()).contains(&count(name)), "{name}: {} {now}", count(name));
    }
    assert!(count("evenstep_node_memory_size_bytes") > count("evenstep_node_memory_available_bytes"));
    let missing = "evenstep_agent_readings_missing_total{node=\"node-a\",source=\"host\",name=\"cpu_busy\"}";
    assert!(series[missing] >= 1.0);

    let (_, text) = agent.get("/metrics");
    if let Some(complaints) = complaints("metrics_are_named_as_documented_and_clean", text.as_str().unwrap())
    {
        assert_eq!(complaints, "");
    }
}

#[test]
fn series_of_a_process_end_with_it() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let agent = Agent::start(&receiver.url(), spool.path(), &["--watch-pid", &child.id().to_string()]);
    let pid = format!("pid=\"{}\"", child.id());
    let is_shown = || agent.metrics().keys().any(|series| series.contains(&pid));
    until("the process has series", || is_shown().then_some(()));
    drop(child.stdin.take());
    child.wait().unwrap();
    until("its series are removed", || (!is_shown()).then_some(()));
}

#[test]
fn an_unreachable_predictor_is_detected() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(|_, _| reject(503)));
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    let up = || agent.metrics().get("evenstep_agent_uplink_up{node=\"node-a\"}").copied();
    assert_eq!(until("the uplink has made an attempt", up), 0.0);
    let series = agent.metrics();
    assert!(series["evenstep_agent_send_failures_total{node=\"node-a\"}"] >= 1.0);
    assert!(series["evenstep_agent_spool_samples{node=\"node-a\"}"] >= 1.0);
}

#[test]
fn scrapers_elsewhere_get_metrics_and_nothing_else() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let agent = Agent::start(&receiver.url(), spool.path(), &["--metrics-listen", "0.0.0.0:0"]);
    let mut address = agent.metrics.unwrap();
    address.set_ip([127, 0, 0, 1].into());
    let (status, text) = agent.get_from(address, "/metrics");
    assert!(status == 200 && text.as_str().unwrap().contains("evenstep_agent_info{"), "{text}");
    assert_eq!(agent.get_from(address, "/healthz"), (200, Value::from("ok\n")));
    for page in ["/sample", "/status", "/"] {
        assert_eq!(agent.get_from(address, page).0, 404, "{page}");
    }
    assert_eq!(Agent::start(&receiver.url(), tempfile::tempdir().unwrap().path(), &[]).metrics, None);

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenstep-agent"));
    command.args(["--listen", "127.0.0.1:0", "--metrics-listen", &taken, "--spool-dir"]).arg(spool.path());
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(said.contains(&format!("--metrics-listen {taken}: ")), "{said}");
}
