//! Influences on an allocation in addition to speed: memory, overrides, sizes, costs, profiles.

use evenstep_protocol::{
    AllocateResponse, CapReason, DecisionKind, JobSpec, JoinRequest, JoinResponse, OomReport, OomResponse,
    StragglerReason, WorkerOverride, WorkerView, WorkersView,
};
use evenstep_tests::Client;

use crate::support::{Service, allocate_request, allocate_request_with_reports, join_all, report, worker_id};

fn batches(answer: &AllocateResponse) -> Vec<u64> {
    answer.allocations.iter().map(|share| share.local_batch).collect()
}

fn workers(client: &Client) -> Vec<WorkerView> {
    client.get("/v1/jobs/job/workers").json::<WorkersView>().workers
}

/// Trains for some iterations at these speeds and returns the last allocation.
fn train(
    client: &Client,
    generation: u64,
    iterations: std::ops::Range<u64>,
    speeds: &[f64],
) -> AllocateResponse {
    let mut last = None;
    for iteration in iterations {
        last = Some(
            client.allocate(&allocate_request_with_reports("job", generation, iteration, speeds)).json(),
        );
    }
    last.unwrap()
}

#[test]
fn out_of_memory_is_remembered_and_planned_again_at_once() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(60));
    let client = &service.client;
    let generation = join_all(client, "job", 2);
    assert_eq!(batches(&client.allocate(&allocate_request("job", generation, 0)).json()), [30, 30]);
    client.allocate(&allocate_request("job", generation, 1));

    let oom = |client: &Client, iteration, local_batch| {
        client.post("/v1/jobs/job/workers/node%2F1/oom", &OomReport { iteration, local_batch })
    };
    let capped: OomResponse = oom(client, 0, 30).json();
    assert_eq!((capped.max_local_batch, capped.generation), (27, generation + 1));
    assert_eq!(oom(client, 0, 30).json::<OomResponse>(), capped, "a repeated report has no effect");
    client.allocate(&allocate_request("job", generation, 0)).problem(409, "stale-generation");
    let again: AllocateResponse = client.allocate(&allocate_request("job", capped.generation, 0)).json();
    assert_eq!((batches(&again), again.generation), (vec![33, 27], capped.generation));

    service.kill_and_restart();
    let client = &service.client;
    assert_eq!(
        client.allocate(&allocate_request("job", capped.generation, 0)).json::<AllocateResponse>(),
        again
    );
    let cap = workers(client)[1].cap.unwrap();
    assert_eq!((cap.max_local_batch, cap.because), (27, CapReason::OutOfMemory));

    // The worker fails again with a smaller batch, until the caps do not allow the global batch.
    let lower: OomResponse = oom(client, 0, 20).json();
    assert_eq!(lower.max_local_batch, 18);
    client.put_job("job", &JobSpec { max_local_batch: Some(40), ..JobSpec::new(60) });
    let problem = client.allocate(&allocate_request("job", lower.generation, 0)).problem(422, "infeasible");
    assert_eq!((problem.global_batch, problem.sum_of_caps), (Some(60), Some(58)));
    // With accumulation, caps only bound a micro-batch.
    let accumulating = JobSpec { max_local_batch: Some(40), accumulation: true, ..JobSpec::new(60) };
    client.put_job("job", &accumulating);
    let answer: AllocateResponse = client.allocate(&allocate_request("job", lower.generation, 0)).json();
    assert_eq!(batches(&answer), [30, 30]);
    let micro: Vec<Option<u64>> = answer.allocations.iter().map(|share| share.micro_batch).collect();
    assert_eq!(micro, [None, Some(18)]);

    oom(client, 5, 20).problem(422, "invalid");
    oom(client, 0, 1).problem(422, "invalid");
    client
        .post("/v1/jobs/job/workers/node%2F9/oom", &OomReport { iteration: 0, local_batch: 9 })
        .problem(404, "unknown-worker");
}

