//! A connection during outages, rejections and invalid responses, on a clock that the test sets.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenstep_client::{
    Client, ClientConfig, Clock, Connection, ConnectionBuilder, ErrorKind, Event, Prefetcher, Reconnect,
    Registration, RunStart, shares,
};
use evenstep_protocol::{JobId, JobSpec, JoinRequest, WorkerId, WorkerReport};
use serde_json::json;

use crate::support::{Action, Scripted, json, rejects, responds};

/// A clock that advances only when the test sets it.
#[derive(Debug)]
struct ManualClock(Mutex<Instant>);

impl ManualClock {
    fn advance(&self, duration: Duration) {
        *self.0.lock().unwrap() += duration;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}

struct Run {
    server: Scripted,
    clock: Arc<ManualClock>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Run {
    fn new(script: impl IntoIterator<Item = Action>) -> Self {
        let clock = Arc::new(ManualClock(Mutex::new(Instant::now())));
        Self { server: Scripted::start(script), clock, events: Arc::default() }
    }

    fn registration(&self) -> Registration {
        let config = ClientConfig {
            request_timeout: Duration::from_secs(60),
            clock: self.clock.clone(),
            ..ClientConfig::default()
        };
        let client = Client::new(&self.server.url.parse().unwrap(), JobId::new("job").unwrap(), config);
        Registration::new(client, JobSpec::new(8), vec![JoinRequest::new(worker())])
    }

    /// Returns a builder of a connection of one worker that starts no thread.
    fn builder(&self) -> ConnectionBuilder {
        let events = Arc::clone(&self.events);
        Connection::builder(self.registration())
            .reconnect(Reconnect::Caller)
            .on_event(move |event| events.lock().unwrap().push(event.clone()))
    }

    fn events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }
}

fn worker() -> WorkerId {
    WorkerId::new("node/0").unwrap()
}

fn report(iteration: u64) -> Vec<WorkerReport> {
    vec![WorkerReport::new(worker(), iteration, 8, 0.1)]
}

/// The job does not exist yet.
fn no_job() -> Action {
    rejects(404, "unknown-job")
}

fn known_job(next_iteration: u64, live_workers: u64) -> Action {
    json(
        &json!({"next_iteration": next_iteration, "live_workers": live_workers, "option_of_a_later_version": 1}),
    )
}

fn live(workers: &[&str]) -> Action {
    let workers: Vec<_> = workers.iter().map(|worker| json!({"worker": worker, "state": "live"})).collect();
    json(&json!({"workers": workers}))
}

fn joined(generation: u64, workers: &[&str]) -> Action {
    json(&json!({
        "job_id": "job", "worker": "node/0", "generation": generation, "workers": workers, "next_iteration": 0
    }))
}

fn allocation(worker: &str) -> Action {
    json(&json!({
        "job_id": "job", "generation": 1, "iteration": 0, "global_batch": 8,
        "allocations": [{"worker": worker, "rank": 0, "local_batch": 8, "offset": 0, "gradient_weight": 1.0}],
        "optimizer": {"rule": "dynamic_sgd", "lr_multiplier": 1.0, "momentum_buffer_scale": 1.0, "ramp": null},
        "decision": {"kind": "held", "reason": "r"}
    }))
}

#[test]
fn an_outage_costs_requests_nothing_and_its_reports_are_delivered_late() {
    let run = Run::new([rejects(503, "draining"), rejects(503, "draining")]);
    let mut connection = run.builder().open().unwrap();
    assert!(matches!(run.events()[..], [Event::Unreachable(_)]));
    for iteration in 0..4 {
        connection.backlog().push(iteration, report(iteration));
        assert!(connection.request(iteration + 1, 8, shares).is_none());
    }
    assert_eq!(run.server.heard().len(), 1, "requests do not wait for an unreachable predictor");

    assert_eq!(connection.reconnect(), Some(Duration::from_millis(100)));
    assert_eq!(connection.reconnect(), Some(Duration::from_millis(100)), "the pause is not over yet");
    assert_eq!(run.server.heard().len(), 1);
    run.clock.advance(Duration::from_millis(100));
    for does in [no_job(), responds(), joined(1, &["node/0"]), allocation("node/0"), allocation("node/0")] {
        run.server.does(does);
    }
    run.server.skip();
    assert_eq!(connection.reconnect(), None);
    assert_eq!(run.events(), [Event::Reconnected { generation: 1 }]);
    let heard = run.server.heard();
    assert!(heard[3].starts_with("POST /allocate") && heard[3].contains("\"iteration\":3,"), "{heard:?}");
    let delivered = |body: &str, iteration: u64| {
        body.contains(&format!("{{\"worker\":\"node/0\",\"iteration\":{iteration},"))
    };
    assert_eq!([0, 1, 2, 3].map(|iteration| delivered(&heard[3], iteration)), [true, true, true, false]);

    let allocated = connection.request(4, 8, shares).unwrap();
    assert_eq!(allocated.plan[0].local_batch, 8);
    assert!(delivered(&run.server.heard()[0], 3), "the newest reports travel with the next request");
    assert!(connection.backlog().is_empty() && connection.backlog().lost() == 0);
}

#[test]
fn requests_beyond_the_rate_of_the_token_are_repeated_after_the_pause() {
    let limited = || rejects(429, "limit-requests-per-s");
    let run = Run::new([no_job(), responds(), limited(), limited(), joined(1, &["node/0"])]);
    let started = run.clock.now();
    let connection = run.builder().open().unwrap();
    assert!(run.events().is_empty(), "connected");
    assert_eq!(run.clock.now() - started, Duration::from_secs(2), "retry-after is 1 s");
    assert_eq!(run.server.heard().len(), 5);
    drop(connection);

    let run = Run::new([limited()]);
    run.builder().open().unwrap();
    assert!(matches!(run.events()[..], [Event::Unreachable(_)]), "training starts without the predictor");
    assert_eq!(run.server.heard().len(), 60, "within the time limit");
}

#[test]
fn a_limit_of_jobs_or_workers_ends_a_run_at_its_start() {
    let run = Run::new([no_job(), responds(), rejects(429, "limit-workers")]);
    let error = run.builder().open().unwrap_err();
    assert!(matches!(&error.kind, ErrorKind::Rejected(why) if why.contains("limit-workers")), "{error}");
}

/// A worker that joined the run and died while the predictor was away is unknown to it.
#[test]
fn reports_of_a_worker_that_was_never_registered_do_not_block_reconnection() {
    let run = Run::new([rejects(503, "draining"), rejects(503, "draining")]);
    let mut connection = run.builder().open().unwrap();
    for iteration in 0..3 {
        let mut reports = report(iteration);
        reports.push(WorkerReport::new(WorkerId::new("node/9").unwrap(), iteration, 8, 0.1));
        connection.backlog().push(iteration, reports);
    }
    run.clock.advance(Duration::from_millis(100));
    let rejected = rejects(404, "unknown-worker");
    for does in [no_job(), responds(), joined(1, &["node/0"]), rejected, allocation("node/0")] {
        run.server.does(does);
    }
    run.server.skip();
    assert_eq!(connection.reconnect(), None);
    assert!(connection.is_connected());
    let heard = run.server.heard();
    let delivered = heard.iter().rfind(|request| request.starts_with("POST /allocate")).unwrap();
    assert!(delivered.contains("node/0") && !delivered.contains("node/9"), "{delivered}");
    assert_eq!(connection.backlog().lost(), 2, "of the iterations before the newest");
}

#[test]
fn reports_rejected_three_times_are_dropped_and_counted() {
    let run = Run::new([no_job(), responds(), joined(1, &["node/0"]), rejects(422, "invalid")]);
    let mut connection = run.builder().open().unwrap();
    connection.backlog().push(0, report(0));
    let lost = [1, 2, 3].map(|iteration| {
        assert!(connection.request(iteration, 8, shares).is_none());
        connection.backlog().lost()
    });
    assert_eq!(lost, [0, 0, 1]);
    assert!(
        matches!(run.events()[..], [Event::Rejected { in_a_row: 1, .. }]),
        "one event per hundred rejections"
    );
    assert!(connection.is_connected());
}

#[test]
fn an_allocation_of_other_workers_makes_the_run_register_again() {
    let run = Run::new([
        no_job(),
        responds(),
        joined(1, &["node/0"]),
        allocation("other/0"),
        responds(),
        joined(2, &["node/0"]),
    ]);
    let mut connection = run.builder().open().unwrap();
    assert!(connection.request(0, 8, shares).is_none());
    assert!(
        matches!(&run.events()[..], [Event::Disconnected(error)] if error.to_string().contains("other/0"))
    );
    assert_eq!(connection.reconnect(), None);
    assert_eq!(run.events(), [Event::Reconnected { generation: 2 }]);
}

/// A rejected run changes nothing, not even if another one begins at the same moment.
#[test]
fn a_job_of_another_run_is_not_reused() {
    let lists = live(&["node/0", "other/0"]);
    for (script, changes) in [
        (vec![known_job(20, 0)], vec!["GET"]),
        (vec![known_job(0, 2), lists], vec!["GET", "GET"]),
        (
            vec![no_job(), responds(), joined(1, &["node/0", "other/0"]), joined(2, &["other/0"])],
            vec!["GET", "PUT", "POST", "DELETE"],
        ),
    ] {
        let run = Run::new(script);
        let error = run.builder().open().unwrap_err().to_string();
        assert!(error.starts_with("registering job job failed: "), "{error}");
        assert!(error.contains("other/0") || error.contains("up to iteration 19"), "{error}");
        let heard = run.server.heard();
        let methods: Vec<&str> = heard.iter().filter_map(|request| request.split(' ').next()).collect();
        assert_eq!(methods, changes);
    }
}

#[test]
fn a_rejection_of_the_first_request_ends_the_run() {
    let run = Run::new([no_job(), responds(), joined(1, &["node/0"]), rejects(422, "infeasible")]);
    let mut connection = run.builder().open().unwrap();
    let error = connection.request_first(0, 8, shares).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Infeasible(_)), "{error}");
    assert_eq!(run.events(), []);

    let run = Run::new([no_job(), responds(), joined(1, &["node/0"]), rejects(503, "draining")]);
    let mut connection = run.builder().open().unwrap();
    assert_eq!(connection.request_first(0, 8, shares), Ok(None), "training starts without an allocation");
    assert!(matches!(run.events()[..], [Event::Disconnected(_)]));
}

