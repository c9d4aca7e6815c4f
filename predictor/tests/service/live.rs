//! Live streams, history and log of the page, and authorization of overrides.

use evenstep_predictor::clock::Clock;
use evenstep_protocol::{
    HistoryView, JobSpec, JobState, JobSummary, LiveView, LogEntry, LogKind, LogView, OperatorView,
    SpeedsView, StepView, SummaryView, WorkerOverride,
};
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Events};

use crate::support::{Service, allocate_request_with_reports, join_all};

const SPEEDS: [f64; 2] = [100.0, 150.0];

/// Requests an iteration, and reports the one before.
fn step(client: &Client, generation: u64, iteration: u64) {
    let reply = client.allocate(&allocate_request_with_reports("job", generation, iteration, &SPEEDS));
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[test]
fn a_job_is_followed_step_by_step() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(128));
    let generation = join_all(client, "job", 2);
    (0..10).for_each(|iteration| step(client, generation, iteration));
    let mut events = Events::open(&format!("{}/v1/jobs/job/live", service.predictor.url));
    // A new client gets the latest iteration at once, and each new one after it.
    for iteration in 8..14 {
        let seen: StepView = events.next_of(&["step"]).unwrap().json();
        assert_eq!(seen.iteration, iteration);
        assert_eq!(seen.global_batch, 128);
        assert!((seen.step_time_s.unwrap() - (64.0 / SPEEDS[0] + 0.001)).abs() < 1e-9, "{seen:?}");
        for (worker, speed) in seen.workers.iter().zip(SPEEDS) {
            assert!((worker.actual_samples_per_s.unwrap() - speed).abs() < 1e-9, "{worker:?}");
            assert!((worker.predicted_samples_per_s.unwrap() / speed - 1.0).abs() < 0.05, "{worker:?}");
            assert_eq!(worker.samples, Some(64));
        }
        step(client, generation, iteration + 2);
    }
    let pin = WorkerOverride { pinned_local_batch: Some(32), ..WorkerOverride::default() };
    assert_eq!(client.put("/v1/jobs/job/workers/node%2F1/override", &pin).status, 204);
    let mut entry = |kind: LogKind| {
        let entries = std::iter::from_fn(|| events.next_of(&["log"]));
        entries.map(|event| event.json::<LogEntry>()).find(|entry| entry.kind == kind).unwrap()
    };
    assert_eq!(entry(LogKind::Override).text, "node/1 is overridden by an operator: pinned to 32");
    client.leave("job", "node/1");
    assert_eq!(entry(LogKind::Left).text, "node/1 left");
    client.join("job", "node/1");
    events.next_of(&["changed"]).unwrap();
    assert_eq!(client.delete("/v1/jobs/job").status, 204);
    events.next_of(&["gone"]).unwrap();
    assert_eq!(events.next(), None, "no event follows the end");
}

