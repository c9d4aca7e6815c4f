//! `/metrics`: the values equal the values in the service's views, and series disappear with their subject.

use std::collections::{BTreeMap, BTreeSet};

use evenstep_predictor::clock::Clock;
use evenstep_protocol::{BackgroundSettings, JobSpec, JoinRequest, LiveView, SpeedsView};
use evenstep_tests::Client;
use evenstep_tests::events::Events;
use evenstep_tests::wait::until;

use crate::support::{Service, allocate_request, allocate_request_with_reports, join_all, worker_id};

const NAMES: &str = include_str!("../../../docs/reference/metrics.md");

/// Every series, by its name and labels as written.
fn series(client: &Client) -> BTreeMap<String, f64> {
    let reply = client.get("/metrics");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.content_type.as_deref(), Some("text/plain; version=0.0.4; charset=utf-8"));
    let lines = reply.body.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<(String, f64)> = lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect();
    let count = series.len();
    let series: BTreeMap<String, f64> = series.into_iter().collect();
    assert_eq!(series.len(), count, "a series occurs twice");
    series
}

/// Runs a job of workers with these speeds for a range of iterations.
fn run(client: &Client, job: &str, generation: u64, iterations: std::ops::Range<u64>, speeds: &[f64]) {
    for iteration in iterations {
        let reply = client.allocate(&allocate_request_with_reports(job, generation, iteration, speeds));
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

/// Returns the predicted speeds of an iteration by worker, as `/speeds` and `/metrics` show them.
fn predicted(client: &Client, from: u64, iteration: u64) -> Vec<(Option<f64>, Option<f64>)> {
    let speeds: SpeedsView = client.get(&format!("/v1/jobs/job/speeds?from={from}")).json();
    let series = series(client);
    let shown = |worker: &str| {
        let name = "evenstep_worker_predicted_speed_samples_per_second";
        series.get(&format!("{name}{{job_id=\"job\",worker=\"{worker}\"}}")).copied()
    };
    let points = speeds.speeds.iter().filter(|point| point.iteration == iteration);
    points.map(|point| (point.predicted_samples_per_s, shown(point.worker.as_str()))).collect()
}

#[test]
fn an_iteration_without_an_allocation_has_the_one_before() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(128));
    let generation = join_all(client, "job", 2);
    run(client, "job", generation, 0..20, &[100.0, 150.0]);
    // Iterations 20 and 21 are trained with the shares of 19; then the reports of 21 arrive.
    run(client, "job", generation, 22..23, &[50.0, 151.0]);
    for from in [0, 20, 21] {
        let predicted = predicted(client, from, 21);
        assert_eq!(predicted.len(), 2, "from {from}");
        assert!(
            predicted.iter().all(|(api, metric)| api.is_some() && api == metric),
            "from {from}: {predicted:?}"
        );
    }
}

#[test]
fn predicted_and_actual_are_of_the_same_iteration() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(128));
    let request = JoinRequest { device: Some("a \"fast\" one".into()), ..JoinRequest::new(worker_id(0)) };
    client.post("/v1/jobs/job/workers", &request);
    let generation = client.join("job", worker_id(1).as_str()).generation;
    run(client, "job", generation, 0..20, &[100.0, 150.0]);
    // The next report differs from the prediction.
    run(client, "job", generation, 20..21, &[50.0, 151.0]);
    let series = series(client);
    let speeds: SpeedsView = client.get("/v1/jobs/job/speeds?limit=1&from=19").json();
    assert_eq!(speeds.speeds.len(), 2);
    for point in speeds.speeds {
        let of = |name: &str| {
            let name = format!("evenstep_worker_{name}{{job_id=\"job\",worker=\"{}\"}}", point.worker);
            series.get(&name).copied()
        };
        assert!(point.predicted_samples_per_s.is_some());
        assert_eq!(of("speed_samples_per_second"), point.actual_samples_per_s);
        assert_eq!(of("predicted_speed_samples_per_second"), point.predicted_samples_per_s);
        assert_eq!(of("predicted_speed_samples_per_second_lower"), point.lower_samples_per_s);
        assert_eq!(of("predicted_speed_samples_per_second_upper"), point.upper_samples_per_s);
        assert_eq!(of("compute_time_seconds"), Some(point.compute_time_s));
        assert_eq!(of("samples_total"), Some(20.0 * 64.0));
        assert!((of("barrier_wait_seconds_total").unwrap() - 0.02).abs() < 1e-9);
    }
    assert_eq!(series["evenstep_iteration_duration_seconds_count{job_id=\"job\"}"], 20.0);
    assert_eq!(series["evenstep_job_iteration{job_id=\"job\"}"], 21.0);
    assert_eq!(series["evenstep_job_workers{job_id=\"job\",state=\"live\"}"], 2.0);
    assert_eq!(series["evenstep_worker_membership_changes_total{job_id=\"job\",event=\"joined\"}"], 2.0);
    assert_eq!(series["evenstep_allocate_duration_seconds_count{answer=\"new\"}"], 21.0);
    let info = "evenstep_worker_info{job_id=\"job\",worker=\"node/0\",device=\"a \\\"fast\\\" one\"}";
    assert_eq!(series[info], 1.0, "{series:?}");
    let shares = |worker: &str| {
        series[&format!("evenstep_worker_local_batch_samples{{job_id=\"job\",worker=\"{worker}\"}}")]
    };
    let tail = series["evenstep_job_tail_samples{job_id=\"job\"}"];
    assert_eq!(shares("node/0") + shares("node/1") + tail, 128.0);
}