#[test]
fn a_restarted_run_waits_for_the_leases_of_workers_that_died() {
    let others = live(&["node/0", "node/9"]);
    let accepted = [known_job(3, 0), responds(), joined(2, &["node/0"]), allocation("node/0")];
    let run = Run::new([known_job(3, 2), others].into_iter().chain(accepted));
    let start = RunStart { restarted: true, ..RunStart::default() };
    let builder = Connection::builder(run.registration().starting_at(start)).reconnect(Reconnect::Caller);
    let mut connection = builder.open().unwrap();
    assert!(!connection.is_connected(), "node/9 is still listed");
    assert_eq!(connection.reconnect(), None);
    assert!(connection.is_connected());
}

/// The response to a join lists only the first live workers.
#[test]
fn a_worker_of_another_run_is_found_beyond_the_listed_ones() {
    let joined = json(&json!({
        "job_id": "job", "worker": "node/0", "generation": 1, "live_workers": 3, "workers": ["node/0"], "next_iteration": 0
    }));
    let view = |worker: &str, state: &str| json!({"worker": worker, "state": state, "last_seen_unix_ms": 0, "claims": false});
    for (last, opens) in [(view("node/2", "live"), false), (view("node/2", "left"), true)] {
        let workers = [view("node/0", "live"), last];
        let all = json(&json!({"job_id": "job", "generation": 1, "workers": workers}));
        let run = Run::new([no_job(), responds(), joined.clone(), all, responds()]);
        let opened = Connection::builder(run.registration()).open();
        assert_eq!(opened.is_ok(), opens, "{opened:?}");
        assert!(run.server.heard()[3].starts_with("GET /v1/jobs/job/workers"));
    }
}