#[test]
fn the_frame_shows_every_part() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(128));
    let generation = join_all(&service.client, "job", 2);
    (0..10).for_each(|iteration| step(&service.client, generation, iteration));
    let now = Clock::system().now_unix_ms().cast_unsigned();
    let sample =
        serde_json::json!({"node": "n", "boot_id": "b", "sequence": 0, "samples": [{"at_unix_ms": now}]});
    assert_eq!(service.client.post("/v1/telemetry", &sample).status, 200);
    let glance = |service: &Service| -> LiveView {
        Events::open(&format!("{}/v1/live", service.predictor.url)).next_of(&["jobs"]).unwrap().json()
    };
    let seen = glance(&service);
    let job = &seen.jobs[0];
    assert_eq!((job.job_id.as_str(), job.live_workers, job.iteration), ("job", 2, Some(8)));
    assert!((job.step_time_s.unwrap() - 0.641).abs() < 1e-9, "{job:?}");
    assert!((job.samples_per_s.unwrap() - 128.0 / 0.641).abs() < 1e-6, "{job:?}");
    assert_eq!((seen.nodes[0].node.as_str(), seen.nodes[0].at_unix_ms), ("n", now as i64));
    // The store also has the state of jobs that are not in memory, and the times of nodes' samples.
    let before = job.clone();
    service.kill_and_restart();
    let seen = glance(&service);
    assert_eq!(seen.nodes.len(), 1);
    let job = &seen.jobs[0];
    assert_eq!((job.state, job.live_workers, job.iteration), (Some(JobState::Running), 2, Some(8)));
    assert_eq!(job.created_unix_ms, before.created_unix_ms);
    // Reports that arrive in the same millisecond are stored one after the other.
    assert!((job.at_unix_ms.unwrap() - before.at_unix_ms.unwrap()).abs() < 100, "{job:?}");
    assert_eq!(job.reason, before.reason);
    // Statistics are read from the history in the background.
    let restored = until("statistics of the job", || {
        Some(glance(&service).jobs.remove(0)).filter(|job| job.step_time_s.is_some())
    });
    let close = |one: Option<f64>, other: Option<f64>| (one.unwrap() / other.unwrap() - 1.0).abs() < 1e-3;
    assert!(close(restored.step_time_s, before.step_time_s), "{restored:?}");
    assert!(close(restored.samples_per_s, before.samples_per_s), "{restored:?}");
    assert!(close(restored.waiting_share, before.waiting_share), "{restored:?}");
    assert!(close(restored.trained_s, before.trained_s), "{restored:?}");
    assert!(close(restored.time_lost_s, before.time_lost_s), "{restored:?}");
    // All workers leave: the job is finished, also after another restart.
    ["node/0", "node/1"].iter().for_each(|worker| drop(service.client.leave("job", worker)));
    let finished = |job: &JobSummary| {
        assert_eq!(
            (job.state, job.state_reason.as_deref()),
            (Some(JobState::Finished), Some("all 2 workers left"))
        );
        assert!(job.state_since_unix_ms >= job.at_unix_ms, "{job:?}");
    };
    // A new stream begins with a summary that is up to a second old.
    let ended = until("the end of the job", || {
        Some(glance(&service).jobs.remove(0)).filter(|job| job.state == Some(JobState::Finished))
    });
    finished(&ended);
    service.kill_and_restart();
    finished(&glance(&service).jobs[0]);
    assert_eq!(service.client.job("job").state, JobState::Finished);
}

#[test]
fn streams_end_with_the_service() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(128));
    let mut streams = ["/v1/live", "/v1/jobs/job/live"]
        .map(|path| Events::open(&format!("{}{path}", service.predictor.url)));
    service.predictor.process.terminate();
    for stream in &mut streams {
        while stream.next().is_some() {}
    }
    assert!(service.predictor.process.wait().success());
}

#[test]
fn history_is_the_past_thinned_out() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(128));
    let generation = join_all(&service.client, "job", 2);
    (0..101).for_each(|iteration| step(&service.client, generation, iteration));
    service.client.join("job", "node/late");
    service.kill_and_restart();
    let client = &service.client;
    let history: HistoryView = client.get("/v1/jobs/job/history?since_s=3600&points=11").json();
    assert_eq!((history.every, history.iterations.len()), (10, 11));
    assert!(history.iterations.iter().all(|iteration| iteration % 10 == 0));
    assert_eq!(history.workers.len(), 2);
    let speeds: SpeedsView = client.get("/v1/jobs/job/speeds?from=50&limit=1").json();
    for (worker, point) in history.workers.iter().zip(&speeds.speeds) {
        assert_eq!(worker.worker, point.worker);
        let close = |seen: Option<f64>, exact: Option<f64>| match (seen, exact) {
            (Some(seen), Some(exact)) => assert!((seen / exact - 1.0).abs() < 1e-3, "{seen} {exact}"),
            other => assert_eq!(other.0, other.1),
        };
        close(worker.actual_samples_per_s[5], point.actual_samples_per_s);
        close(worker.predicted_samples_per_s[5], point.predicted_samples_per_s);
        close(worker.upper_samples_per_s[5], point.upper_samples_per_s);
        // Requested, and not yet reported.
        assert_eq!(worker.actual_samples_per_s[10], None);
        assert_eq!(worker.local_batch.len(), 11);
    }
    let whole: HistoryView = client.get("/v1/jobs/job/history?points=2000").json();
    assert_eq!((whole.every, whole.iterations.len()), (1, 101));
    // A part of the past: from the time of one iteration to the time of another.
    let (from, until) = (whole.at_unix_ms[20], whole.at_unix_ms[60]);
    let part = format!("/v1/jobs/job/history?points=2000&from_unix_ms={from}&until_unix_ms={until}");
    let part: HistoryView = client.get(&part).json();
    assert!(part.at_unix_ms.iter().all(|at| (from..until).contains(at)), "{part:?}");
    assert!(part.iterations.contains(&20) && !part.iterations.contains(&60), "{part:?}");
    for wrong in ["since_s=0", "points=0", "points=2001", "since=1"] {
        assert_eq!(client.get(&format!("/v1/jobs/job/history?{wrong}")).status / 100, 4, "{wrong}");
    }
    client.put_job("idle", &JobSpec::new(2));
    let empty: HistoryView = client.get("/v1/jobs/idle/history").json();
    assert!(empty.iterations.is_empty() && empty.workers.is_empty());
}

