//! Each iteration has one allocation: every rank gets the same bytes, at any time.

use evenstep_protocol::{AllocateResponse, DecisionKind, JobSpec};

use crate::support::{Service, allocate_request, allocate_request_with_reports, join_all, report, worker_id};

#[test]
fn the_same_bytes_again_from_any_rank_and_after_a_crash() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&service.client, "job", 4);
    let speeds = [100.0, 200.0, 200.0, 400.0];
    let mut answers = Vec::new();
    for iteration in 0..40 {
        let request = allocate_request_with_reports("job", generation, iteration, &speeds);
        let answer = service.client.allocate(&request);
        assert_eq!(answer.content_type.as_deref(), Some("application/json"));
        let parsed: AllocateResponse = answer.json();
        assert_eq!((parsed.iteration, parsed.generation), (iteration, generation));
        let others = [request, allocate_request("job", generation, iteration)];
        for again in others.iter().map(|request| service.client.allocate(request)) {
            assert_eq!(again.body, answer.body, "POST of iteration {iteration} again");
        }
        assert_eq!(service.client.allocated("job", iteration).body, answer.body, "GET");
        answers.push(answer.body);
    }
    for round in 0..2 {
        service.kill_and_restart();
        for (iteration, answer) in (0..).zip(&answers) {
            let request = allocate_request_with_reports("job", generation, iteration, &speeds);
            assert_eq!(service.client.allocate(&request).body, *answer, "after crash {round}");
            assert_eq!(service.client.allocated("job", iteration).body, *answer);
        }
    }
    let listed: Vec<AllocateResponse> = service.client.get("/v1/jobs/job/allocations?limit=1000").json();
    let expected: Vec<AllocateResponse> =
        answers.iter().map(|body| serde_json::from_str(body).unwrap()).collect();
    assert_eq!(listed, expected);
}

#[test]
fn measured_speeds_decide_the_shares() {
    let service = Service::start();
    service.client.put_job("job", &JobSpec { profile: false, ..JobSpec::new(90) });
    let generation = join_all(&service.client, "job", 3);
    let mut last = None;
    for iteration in 0..8 {
        let request = allocate_request_with_reports("job", generation, iteration, &[100.0, 200.0, 600.0]);
        let answer: AllocateResponse = service.client.allocate(&request).json();
        if iteration < 3 {
            // The first of two reports is skipped, because caches were cold.
            let cold = answer.decision.kind == DecisionKind::ColdStart;
            assert_eq!(cold, iteration < 2, "{answer:?}");
        }
        last = Some(answer);
    }
    let shares: Vec<u64> = last.unwrap().allocations.iter().map(|share| share.local_batch).collect();
    assert_eq!(shares, [10, 20, 60]);
}

#[test]
fn the_ragged_end_of_an_epoch_is_allocated_completely_and_separately() {
    let service = Service::start();
    let spec = JobSpec { quantum: 8, min_local_batch: Some(8), profile: false, ..JobSpec::new(64) };
    service.client.put_job("job", &spec);
    let generation = join_all(&service.client, "job", 3);
    let batches = |iteration: u64, samples: Option<u64>| -> Vec<u64> {
        let mut request = allocate_request_with_reports("job", generation, iteration, &[100.0, 200.0, 300.0]);
        request.global_batch = samples;
        let answer: AllocateResponse = service.client.allocate(&request).json();
        assert_eq!(answer.global_batch, samples.unwrap_or(64));
        answer.allocations.iter().map(|share| share.local_batch).collect()
    };
    let mut full = Vec::new();
    for iteration in 0..5 {
        full = batches(iteration, None);
    }
    for (iteration, samples) in (5..).zip([61u64, 25, 24, 23, 7, 1]) {
        let ragged = batches(iteration, Some(samples));
        assert_eq!(ragged.iter().sum::<u64>(), samples);
        let odd = ragged.iter().filter(|batch| !batch.is_multiple_of(8)).count();
        assert_eq!(
            odd,
            usize::from(!samples.is_multiple_of(8)),
            "one worker takes the remainder: {ragged:?}"
        );
    }
    assert_eq!(batches(11, None), full, "smaller last batches have no effect on later iterations");
    let mut more = allocate_request("job", generation, 12);
    more.global_batch = Some(65);
    let problem = service.client.allocate(&more).problem(422, "invalid");
    assert!(problem.detail.contains("65") && problem.detail.contains("64"), "{}", problem.detail);
}