/// The cap was learned on a device that the worker no longer has.
#[test]
fn an_out_of_memory_cap_ends_when_the_worker_joins_with_other_memory() {
    let mut service = Service::start();
    let join = |client: &Client, device: &str, memory_bytes, max_local_batch| {
        let device = Some(device.to_owned());
        let request = JoinRequest { device, memory_bytes, max_local_batch, ..JoinRequest::new(worker_id(0)) };
        client.post("/v1/jobs/job/workers", &request).json::<JoinResponse>().generation
    };
    let cap = |client: &Client| workers(client)[0].cap.map(|cap| (cap.max_local_batch, cap.because));
    let learned = Some((27, CapReason::OutOfMemory));
    service.client.put_job("job", &JobSpec::new(30));
    for (device, memory_bytes, max_local_batch, expected) in [
        ("small", Some(8), Some(40), learned),
        ("small", Some(8), Some(30), learned),
        ("small", Some(8), Some(60), Some((60, CapReason::Worker))),
        ("small", Some(16), Some(40), Some((40, CapReason::Worker))),
        ("small", None, Some(40), Some((40, CapReason::Worker))),
        ("large", Some(8), Some(40), Some((40, CapReason::Worker))),
        ("small", Some(8), None, None),
    ] {
        let client = &service.client;
        client.delete("/v1/jobs/job");
        client.put_job("job", &JobSpec::new(30));
        let generation = join(client, "small", Some(8), Some(40));
        client.allocate(&allocate_request("job", generation, 0));
        let failed = OomReport { iteration: 0, local_batch: 30 };
        assert_eq!(client.post("/v1/jobs/job/workers/node%2F0/oom", &failed).status, 200);
        join(client, device, memory_bytes, max_local_batch);
        assert_eq!(cap(client), expected, "{device} {memory_bytes:?} {max_local_batch:?}");
        service.kill_and_restart();
        assert_eq!(cap(&service.client), expected, "after a restart");
    }
    // A worker that left and returns with another device.
    let client = &service.client;
    let failed = OomReport { iteration: 0, local_batch: 30 };
    assert_eq!(client.post("/v1/jobs/job/workers/node%2F0/oom", &failed).status, 200);
    client.leave("job", "node/0");
    join(client, "large", Some(8), None);
    assert_eq!(cap(client), None);
}

/// A base of 100 bytes and 10 bytes per sample. With 1,000 bytes and a headroom of 10 %, 80 samples fit, once
/// two sizes were measured.
#[test]
fn caps_follow_from_reported_peaks() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(200));
    for worker in 0..2 {
        let request = JoinRequest { memory_bytes: Some(1000), ..JoinRequest::new(worker_id(worker)) };
        client.post("/v1/jobs/job/workers", &request);
    }
    for (iteration, batch) in [(1, 20), (2, 50)] {
        let mut request = allocate_request("job", 2, iteration);
        request.reports = vec![report(0, iteration - 1, batch, 100.0)];
        request.reports[0].peak_memory_bytes = Some(100 + 10 * batch);
        assert_eq!(client.allocate(&request).status, 200);
    }
    let cap = workers(client)[0].cap.unwrap();
    assert_eq!((cap.max_local_batch, cap.because), (80, CapReason::PeakMemory));
    let answer: AllocateResponse = client.allocate(&allocate_request("job", 2, 3)).json();
    assert_eq!(batches(&answer), [80, 120]);
}

