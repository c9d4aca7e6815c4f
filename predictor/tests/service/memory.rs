//! The budget for memory: states and responses are removed, and nothing that a client sees changes.

use std::collections::BTreeMap;
use std::thread;

use evenstep_protocol::JobSpec;
use evenstep_tests::Client;
use evenstep_tests::wait::until;
use serde_json::Value;

use crate::support::{Service, allocate_request, allocate_request_with_reports, join_all, metric};

const MIB: f64 = 1048576.0;
const SPEEDS: [f64; 4] = [100.0, 120.0, 150.0, 200.0];

fn used(client: &Client) -> f64 {
    metric(client, "evenstep_job_memory_bytes")
}

/// Trains more jobs than fit into the budget, one after the other. Each response equals the response of a predictor
/// with enough memory, repeated requests return the same bytes, and the memory returns to the budget.
#[test]
fn a_small_budget_changes_no_response() {
    const JOBS: usize = 24;
    const ITERATIONS: u64 = 6;
    let small = Service::start_with(&["--refit-interval-s=86400", "--memory-budget=1MiB"]);
    let large = Service::start();
    let job = |number: usize| format!("job-{number}");
    for client in [&small.client, &large.client] {
        for number in 0..JOBS {
            client.put_job(&job(number), &JobSpec::new(256));
            assert_eq!(join_all(client, &job(number), SPEEDS.len()), 4);
        }
    }
    let in_budget =
        || until("the memory is within the budget", || (used(&small.client) <= MIB).then_some(()));
    let mut seen = BTreeMap::new();
    let mut train = |number: usize, iterations: std::ops::Range<u64>| {
        for iteration in iterations {
            let request = allocate_request_with_reports(&job(number), 4, iteration, &SPEEDS);
            let reply = small.client.allocate(&request);
            assert_eq!(reply.status, 200, "{reply:?}");
            assert_eq!(reply.body, large.client.allocate(&request).body, "{number} {iteration}");
            seen.insert((number, iteration), reply.body);
        }
    };
    (0..JOBS).for_each(|number| train(number, 0..ITERATIONS));
    in_budget();
    // Continues jobs whose states were removed.
    (0..JOBS).for_each(|number| train(number, ITERATIONS..ITERATIONS + 2));
    in_budget();
    assert!(metric(&small.client, "evenstep_job_states_removed_total") > JOBS as f64);
    assert_eq!(metric(&large.client, "evenstep_job_states_removed_total"), 0.0);
    for ((number, iteration), body) in &seen {
        assert_eq!(small.client.allocated(&job(*number), *iteration).body, *body);
        assert_eq!(small.client.allocate(&allocate_request(&job(*number), 4, *iteration)).body, *body);
    }
    in_budget();
}

/// Ranks that request the same iterations at the same time, of jobs that do not fit into the budget together. After the
/// restart, no job is known to be active, so that any state may be removed between two requests.
#[test]
fn an_iteration_has_one_allocation_while_states_are_removed() {
    const JOBS: usize = 12;
    const WORKERS: usize = 24;
    const ITERATIONS: u64 = 3;
    let mut service = Service::start_with(&["--refit-interval-s=86400", "--memory-budget=1MiB"]);
    let job = |number: usize| format!("job-{number}");
    let request = |number: usize, iteration: u64, rank: usize| {
        let speeds: Vec<f64> = (0..WORKERS).map(|worker| 50.0 + (worker * 7 + rank) as f64).collect();
        allocate_request_with_reports(&job(number), WORKERS as u64, iteration, &speeds)
    };
    for number in 0..JOBS {
        service.client.put_job(&job(number), &JobSpec::new(64 * WORKERS as u64));
        join_all(&service.client, &job(number), WORKERS);
        for iteration in 0..ITERATIONS {
            assert_eq!(service.client.allocate(&request(number, iteration, 0)).status, 200);
        }
    }
    service.kill_and_restart();
    let rank = |rank: usize| {
        let client = service.predictor.client();
        let mut seen = Vec::new();
        for number in 0..JOBS {
            let number = (number + rank) % JOBS;
            let reply = client.allocate(&request(number, ITERATIONS, rank));
            assert_eq!(reply.status, 200, "{reply:?}");
            seen.push((number, reply.body));
        }
        seen.sort();
        seen
    };
    let seen: Vec<_> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..4).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(seen.iter().all(|other| *other == seen[0]), "two ranks saw different allocations");
    assert!(metric(&service.client, "evenstep_job_states_removed_total") > 0.0);
}

/// Lists 60 stored jobs after a restart without loading any.
#[test]
fn the_list_of_jobs_loads_none() {
    const JOBS: usize = 60;
    let mut service = Service::start();
    for number in 0..JOBS {
        let job = format!("job-{number:03}");
        service.client.put_job(&job, &JobSpec { per_worker_batch: Some(8), ..JobSpec::new(256) });
        join_all(&service.client, &job, 2);
        for iteration in 0..2 {
            assert_eq!(service.client.allocate(&allocate_request(&job, 2, iteration)).status, 200);
        }
    }
    let before: Value = service.client.get("/v1/jobs").json();
    service.kill_and_restart();
    let after: Value = service.client.get("/v1/jobs").json();
    assert_eq!(after, before);
    let first = &after["jobs"][0];
    assert_eq!((&first["next_iteration"], &first["live_workers"]), (&2.into(), &2.into()));
    assert_eq!(after["jobs"].as_array().unwrap().len(), JOBS);
    assert_eq!(metric(&service.client, "evenstep_jobs_in_memory"), 0.0);
}