#[test]
fn requests_reach_at_most_64_iterations_ahead() {
    let service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&service.client, "job", 2);
    let status = |iteration| service.client.allocate(&allocate_request("job", generation, iteration)).status;
    // A run may begin at any iteration, for example at a checkpoint.
    assert_eq!(status(1000), 200);
    let problem = service.client.allocate(&allocate_request("job", generation, 1066)).problem(422, "invalid");
    assert!(problem.detail.contains("1066") && problem.detail.contains("64"), "{}", problem.detail);
    assert_eq!(service.client.job("job").next_iteration, 1001, "a rejected request has no effect");
    assert_eq!((status(1065), status(1129)), (200, 200));
    assert_eq!(status(1200), 422);
    service.client.allocated("job", 1064).problem(404, "not-answered");
    // After an outage, the reports of all workers show the progress of the training, in one request or in several.
    let late = |workers: &[usize], iteration| {
        let mut late = allocate_request("job", generation, iteration);
        let newest = |worker: &usize| report(*worker, iteration - 10 - *worker as u64, 32, 100.0);
        late.reports = workers.iter().map(newest).collect();
        service.client.allocate(&late)
    };
    assert_eq!(late(&[1, 0], 5000).status, 200);
    let detail = late(&[0], 9000).problem(422, "invalid").detail;
    assert!(detail.contains("9000") && detail.contains("5001"), "{detail}");
    assert_eq!(late(&[1], 9000).status, 200);
    assert_eq!(late(&[0], 20_000).status, 422, "reports before the latest allocation do not count");
    // A run that starts again may begin anywhere.
    join_all(&service.client, "job", 2);
    assert_eq!(status(30_000), 200);
}

/// An accepted report is the newest of its worker. A report from a wrong iteration count would end learning for
/// good.
#[test]
fn a_report_without_an_allocation_changes_nothing() {
    let service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&service.client, "job", 2);
    for iteration in 0..30u64 {
        let far = iteration + [66, 1000, 1 << 24, 1 << 52][iteration as usize % 4];
        let mut wrong = allocate_request("job", generation, far + 1);
        wrong.reports = vec![report(0, far, 32, 1.0), report(0, iteration, 32, 100.0)];
        let before = (service.client.job("job"), service.client.forecast("job"));
        let problem = service.client.allocate(&wrong).problem(422, "invalid");
        assert!(problem.detail.contains(&(far + 1).to_string()), "{}", problem.detail);
        assert_eq!((service.client.job("job"), service.client.forecast("job")), before);
        let right = allocate_request_with_reports("job", generation, iteration, &[100.0, 200.0]);
        assert_eq!(service.client.allocate(&right).status, 200);
    }
    let observations =
        service.client.forecast("job").workers.iter().map(|worker| worker.observations).sum::<u64>();
    assert_eq!(observations, 2 * 28, "the first report is not used");
}