#[test]
fn a_restarted_run_keeps_the_allocations_of_its_job() {
    for (restarted, is_accepted) in [(true, true), (false, false)] {
        let run = Run::new([known_job(9, 0), responds(), joined(1, &["node/0"])]);
        let start = RunStart { restarted, ..RunStart::default() };
        let opened = Connection::builder(run.registration().starting_at(start)).open();
        assert_eq!(opened.is_ok(), is_accepted, "{opened:?}");
    }
}

/// Its reports belong to another attempt than the reports of the earlier run.
#[test]
fn a_resumed_run_that_connects_later_requests_its_first_iteration_before_it_delivers_reports() {
    let accepted = [known_job(9, 0), responds(), joined(3, &["node/0"])];
    let lost = [allocation("node/0"), rejects(503, "draining")];
    let again = [responds(), joined(4, &["node/0"]), allocation("node/0")];
    for script in [
        // The predictor is unreachable at first. It is lost again before the reports are delivered.
        Vec::from_iter([rejects(503, "draining")].into_iter().chain(accepted.clone()).chain(lost)),
        // Its first response is lost.
        Vec::from_iter(accepted.into_iter().chain([rejects(503, "draining")]).chain(again)),
    ] {
        let run = Run::new(script);
        let start = RunStart { iteration: 4, resumed: true, ..RunStart::default() };
        let builder = Connection::builder(run.registration().starting_at(start)).reconnect(Reconnect::Caller);
        let mut connection = builder.open().unwrap();
        let _ = connection.request_first(4, 8, shares).unwrap();
        (4..7).for_each(|iteration| connection.backlog().push(iteration, report(iteration)));
        let _ = connection.reconnect();
        let heard = run.server.heard();
        let asked: Vec<&String> = heard.iter().filter(|request| request.contains("/allocate")).collect();
        let begins = asked.iter().take_while(|request| !request.contains("compute_time_s")).last();
        assert!(begins.is_some_and(|request| request.contains("\"iteration\":4,")), "{asked:?}");
        let delivers = asked.last().unwrap();
        assert!(delivers.contains("compute_time_s") && delivers.contains("\"iteration\":6,"), "{asked:?}");
    }
}

