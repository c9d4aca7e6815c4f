//! Expired leases, with a clock that the test controls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evenstep_predictor::app::App;
use evenstep_predictor::clock::{Clock, ManualClock};
use evenstep_predictor::config::Config;
use evenstep_protocol::{
    AllocateResponse, HistoryView, JobSpec, JobState, JobView, JoinRequest, WorkerState, WorkersView,
};
use evenstep_server::config::defaults;
use evenstep_tests::postgres::Database;
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Store};
use tokio::runtime::Runtime;

use crate::support::{
    Service, allocate_request, allocate_request_with_reports, join_all, metric, report, worker_id,
};

/// Lease of the predictor itself. No test reaches its first renewal by the time of the machine.
const LEASE_S: f64 = 300.0;

/// A service inside this process, with a manual clock. Its store outlives it.
struct ManualClockService {
    _runtime: Runtime,
    client: Client,
    clock: Arc<ManualClock>,
}

fn serve(store: &Store, now_unix_ms: i64) -> ManualClockService {
    serve_with(store, now_unix_ms, defaults().unwrap())
}

fn serve_with(store: &Store, now_unix_ms: i64, config: Config) -> ManualClockService {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config {
        listen,
        url: Some("http://predictor.test".into()),
        store: store.address(),
        lease_s: LEASE_S,
        ..config
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (clock, handle) = Clock::manual(now_unix_ms);
    let app = runtime.block_on(App::open(&config, clock)).unwrap();
    let client = Client::new(&format!("http://{}", app.address())).while_loading();
    runtime.spawn(app.serve(std::future::pending()));
    ManualClockService { _runtime: runtime, client, clock: handle }
}

impl ManualClockService {
    /// Advances the clock while the service runs: it checks the leases at least every 400 ms.
    fn pass(&self, mut ms: i64) {
        while ms > 0 {
            self.clock.advance(ms.min(400));
            self.states();
            ms -= 400;
        }
    }

    /// Advances the clock at once, as if the service had been stopped meanwhile.
    fn stop_for(&self, ms: i64) {
        self.clock.advance(ms);
    }

    fn states(&self) -> Vec<WorkerState> {
        let view: WorkersView = self.client.get("/v1/jobs/job/workers").json();
        view.workers.iter().map(|worker| worker.state).collect()
    }
}

#[test]
fn only_silence_beyond_the_lease_removes_a_worker() {
    let store = Store::fresh();
    let service = serve(&store, 1_000_000);
    service.client.put_job("job", &JobSpec { lease_s: 10.0, ..JobSpec::new(60) });
    assert_eq!(join_all(&service.client, "job", 3), 3);
    let first = service.client.allocate(&allocate_request("job", 3, 0)).body;
    service.pass(10_000);
    assert_eq!(service.states(), [WorkerState::Live; 3], "a lease is not expired at its exact end");
    // Worker 0 reports and worker 1 joins again; worker 2 sends nothing.
    let mut request = allocate_request("job", 3, 1);
    request.reports = vec![report(0, 0, 20, 100.0)];
    assert_eq!(service.client.allocate(&request).status, 200);
    assert_eq!(service.client.join("job", "node/1").generation, 3);
    service.pass(1);
    let problem = service.client.allocate(&allocate_request("job", 3, 2)).problem(409, "stale-generation");
    assert_eq!(problem.current_generation, Some(4));
    assert_eq!(service.states(), [WorkerState::Live, WorkerState::Live, WorkerState::Expired]);
    let again: AllocateResponse = service.client.allocate(&allocate_request("job", 4, 0)).json();
    assert_eq!(again.allocations.len(), 2, "an allocation for a departed worker is void");
    assert_ne!(service.client.allocated("job", 0).body, first);
    // The worker returns with the last rank.
    let back = service.client.join("job", "node/2");
    assert_eq!((back.generation, back.workers.len()), (5, 3));
}

#[test]
fn leases_do_not_expire_during_an_outage() {
    let store = Store::fresh();
    let service = serve(&store, 1_000_000);
    service.client.put_job("job", &JobSpec { lease_s: 10.0, ..JobSpec::new(60) });
    join_all(&service.client, "job", 2);
    drop(service);
    let service = serve(&store, 2_000_000);
    assert_eq!(service.states(), [WorkerState::Live; 2]);
    service.pass(10_001);
    assert_eq!(service.states(), [WorkerState::Expired; 2]);
    service.client.allocate(&allocate_request("job", 3, 0)).problem(503, "paused");
}

/// Two workers with a lease of 10 s. One of them was silent for 9 s before the pause.
#[test]
fn leases_do_not_expire_while_the_service_is_stopped() {
    let store = Store::fresh();
    let service = serve(&store, 1_000_000);
    service.client.put_job("job", &JobSpec { lease_s: 10.0, ..JobSpec::new(60) });
    assert_eq!(join_all(&service.client, "job", 2), 2);
    service.pass(9000);
    service.client.join("job", "node/1");
    service.stop_for(60_000);
    // The first request after the pause.
    assert_eq!(service.client.allocate(&allocate_request("job", 2, 0)).status, 200);
    assert_eq!(service.states(), [WorkerState::Live; 2]);
    service.pass(10_000);
    assert_eq!(service.states(), [WorkerState::Live; 2], "a full lease");
    service.pass(1);
    assert_eq!(service.states(), [WorkerState::Expired; 2]);
}

/// A job whose state is removed from memory because another job uses the budget: its leases neither start again when
/// it is loaded, nor end early.
#[test]
fn leases_continue_while_the_state_is_not_in_memory() {
    let store = Store::fresh();
    let config = Config { memory_budget: 1 << 20, ..defaults().unwrap() };
    let service = serve_with(&store, 1_000_000, config);
    service.client.put_job("job", &JobSpec { lease_s: 10.0, ..JobSpec::new(60) });
    assert_eq!(join_all(&service.client, "job", 2), 2);
    service.client.put_job("large", &JobSpec { lease_s: 100.0, ..JobSpec::new(4096) });
    let generation = join_all(&service.client, "large", 40);
    for iteration in 0..3 {
        let request = allocate_request_with_reports("large", generation, iteration, &[100.0; 40]);
        assert_eq!(service.client.allocate(&request).status, 200);
    }
    until("the state is removed", || {
        (metric(&service.client, "evenstep_jobs_in_memory") < 2.0).then_some(())
    });
    service.stop_for(4000);
    assert_eq!(service.states(), [WorkerState::Live; 2]);
    service.pass(6000);
    assert_eq!(service.states(), [WorkerState::Live; 2], "10 s after they joined");
    service.pass(1);
    assert_eq!(service.states(), [WorkerState::Expired; 2]);
}

/// A real process that is stopped for longer than the lease.
#[test]
#[expect(clippy::disallowed_methods, reason = "the lease of a real process has to pass")]
fn leases_do_not_expire_while_the_process_is_stopped() {
    let service = Service::start();
    let lease = Duration::from_secs(2);
    service.client.put_job("job", &JobSpec { lease_s: lease.as_secs_f64(), ..JobSpec::new(60) });
    assert_eq!(join_all(&service.client, "job", 2), 2);
    service.predictor.process.stop();
    std::thread::sleep(2 * lease);
    service.predictor.process.go_on();
    assert_eq!(service.client.allocate(&allocate_request("job", 2, 0)).status, 200);
    let expired = || {
        let view: WorkersView = service.client.get("/v1/jobs/job/workers").json();
        view.workers.iter().all(|worker| worker.state == WorkerState::Expired).then_some(())
    };
    until("workers without messages expire", expired);
}

/// The lease of the predictor itself, on a database that others could use. No renewal is due during the test.
#[test]
fn a_predictor_that_was_suspended_serves_nothing_from_memory() {
    let name = "leases::a_predictor_that_was_suspended_serves_nothing_from_memory";
    let Some(database) = Database::shared(name) else { return };
    let store = Store::Postgres(database);
    let service = serve(&store, 1_000_000);
    service.client.put_job("job", &JobSpec::new(60));
    join_all(&service.client, "job", 1);
    assert_eq!(service.client.allocate(&allocate_request("job", 1, 0)).status, 200);
    assert_eq!(service.client.allocated("job", 0).status, 200);
    service.stop_for(LEASE_S as i64 * 1000);
    service.client.allocated("job", 0).problem(503, "unavailable");
    service.client.allocate(&allocate_request("job", 1, 0)).problem(503, "unavailable");
}

#[test]
fn a_flapping_worker_has_to_wait() {
    let store = Store::fresh();
    let service = serve(&store, 1_000_000);
    service.client.put_job("job", &JobSpec::new(60));
    for _ in 0..10 {
        service.client.join("job", "node/0");
        service.client.leave("job", "node/0");
        service.pass(1000);
    }
    let again = JoinRequest::new(worker_id(0));
    let reply = service.client.post("/v1/jobs/job/workers", &again);
    let problem = reply.problem(503, "cooling-down");
    assert_eq!(problem.retry_after_s, Some(59));
    // A new process knows the earlier departures.
    drop(service);
    let service = serve(&store, 1_010_000);
    service.client.post("/v1/jobs/job/workers", &again).problem(503, "cooling-down");
    service.pass(59_000);
    assert_eq!(service.client.join("job", "node/0").workers.len(), 1);
}

/// The clock of the machine was wrong at the start, and is set right while workers train.
#[test]
fn a_correction_of_the_clock_changes_stored_times_and_no_lease() {
    const DAY_MS: i64 = 86_400_000;
    for days in [-30, -1, 1, 30] {
        let (store, start) = (Store::fresh(), 100 * DAY_MS);
        let service = serve(&store, start);
        service.client.put_job("job", &JobSpec { lease_s: 10.0, ..JobSpec::new(60) });
        assert_eq!(join_all(&service.client, "job", 2), 2);
        service.client.allocate(&allocate_request("job", 2, 0));
        service.clock.correct(days * DAY_MS);
        service.pass(9000);
        let now = start + days * DAY_MS + 9000;
        let request = allocate_request_with_reports("job", 2, 1, &[100.0; 2]);
        assert_eq!(service.client.allocate(&request).status, 200);
        let history: HistoryView = service.client.get("/v1/jobs/job/history").json();
        assert_eq!(history.at_unix_ms.last(), Some(&now), "{days} days");
        let view: JobView = service.client.get("/v1/jobs/job").json();
        assert_eq!(view.state, JobState::Running);
        service.pass(10_000);
        let view: WorkersView = service.client.get("/v1/jobs/job/workers").json();
        assert_eq!(view.workers.iter().map(|w| w.last_seen_unix_ms).collect::<Vec<_>>(), [now; 2]);
        assert_eq!(service.states(), [WorkerState::Live; 2], "{days} days");
        service.pass(1);
        assert_eq!(service.states(), [WorkerState::Expired; 2], "{days} days");
    }
}

#[test]
fn a_clock_set_back_neither_ends_leases_nor_delays_requests() {
    const DAY_MS: i64 = 86_400_000;
    let store = Store::fresh();
    let service = serve(&store, 10 * DAY_MS);
    service.client.put_job("job", &JobSpec { lease_s: 10.0, ..JobSpec::new(60) });
    assert_eq!(join_all(&service.client, "job", 3), 3);
    for _ in 0..10 {
        service.client.join("job", "node/3");
        service.client.leave("job", "node/3");
    }
    let answer = service.client.allocate(&allocate_request("job", 23, 0)).body;
    drop(service);
    // All stored times are one day ahead.
    let service = serve(&store, 9 * DAY_MS);
    let (live, left) = (WorkerState::Live, WorkerState::Left);
    assert_eq!(service.states(), [live, live, live, left]);
    assert_eq!(service.client.allocated("job", 0).body, answer);
    let again = JoinRequest::new(worker_id(3));
    let reply = service.client.post("/v1/jobs/job/workers", &again);
    assert_eq!(reply.problem(503, "cooling-down").retry_after_s, Some(60), "at most the cooldown");
    service.pass(10_001);
    assert_eq!(service.states(), [WorkerState::Expired, WorkerState::Expired, WorkerState::Expired, left]);
    service.pass(50_000);
    assert_eq!(service.client.join("job", "node/3").workers.len(), 1);
}
