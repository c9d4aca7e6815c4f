//! Workers that join and leave.

use evenstep_protocol::{
    AllocateResponse, JobSpec, JobState, JoinRequest, JoinResponse, LearningRateRule, WorkerOverride,
    WorkerState, WorkersView,
};

use crate::support::{Service, allocate_request, allocate_request_with_reports, join_all, report, worker_id};

fn ranks(answer: &JoinResponse) -> Vec<&str> {
    answer.workers.iter().map(evenstep_protocol::WorkerId::as_str).collect()
}

#[test]
fn a_join_keeps_allocations_and_a_departure_voids_those_that_name_the_worker() {
    let mut service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(60));
    assert_eq!(join_all(client, "job", 2), 2);
    let answered: Vec<String> =
        (0..4).map(|iteration| client.allocate(&allocate_request("job", 2, iteration)).body).collect();

    let joined = client.join("job", "node/2");
    assert_eq!((joined.generation, joined.next_iteration), (3, 4));
    assert_eq!(ranks(&joined), ["node/0", "node/1", "node/2"]);
    assert_eq!(client.join("job", "node/2"), joined, "joining again has no effect");
    let problem = client.allocate(&allocate_request("job", 2, 3)).problem(409, "stale-generation");
    assert_eq!(problem.current_generation, Some(3));
    for (iteration, answer) in (0..).zip(&answered) {
        assert_eq!(
            client.allocate(&allocate_request("job", 3, iteration)).body,
            *answer,
            "all its workers are still live"
        );
    }
    let with_three = client.allocate(&allocate_request("job", 3, 4));
    assert_eq!(with_three.json::<AllocateResponse>().allocations.len(), 3);

    let left = client.leave("job", "node/0");
    assert_eq!((left.generation, ranks(&left)), (4, vec!["node/1", "node/2"]));
    assert_eq!(client.leave("job", "node/0"), left, "leaving again has no effect");
    client.allocate(&allocate_request("job", 3, 4)).problem(409, "stale-generation");
    let replanned = client.allocate(&allocate_request("job", 4, 4));
    let parsed: AllocateResponse = replanned.json();
    assert_eq!((parsed.generation, parsed.allocations.len()), (4, 2));
    assert_eq!(parsed.allocations[0].worker.as_str(), "node/1", "ranks move up");
    assert_eq!(client.allocated("job", 4).body, replanned.body);

    service.kill_and_restart();
    let client = &service.client;
    assert_eq!(client.allocate(&allocate_request("job", 4, 4)).body, replanned.body);
    assert_eq!(client.allocated("job", 4).body, replanned.body);
    let back = client.join("job", "node/0");
    assert_eq!((back.generation, ranks(&back)), (5, vec!["node/1", "node/2", "node/0"]));
    assert_eq!(client.allocate(&allocate_request("job", 5, 4)).body, replanned.body);
    let states: Vec<WorkerState> = client
        .get("/v1/jobs/job/workers")
        .json::<WorkersView>()
        .workers
        .iter()
        .map(|worker| worker.state)
        .collect();
    assert_eq!(states, [WorkerState::Live; 3]);
}