#[test]
fn a_predictor_that_starts_again_at_another_address_is_found() {
    let (run, moved) = (
        Run::new([rejects(503, "draining")]),
        Scripted::start([no_job(), responds(), joined(3, &["node/0"])]),
    );
    let found = moved.url.parse().ok();
    let mut connection = run.builder().find_servers(move || found.clone()).open().unwrap();
    assert_eq!((run.server.heard().len(), moved.heard().len()), (1, 0));
    assert_eq!(connection.reconnect(), None);
    assert_eq!((run.server.heard().len(), moved.heard().len()), (0, 3));
    assert!(matches!(run.events()[..], [Event::Unreachable(_), Event::Reconnected { generation: 3 }]));
}

#[test]
fn a_closed_connection_delivers_the_last_reports_and_removes_the_workers() {
    let run = Run::new([no_job(), responds(), joined(1, &["node/0"]), allocation("node/0"), joined(2, &[])]);
    let connection = run.builder().open().unwrap();
    connection.backlog().push(0, report(0));
    let prefetcher = Prefetcher::start(connection, shares);
    prefetcher.finish().unwrap().close(8);
    assert_eq!(run.events(), []);
    let heard = run.server.heard();
    assert!(heard[3].contains("\"iteration\":1,") && heard[3].contains("compute_time_s"), "{heard:?}");
    assert!(heard[4].starts_with("DELETE /v1/jobs/job/workers/node%2F0"), "{heard:?}");
}