/// A client that exchanges rarely reports other iterations than those that it requests.
#[test]
fn history_and_summary_have_iterations_that_were_reported_and_not_requested() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(128));
    let generation = join_all(client, "job", 2);
    for requested in (0..800).step_by(13) {
        let mut request = allocate_request_with_reports("job", generation, requested, &SPEEDS);
        request.reports.iter_mut().for_each(|report| report.iteration = requested.saturating_sub(5));
        if requested == 0 {
            request.reports.clear();
        }
        assert_eq!(client.allocate(&request).status, 200);
    }
    let history: HistoryView = client.get("/v1/jobs/job/history?points=40").json();
    assert_eq!(history.every, 20);
    // Those of 8, 21, 34, .. that are the first from a multiple of 20 on.
    assert_eq!(history.iterations[..4], [8, 21, 47, 60]);
    let last = history.iterations.len() - 1;
    assert!(history.step_time_s[..last].iter().all(Option::is_some), "{history:?}");
    assert!(history.workers.iter().all(|worker| worker.local_batch.iter().all(Option::is_some)));
    let summary: SummaryView = client.get("/v1/jobs/job/summary").json();
    assert_eq!((summary.iterations, summary.lines.len()), (789, 3));
    let gain = summary.gain.unwrap();
    assert!(gain.lower <= gain.ratio && gain.ratio <= gain.upper, "{gain:?}");
    assert_eq!(summary.slow[0].worker.as_str(), "node/0");
    assert!((summary.slow[0].speed_ratio - SPEEDS[0] / SPEEDS[1]).abs() < 1e-3, "{summary:?}");
    assert_eq!(client.get("/v1/jobs/unknown/summary").status, 404);
}

#[test]
fn the_log_has_changes_and_no_steps() {
    let mut service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(128));
    let generation = join_all(client, "job", 2);
    (0..30).for_each(|iteration| step(client, generation, iteration));
    let log: LogView = client.get("/v1/jobs/job/log").json();
    let of = |kind: LogKind| log.entries.iter().filter(|entry| entry.kind == kind).count();
    assert_eq!(of(LogKind::Joined), 2);
    let reallocated = of(LogKind::Reallocated);
    assert!((1..10).contains(&reallocated), "of 30 iterations, only changes are logged: {log:?}");
    // Changes of workers are also known after a restart.
    service.kill_and_restart();
    let restored: LogView = service.client.get("/v1/jobs/job/log").json();
    let joined: Vec<&str> = restored.entries.iter().map(|entry| entry.text.as_str()).collect();
    assert_eq!(joined, ["node/0 joined", "node/1 joined"]);
    let client = &service.client;
    assert_eq!(client.get("/v1/jobs/none/log").status, 404);
}

#[test]
fn an_operator_shows_the_token() {
    let token = "a-token-of-ours";
    let service = Service::start_with(&["--refit-interval-s=86400", &format!("--operator-token={token}")]);
    service.client.put_job("job", &JobSpec::new(128));
    join_all(&service.client, "job", 2);
    let pin = WorkerOverride { pinned_local_batch: Some(32), ..WorkerOverride::default() };
    let path = "/v1/jobs/job/workers/node%2F1/override";
    let wrong = ["another-token", "a-token-of-our", "a-token-of-ourss", ""];
    let strangers = wrong.map(|token| service.client.clone().with_token(token));
    for stranger in [service.client.clone()].iter().chain(&strangers) {
        assert_eq!(
            stranger.get("/v1/operator").json::<OperatorView>(),
            OperatorView { token_set: true, allowed: false }
        );
        stranger.put(path, &pin).problem(401, "not-operator");
        stranger.delete(path).problem(401, "not-operator");
    }
    let operator = service.client.clone().with_token(token);
    assert_eq!(
        operator.get("/v1/operator").json::<OperatorView>(),
        OperatorView { token_set: true, allowed: true }
    );
    assert_eq!(operator.put(path, &pin).status, 204);
    assert_eq!(operator.delete(path).status, 204);
    // Reading needs no token.
    assert_eq!(service.client.get("/v1/jobs/job").status, 200);

    let open = Service::start();
    assert_eq!(
        open.client.get("/v1/operator").json::<OperatorView>(),
        OperatorView { token_set: false, allowed: true }
    );
}