/// Gain, forecast error and state equal the values of the job's summary.
#[test]
fn totals_equal_the_values_of_the_page() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec { unit: "tokens".into(), ..JobSpec::new(128) });
    let generation = join_all(client, "job", 2);
    let before = series(client);
    let of = |series: &BTreeMap<String, f64>, name: &str| {
        assert!(series.keys().any(|known| known.split('{').next() == Some(name)), "no {name}");
        series
            .iter()
            .filter(|(known, _)| known.split('{').next() == Some(name))
            .map(|(_, value)| value)
            .sum::<f64>()
    };
    assert_eq!(of(&before, "evenstep_job_measured_seconds_total"), 0.0, "rates need a first value");
    assert_eq!(before["evenstep_job_info{job_id=\"job\",unit=\"tokens\"}"], 1.0);
    assert_eq!(before["evenstep_job_state{job_id=\"job\",state=\"starting\"}"], 1.0);
    (0..50).for_each(|iteration| {
        let speeds = [100.0 + iteration as f64, 150.0 - (iteration % 5) as f64];
        run(client, "job", generation, iteration..iteration + 1, &speeds);
    });
    let series = series(client);
    let live: LiveView =
        Events::open(&format!("{}/v1/live", client.url())).next_of(&["jobs"]).unwrap().json();
    let line = &live.jobs[0];
    let gain = of(&series, "evenstep_job_even_shares_seconds_total")
        / of(&series, "evenstep_job_measured_seconds_total");
    assert!((gain - line.gain.unwrap().ratio).abs() < 1e-9, "{gain} {line:?}");
    let lost =
        of(&series, "evenstep_job_waited_seconds_total") / of(&series, "evenstep_job_step_seconds_total");
    assert!((lost - line.waiting_share.unwrap()).abs() < 1e-9, "{lost} {line:?}");
    let error = of(&series, "evenstep_worker_forecast_error_ratio_total")
        / of(&series, "evenstep_worker_forecasts_total");
    assert!((error - line.error_ratio.unwrap()).abs() < 1e-9, "{error} {line:?}");
    assert_eq!(series["evenstep_job_state{job_id=\"job\",state=\"running\"}"], 1.0);
    assert_eq!(of(&series, "evenstep_job_stragglers"), line.slow_workers as f64);
}

#[test]
fn a_slow_worker_is_named_with_the_reason() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(192));
    let generation = join_all(client, "job", 3);
    // Iterations of one second, so that a slow-down lasts long.
    run(client, "job", generation, 0..40, &[64.0, 64.0, 64.0]);
    let is_slow = |series: &BTreeMap<String, f64>| {
        series.keys().any(|name| name.starts_with("evenstep_worker_straggler_speed_ratio{"))
    };
    assert!(!is_slow(&series(client)));
    run(client, "job", generation, 40..130, &[20.0, 64.0, 64.0]);
    let slow = until("the worker is named", || Some(series(client)).filter(is_slow));
    let labels = "{job_id=\"job\",worker=\"node/0\",reason=\"unknown\"}";
    let ratio = slow[&format!("evenstep_worker_straggler_speed_ratio{labels}")];
    assert!((0.2..0.5).contains(&ratio), "{ratio}");
    let since = slow[&format!("evenstep_worker_straggler_since_iteration{labels}")];
    assert!((39.0..60.0).contains(&since), "{since}");
    assert_eq!(slow["evenstep_job_stragglers{job_id=\"job\"}"], 1.0);
    let expected = |worker: &str| {
        slow[&format!("evenstep_worker_expected_speed_ratio{{job_id=\"job\",worker=\"{worker}\"}}")]
    };
    assert_eq!(expected("node/0"), ratio);
    assert!((expected("node/1") - 1.0).abs() < 0.05);
}