/// A default floor yields, and a floor in the job options does not.
#[test]
fn a_join_that_would_stop_the_job_is_rejected_and_changes_nothing() {
    let service = Service::start();
    let client = &service.client;
    let join = |job: &str, worker| {
        let request = JoinRequest::new(worker_id(worker));
        client.post(&format!("/v1/jobs/{job}/workers"), &request)
    };
    let wish = JobSpec { quantum: 8, ..JobSpec::new(32) };
    for (job, spec, rule) in [
        ("wish", wish.clone(), None),
        (
            "rule",
            JobSpec { min_local_batch: Some(8), ..wish.clone() },
            Some("8 of worker node/4 (min_local_batch of the job)"),
        ),
        ("sizes", JobSpec { allowed_sizes: vec![8, 16], ..wish }, Some("sizes [8, 16]")),
    ] {
        client.put_job(job, &spec);
        let mut generation = join_all(client, job, 4);
        assert_eq!(client.allocate(&allocate_request(job, generation, 0)).status, 200);
        let seen = || ["", "/workers", "/log"].map(|view| client.get(&format!("/v1/jobs/{job}{view}")).body);
        let before = seen();
        let joined = join(job, 4);
        match rule {
            None => generation = joined.json::<JoinResponse>().generation,
            Some(rule) => {
                let detail = joined.problem(409, "conflict").detail;
                assert!(detail.contains("32 samples over 5 workers") && detail.contains(rule), "{detail}");
                assert_eq!(seen(), before);
                assert_eq!(join(job, 3).status, 200, "a live worker renews its lease");
            }
        }
        let answer: AllocateResponse = client.allocate(&allocate_request(job, generation, 1)).json();
        assert_eq!(answer.allocations.iter().map(|share| share.local_batch).sum::<u64>(), 32);
    }
    // An override is a change of the same kind.
    let floor = WorkerOverride { min_local_batch: Some(16), ..WorkerOverride::default() };
    let path = "/v1/jobs/rule/workers/node%2F0/override";
    client.put(path, &floor).problem(409, "conflict");
    // A departure cannot be rejected. The error names the rule.
    client.put_job("caps", &JobSpec { max_local_batch: Some(16), ..JobSpec::new(32) });
    let generation = join_all(client, "caps", 2);
    assert_eq!(client.allocate(&allocate_request("caps", generation, 0)).status, 200);
    client.leave("caps", "node/0");
    let detail =
        client.allocate(&allocate_request("caps", generation + 1, 1)).problem(422, "infeasible").detail;
    assert!(detail.contains("smallest cap is 16 of worker node/1 (max_local_batch of the job)"), "{detail}");
    assert_eq!(join("caps", 0).status, 200, "it mends the job");
    assert_eq!(client.allocate(&allocate_request("caps", generation + 2, 1)).status, 200);
}

#[test]
fn a_void_allocation_is_not_returned() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(60));
    join_all(&service.client, "job", 2);
    let first = service.client.allocate(&allocate_request("job", 2, 0)).body;
    assert_eq!(service.client.allocated("job", 0).body, first);
    service.client.leave("job", "node/1");
    for _ in 0..2 {
        let problem = service.client.allocated("job", 0).problem(409, "stale-generation");
        assert_eq!(problem.current_generation, Some(3));
        service.kill_and_restart();
    }
    let again = service.client.allocate(&allocate_request("job", 3, 0)).body;
    assert_eq!(service.client.allocated("job", 0).body, again);
    // No one disagrees with the allocations of a run that ended.
    service.client.leave("job", "node/0");
    assert_eq!(service.client.allocated("job", 0).body, again);
    service.client.join("job", "node/1");
    service.client.allocated("job", 0).problem(409, "stale-generation");
}

/// The responses to n joins do not list n workers each.
#[test]
fn responses_to_joins_have_a_bounded_size() {
    let service = Service::start();
    service.client.put_job("job", &JobSpec::new(6000));
    let joined: Vec<JoinResponse> =
        (0..70).map(|worker| service.client.join("job", worker_id(worker).as_str())).collect();
    for (at, joined) in joined.iter().enumerate() {
        assert_eq!(joined.live_workers, at as u64 + 1);
        assert_eq!(joined.workers.len(), (at + 1).min(JoinResponse::WORKERS_MAX));
    }
    assert_eq!(service.client.get("/v1/jobs/job/workers").json::<WorkersView>().workers.len(), 70);
}

#[test]
fn with_too_few_workers_the_job_is_paused() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec { min_workers: 2, ..JobSpec::new(60) });
    let paused = |generation, state| {
        let refusal = client.allocate(&allocate_request("job", generation, 0));
        assert_eq!(refusal.retry_after.as_deref(), Some("1"));
        assert_eq!(refusal.problem(503, "paused").retry_after_s, Some(1));
        assert_eq!(client.job("job").state, state);
    };
    paused(0, JobState::Starting);
    client.join("job", "node/0");
    paused(1, JobState::Paused);
    client.join("job", "node/1");
    assert_eq!(client.allocate(&allocate_request("job", 2, 0)).status, 200);
    assert_eq!(client.job("job").state, JobState::Starting);
    let reported = allocate_request_with_reports("job", 2, 1, &[1.0, 1.0]);
    assert_eq!(client.allocate(&reported).status, 200);
    let running = client.job("job");
    assert_eq!((running.state, running.state_reason.as_str()), (JobState::Running, "2 workers live"));
    client.leave("job", "node/1");
    paused(3, JobState::Paused);
}