#[test]
fn an_operator_pins_pauses_and_lifts() {
    let mut service = Service::start();
    let url = "/v1/jobs/job/workers/node%2F1/override";
    service.client.put_job("job", &JobSpec { quantum: 4, ..JobSpec::new(120) });
    let generation = join_all(&service.client, "job", 3);
    let pinned = WorkerOverride { pinned_local_batch: Some(8), ..WorkerOverride::default() };
    assert_eq!(service.client.put(url, &pinned).status, 204);
    service.client.allocate(&allocate_request("job", generation, 0));
    service.kill_and_restart();
    let client = &service.client;
    assert_eq!(workers(client)[1].operator_override, Some(pinned.clone()));
    let answer = train(client, generation, 0..8, &[100.0, 100.0, 100.0]);
    assert_eq!(batches(&answer), [56, 8, 56]);

    let paused = WorkerOverride { paused: true, ..WorkerOverride::default() };
    assert_eq!(client.put(url, &paused).status, 204);
    assert_eq!(batches(&client.allocate(&allocate_request("job", generation, 8)).json()), [60, 0, 60]);
    assert_eq!(client.delete(url).status, 204);
    assert_eq!(batches(&client.allocate(&allocate_request("job", generation, 9)).json()), [40, 40, 40]);

    for (bad, word) in [
        (WorkerOverride { pinned_local_batch: Some(7), ..WorkerOverride::default() }, "quantum"),
        (WorkerOverride { paused: true, ..pinned }, "paused"),
        (
            WorkerOverride {
                min_local_batch: Some(9),
                max_local_batch: Some(8),
                ..WorkerOverride::default()
            },
            "min_local_batch",
        ),
    ] {
        let problem = client.put(url, &bad).problem(422, "invalid");
        assert!(problem.detail.contains(word), "{}", problem.detail);
    }
    client.put("/v1/jobs/job/workers/node%2F7/override", &paused).problem(404, "unknown-worker");
}

#[test]
fn sizes_may_be_few_or_given() {
    let service = Service::start();
    let client = &service.client;
    let allowed = JobSpec { allowed_sizes: vec![0, 16, 32, 64], ..JobSpec::new(96) };
    client.put_job("job", &allowed);
    let generation = join_all(client, "job", 3);
    let mut first = batches(&client.allocate(&allocate_request("job", generation, 0)).json());
    first.sort_unstable();
    assert!(first == [0, 32, 64] || first == [16, 16, 64] || first == [32, 32, 32], "{first:?}");
    let answer = train(client, generation, 1..8, &[100.0, 100.0, 400.0]);
    assert_eq!(batches(&answer), [16, 16, 64]);
    let bad = JobSpec { allowed_sizes: vec![32, 16], ..JobSpec::new(96) };
    client.put("/v1/jobs/job", &bad).problem(422, "invalid");
    client.put_job("job", &JobSpec { allowed_sizes: vec![64], ..JobSpec::new(96) });
    let problem = client.allocate(&allocate_request("job", generation, 8)).problem(422, "invalid");
    assert!(problem.detail.contains("96"), "{}", problem.detail);

    client.put_job("job", &JobSpec { distinct_sizes: Some(2), ..JobSpec::new(96) });
    let answer: AllocateResponse = client.allocate(&allocate_request("job", generation, 8)).json();
    let sizes: std::collections::BTreeSet<u64> = batches(&answer).into_iter().collect();
    assert!(sizes.len() <= 2, "{answer:?}");
}

/// A micro-batch takes 50 ms and 5 ms per sample, and holds 20 samples. The curve learns this, and not a line
/// through the sums.
#[test]
fn accumulation_repeats_the_curve_for_each_pass() {
    let service = Service::start();
    let client = &service.client;
    let spec = JobSpec { accumulation: true, max_local_batch: Some(20), ..JobSpec::new(100) };
    client.put_job("job", &spec);
    let generation = join_all(client, "job", 2);
    let time_s = |batch: u64| (0.05 * batch.div_ceil(20) as f64) + 0.005 * batch as f64;
    let mut answer: AllocateResponse = client.allocate(&allocate_request("job", generation, 0)).json();
    for iteration in 1..80 {
        let mut request = allocate_request("job", generation, iteration);
        let batch = [5, 45, 20, 64, 10, 30][iteration as usize % 6];
        let done = |worker, batch: u64| report(worker, iteration - 1, batch, batch as f64 / time_s(batch));
        request.reports = vec![done(0, batch), done(1, 100 - batch)];
        answer = client.allocate(&request).json();
    }
    for share in &answer.allocations {
        let (expected, truth) = (share.predicted_compute_time_s.unwrap(), time_s(share.local_batch));
        assert!((expected / truth - 1.0).abs() < 0.02, "{expected} for {truth}: {answer:?}");
    }
    assert!(workers(client).iter().all(|worker| worker.curve.unwrap().identified));
}