#[test]
fn metrics_are_removed_with_their_subject() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(128));
    let generation = join_all(client, "job", 2);
    run(client, "job", generation, 0..3, &[100.0, 150.0]);
    let of = |name: &str| series(client).into_keys().filter(|series| series.contains(name)).count();
    assert!(of("worker=\"node/1\"") > 5);
    client.leave("job", "node/1");
    assert_eq!(of("worker=\"node/1\""), 0);
    assert!(of("worker=\"node/0\"") > 5);
    let departed = "evenstep_job_workers{job_id=\"job\",state=\"departed\"}";
    assert_eq!(series(client)[departed], 1.0);
    assert_eq!(client.delete("/v1/jobs/job").status, 204);
    assert_eq!(of("job_id=\"job\""), 0);
}

#[test]
fn documented_names_and_exposed_names_are_the_same() {
    let service = Service::start_with(&["--refit-interval-s=1"]);
    let client = &service.client;
    client.put_job("job", &JobSpec { background: Some(BackgroundSettings::default()), ..JobSpec::new(128) });
    let generation = join_all(client, "job", 2);
    run(client, "job", generation, 0..20, &[100.0, 150.0]);
    let sample = serde_json::json!({"node": "n", "boot_id": "b", "sequence": 0,
        "samples": [{"at_unix_ms": 1_700_000_000_000_i64}]});
    assert_eq!(client.post("/v1/telemetry", &sample).status, 200);
    let section = NAMES.split("## ").find(|section| section.starts_with("The predictor")).unwrap();
    let mut documented = BTreeSet::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let mut first = "";
        for name in
            row.split('|').nth(1).unwrap().split('`').filter(|part| !part.trim().trim_matches(',').is_empty())
        {
            if name.starts_with('_') {
                documented.insert(format!("{}{name}", first.trim_end_matches("_lower")));
            } else {
                first = name;
                documented.insert(name.to_owned());
            }
        }
    }
    let said: BTreeSet<String> = client
        .get("/metrics")
        .body
        .lines()
        .filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split_once(' ')?.0.to_owned()))
        .filter(|name| !name.starts_with("process_"))
        .collect();
    // Metrics that need longer than this test: fitted networks, a node with a sample within the last day, slow workers, and
    // the ratios that a periodic comparison of workers updates.
    let rare = [
        "evenstep_worker_expected_speed_ratio",
        "evenstep_model_last_refit_timestamp_seconds",
        "evenstep_node_last_sample_timestamp_seconds",
        "evenstep_worker_straggler_speed_ratio",
        "evenstep_worker_straggler_since_iteration",
    ];
    // Those of TLS and of limits are checked in `tls` and `limits`.
    let optional = ["evenstep_tls_", "evenstep_token_", "evenstep_limits_"];
    let is_absent = |name: &&String| {
        rare.contains(&name.as_str()) || optional.iter().any(|start| name.starts_with(start))
    };
    let missing: Vec<&String> = documented.difference(&said).filter(|name| !is_absent(name)).collect();
    assert_eq!(missing, ["process_*"], "documented, but missing");
    assert_eq!(said.difference(&documented).collect::<Vec<_>>(), Vec::<&String>::new(), "not documented");
}

#[test]
fn telemetry_and_requests_are_counted() {
    let service = Service::start();
    let client = &service.client;
    let now = Clock::system().now_unix_ms().cast_unsigned();
    let sample = serde_json::json!({"node": "n", "boot_id": "b", "sequence": 0,
        "samples": [{"at_unix_ms": now}, {"at_unix_ms": now + 1}]});
    assert_eq!(client.post("/v1/telemetry", &sample).status, 200);
    assert_eq!(client.post("/v1/telemetry", &sample).status, 200, "again: no sample is new");
    assert_eq!(client.post_text("/v1/telemetry", "{}").status, 422);
    client.get("/no/such/path");
    client.get("/no/other/path");
    client.allocate(&allocate_request("none", 1, 0));
    let series = series(client);
    assert_eq!(series["evenstep_telemetry_samples_total"], 2.0);
    assert_eq!(series["evenstep_telemetry_rejected_total{reason=\"invalid\"}"], 1.0);
    assert_eq!(series["evenstep_telemetry_rejected_total{reason=\"busy\"}"], 0.0);
    assert_eq!(series["evenstep_http_requests_total{route=\"unknown\",status=\"4xx\"}"], 2.0);
    assert_eq!(series["evenstep_http_requests_total{route=\"/v1/telemetry\",status=\"2xx\"}"], 2.0);
    assert_eq!(series["evenstep_allocate_duration_seconds_count{answer=\"refused\"}"], 1.0);
    let heard = series["evenstep_node_last_sample_timestamp_seconds{node=\"n\"}"];
    assert!((heard - (now + 1) as f64 / 1e3).abs() < 1e-3, "{heard}");
    assert!(series["evenstep_store_commit_duration_seconds_count"] >= 1.0);
    assert!(series["process_resident_memory_bytes"] > 1e6);
}