#[test]
fn a_repeated_report_counts_once() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&service.client, "job", 2);
    for iteration in 0..20 {
        let mut request = allocate_request_with_reports("job", generation, iteration, &[100.0, 200.0]);
        request.reports.extend(request.reports.clone());
        assert_eq!(service.client.allocate(&request).status, 200);
    }
    let before = service.client.forecast("job");
    let again = |service: &Service| {
        for iteration in 1..20 {
            // The first report of an iteration counts. This second one has the speeds of the workers swapped.
            let request = allocate_request_with_reports("job", generation, iteration, &[200.0, 100.0]);
            assert_eq!(service.client.allocate(&request).status, 200);
        }
        assert_eq!(service.client.forecast("job"), before);
        let speeds: evenstep_protocol::SpeedsView =
            service.client.get("/v1/jobs/job/speeds?limit=1000").json();
        let reports_of =
            |worker| speeds.speeds.iter().filter(|speed| speed.worker == worker_id(worker)).count();
        assert_eq!([reports_of(0), reports_of(1)], [19, 19]);
    };
    again(&service);
    service.kill_and_restart();
    again(&service);
}

/// The state that retention leaves.
#[test]
fn expired_iterations_are_never_planned_again() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&service.client, "job", 2);
    let answers: Vec<String> = (0..4)
        .map(|iteration| service.client.allocate(&allocate_request("job", generation, iteration)).body)
        .collect();
    service.predictor.process.kill();
    service.store.rows("UPDATE job SET kept_from = 2 RETURNING job_id");
    service.store.rows("DELETE FROM allocation WHERE iteration < 2 RETURNING job_id");
    service.predictor.restart();
    let client = service.predictor.client();
    for iteration in 0..2 {
        for gone in [
            client.allocated("job", iteration),
            client.allocate(&allocate_request("job", generation, iteration)),
        ] {
            let problem = gone.problem(410, "gone");
            assert!(problem.detail.contains("from iteration 2 on"), "{problem:?}");
        }
    }
    for iteration in 2..4 {
        let again = client.allocate(&allocate_request("job", generation, iteration));
        assert_eq!(again.body, answers[iteration as usize]);
    }
    assert_eq!(client.allocate(&allocate_request("job", generation, 4)).status, 200);
}

/// A deletion removes all iterations before the job itself. If it is interrupted in between, the store does
/// not have the progress of the job.
#[test]
fn a_job_whose_deletion_was_interrupted_plans_nothing() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&service.client, "job", 2);
    assert_eq!(service.client.allocate(&allocate_request("job", generation, 0)).status, 200);
    service.predictor.process.kill();
    service.store.rows("UPDATE job SET kept_from = 9223372036854775807 RETURNING job_id");
    service.store.rows("DELETE FROM allocation WHERE true RETURNING job_id");
    service.predictor.restart();
    let client = service.predictor.client();
    for iteration in 0..2 {
        client.allocate(&allocate_request("job", generation, iteration)).problem(410, "gone");
    }
    assert_eq!(client.delete("/v1/jobs/job").status, 204);
    client.put_job("job", &JobSpec::new(64));
    let generation = join_all(&client, "job", 2);
    assert_eq!(
        client.allocate(&allocate_request("job", generation, 0)).status,
        200,
        "a job with the same ID begins at iteration 0"
    );
}

/// More rows than one step of the deletion removes.
#[test]
fn a_deleted_job_leaves_nothing_however_long_it_ran() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(64));
    let generation = join_all(client, "job", 3);
    for round in 0..5 {
        let mut request = allocate_request("job", generation, 5_000 * (round + 1));
        let iterations = 5_000 * round..5_000 * (round + 1);
        request.reports =
            iterations.map(|iteration| report((iteration % 3) as usize, iteration, 16, 100.0)).collect();
        assert_eq!(client.allocate(&request).status, 200);
    }
    assert_eq!(client.delete("/v1/jobs/job").status, 204);
    client.allocated("job", 5_000).problem(404, "unknown-job");
    let left = service.store.rows(
        "SELECT 'report' FROM report UNION ALL SELECT 'allocation' FROM allocation UNION ALL SELECT 'worker' FROM worker",
    );
    assert!(left.is_empty(), "{left:?}");
    client.put_job("job", &JobSpec::new(64));
    let generation = join_all(client, "job", 3);
    assert_eq!(
        client.allocate(&allocate_request("job", generation, 0)).status,
        200,
        "a job with the same ID begins at iteration 0"
    );
}