#[test]
fn a_persistent_straggler_is_reported_with_its_reason() {
    let mut service = Service::start();
    service.client.put_job("job", &JobSpec::new(60));
    let generation = join_all(&service.client, "job", 2);
    let train = |client: &Client, generation, iterations: std::ops::Range<u64>, is_ill: bool| {
        for iteration in iterations {
            let speeds = [100.0, if is_ill { 50.0 } else { 100.0 }];
            let mut request = allocate_request_with_reports("job", generation, iteration, &speeds);
            for (worker, report) in request.reports.iter_mut().enumerate() {
                let waits = if is_ill && worker == 1 { 0.7 } else { 0.02 };
                report.drivers.insert("run_queue_wait".into(), waits);
            }
            assert_eq!(client.allocate(&request).status, 200);
        }
    };
    train(&service.client, generation, 0..51, false);
    assert!(workers(&service.client).iter().all(|worker| worker.straggler.is_none()));
    train(&service.client, generation, 51..75, true);
    service.kill_and_restart();
    let is_flagged = |client: &Client| {
        let workers = workers(client);
        assert_eq!(workers[0].straggler, None);
        let straggler = workers[1].straggler.as_ref()?;
        assert_eq!(straggler.reason, StragglerReason::CpuContention);
        assert!(
            (straggler.speed_ratio - 0.5).abs() < 0.1 && straggler.since_iteration >= 50,
            "{straggler:?}"
        );
        Some(())
    };
    let client = &service.client;
    assert!(is_flagged(client).is_some());
    // The process starts again on the same machine, which is as slow as before. Workers are listed in order of joining.
    client.leave("job", "node/1");
    let generation = client.join("job", "node/1").generation;
    assert!(is_flagged(client).is_some());
    train(client, generation, 75..80, true);
    assert!(is_flagged(client).is_some());
    train(client, generation, 80..120, false);
    assert!(is_flagged(client).is_none());
}

#[test]
fn shares_vary_on_purpose_until_curves_are_known() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(64));
    let generation = join_all(client, "job", 2);
    let mut answer: AllocateResponse = client.allocate(&allocate_request("job", generation, 0)).json();
    assert_eq!(answer.decision.kind, DecisionKind::ColdStart);
    let mut profiled = 0;
    for iteration in 1..60 {
        profiled += u64::from(answer.decision.kind == DecisionKind::Profiling);
        let mut request = allocate_request("job", generation, iteration);
        // Worker 0: 10 ms and 1 ms per sample. Worker 1: 2 ms per sample.
        let time_s = |rank: usize, batch: u64| [0.010 + 0.001 * batch as f64, 0.002 * batch as f64][rank];
        request.reports = (0..2)
            .map(|rank| {
                let batch = answer.allocations[rank].local_batch;
                report(rank, iteration - 1, batch, batch as f64 / time_s(rank, batch))
            })
            .collect();
        answer = client.allocate(&request).json();
    }
    assert!((1..=6).contains(&profiled), "{profiled} iterations");
    assert!(client.job("job").spec.unwrap().profile, "the option is on unless the job says otherwise");
    // Balanced at 10 + x = 2 (64 - x): x = 39.3.
    let shares = batches(&answer);
    assert!((38..=41).contains(&shares[0]), "{shares:?}");
}