#[test]
fn late_reports_of_departed_workers_are_accepted_and_those_of_unknown_workers_are_not() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(60));
    join_all(client, "job", 2);
    client.allocate(&allocate_request("job", 2, 0));
    client.leave("job", "node/1");
    let mut request = allocate_request("job", 3, 1);
    request.reports = vec![report(1, 0, 30, 100.0)];
    assert_eq!(client.allocate(&request).status, 200);
    request.iteration = 2;
    request.reports = vec![report(0, 1, 30, 100.0), report(9, 1, 30, 100.0)];
    let problem = client.allocate(&request).problem(404, "unknown-worker");
    assert!(problem.detail.contains("node/9"), "{}", problem.detail);
    assert_eq!(client.job("job").next_iteration, 2, "the request had no effect");
}

#[test]
fn a_deleted_job_is_removed_and_its_id_can_be_reused() {
    let mut service = Service::start();
    for _ in 0..2 {
        let client = &service.client;
        assert_eq!(client.put("/v1/jobs/job", &JobSpec::new(60)).status, 201);
        assert_eq!(client.put("/v1/jobs/job", &JobSpec::new(61)).status, 200);
        assert_eq!(join_all(client, "job", 1), 1);
        assert_eq!(client.allocate(&allocate_request("job", 1, 0)).status, 200);
        let other_rule = JobSpec { rule: LearningRateRule::Sqrt, ..JobSpec::new(61) };
        let problem = client.put("/v1/jobs/job", &other_rule).problem(409, "conflict");
        assert!(problem.detail.contains("rule"), "{}", problem.detail);
        assert_eq!(client.delete("/v1/jobs/job").status, 204);
        client.delete("/v1/jobs/job").problem(404, "unknown-job");
        client.allocate(&allocate_request("job", 1, 0)).problem(404, "unknown-job");
        service.kill_and_restart();
        service.client.get("/v1/jobs/job").problem(404, "unknown-job");
    }
}

/// A worker whose own bounds leave it no local batch would stop the job for all.
#[test]
fn bounds_that_leave_a_worker_no_local_batch_are_rejected_when_they_are_set() {
    let service = Service::start();
    let client = &service.client;
    let spec = JobSpec { quantum: 16, ..JobSpec::new(64) };
    client.put_job("job", &spec);
    let generation = join_all(client, "job", 2);
    let names = |reply: evenstep_tests::client::Reply, values: &[&str]| {
        let problem = reply.problem(422, "invalid");
        let named = values.iter().all(|value| problem.detail.contains(value));
        assert!(named, "{values:?}: {}", problem.detail);
    };
    let join = |min_local_batch, max_local_batch| {
        let request = JoinRequest { min_local_batch, max_local_batch, ..JoinRequest::new(worker_id(2)) };
        client.post("/v1/jobs/job/workers", &request)
    };
    names(
        join(None, Some(8)),
        &["node/2", "floor of 16 (quantum", "cap of 8 (max_local_batch of the worker)"],
    );
    names(join(Some(80), None), &["floor of 80 (min_local_batch of the worker)", "cap of 64 (global_batch"]);
    let url = "/v1/jobs/job/workers/node%2F1/override";
    let wanted = WorkerOverride::default();
    let capped = WorkerOverride { max_local_batch: Some(8), ..wanted.clone() };
    names(client.put(url, &capped), &["floor of 16 (quantum", "cap of 8 (max_local_batch of the override)"]);
    let pinned = WorkerOverride { pinned_local_batch: Some(80), ..wanted };
    names(client.put(url, &pinned), &["floor of 80 (pinned_local_batch", "cap of 64 (global_batch"]);
    names(client.put("/v1/jobs/job", &JobSpec { min_workers: 5, ..spec.clone() }), &["80", "64"]);
    let answer = client.allocate(&allocate_request("job", generation, 0));
    assert_eq!(answer.json::<AllocateResponse>().allocations.len(), 2, "the job continues without it");

    // A cap of the worker and a larger quantum contradict each other too.
    assert_eq!(join(None, Some(20)).json::<JoinResponse>().generation, generation + 1);
    names(client.put("/v1/jobs/job", &JobSpec { quantum: 32, ..spec }), &["node/2", "32", "20"]);
    assert_eq!(client.allocate(&allocate_request("job", generation + 1, 1)).status, 200);
}
