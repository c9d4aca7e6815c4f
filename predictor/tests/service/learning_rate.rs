//! The learning rate follows the global batch.

use evenstep_protocol::{AllocateResponse, JobSpec, LearningRateRule, LearningRateSettings, WorkerReport};

use crate::support::{Service, allocate_request, join_all, report};

fn multiplier(service: &Service, generation: u64, iteration: u64) -> f64 {
    let answer: AllocateResponse =
        service.client.allocate(&allocate_request("job", generation, iteration)).json();
    answer.optimizer.lr_multiplier
}

/// The golden ramp of Dynamic SGD: k = 4 over 32 iterations, across a restart of the service.
#[test]
fn the_ramp_of_a_job_that_grows() {
    let mut service = Service::start();
    let spec = JobSpec { per_worker_batch: Some(16), ..JobSpec::new(16) };
    service.client.put_job("job", &spec);
    assert_eq!(join_all(&service.client, "job", 1), 1);
    assert_eq!((multiplier(&service, 1, 0), multiplier(&service, 1, 9)), (1.0, 1.0));
    assert_eq!(join_all(&service.client, "job", 4), 4);
    let answer: AllocateResponse = service.client.allocate(&allocate_request("job", 4, 10)).json();
    assert_eq!((answer.global_batch, answer.optimizer.lr_multiplier), (64, 1.0));
    let ramp = answer.optimizer.ramp.unwrap();
    assert_eq!((ramp.from, ramp.to, ramp.start_iteration, ramp.iterations), (1.0, 4.0, 10, 32));
    assert_eq!(multiplier(&service, 4, 11), 1.09375);
    assert_eq!(multiplier(&service, 4, 18), 1.75);
    service.kill_and_restart();
    assert_eq!(multiplier(&service, 4, 26), 2.5);
    assert_eq!(multiplier(&service, 4, 41), 3.90625);
    let flat: AllocateResponse = service.client.allocate(&allocate_request("job", 4, 42)).json();
    assert_eq!((flat.optimizer.lr_multiplier, flat.optimizer.ramp), (4.0, None));
    // A smaller batch applies at once, and iterations allocated to departed workers are planned again.
    assert_eq!(multiplier(&service, 4, 43), 4.0);
    service.client.leave("job", "node/3");
    let answer: AllocateResponse = service.client.allocate(&allocate_request("job", 5, 43)).json();
    assert_eq!((answer.global_batch, answer.optimizer.lr_multiplier), (48, 3.0));
    // The rest of the epoch is an upper bound.
    let mut last = allocate_request("job", 5, 44);
    last.global_batch = Some(1000);
    assert_eq!(service.client.allocate(&last).json::<AllocateResponse>().global_batch, 48);
    let mut last = allocate_request("job", 5, 45);
    last.global_batch = Some(20);
    let answer: AllocateResponse = service.client.allocate(&last).json();
    assert_eq!((answer.global_batch, answer.optimizer.lr_multiplier), (20, 3.0));
}

#[test]
fn a_new_global_batch_ramps_too() {
    let service = Service::start();
    let spec = |global_batch| JobSpec {
        learning_rate: LearningRateSettings { ramp_iterations: Some(2), ..LearningRateSettings::default() },
        ..JobSpec::new(global_batch)
    };
    service.client.put_job("job", &spec(32));
    join_all(&service.client, "job", 2);
    assert_eq!(multiplier(&service, 2, 0), 1.0);
    assert_eq!(service.client.put("/v1/jobs/job", &spec(64)).status, 200);
    let multipliers: Vec<f64> = (1..5).map(|iteration| multiplier(&service, 2, iteration)).collect();
    assert_eq!(multipliers, [1.0, 1.5, 2.0, 2.0]);
}

/// The golden of AdaScale: gradients [[1,0],[0,1]] of two equal batches are only noise, which gives a gain of
/// 2.
#[test]
fn adascale_learns_from_the_norms_in_reports() {
    let mut service = Service::start();
    // Each worker has one base batch: S = 2.
    let spec = JobSpec { rule: LearningRateRule::Adascale, per_worker_batch: Some(8), ..JobSpec::new(8) };
    service.client.put_job("job", &spec);
    assert_eq!(join_all(&service.client, "job", 2), 2);
    assert_eq!(multiplier(&service, 2, 0), 1.0);
    for iteration in 1..3 {
        let mut request = allocate_request("job", 2, iteration);
        request.reports = (0..2)
            .map(|worker| {
                let mut report = report(worker, iteration - 1, 8, 100.0);
                report.gradient_sqr = Some(1.0);
                report.global_gradient_sqr = Some(0.5);
                report
            })
            .collect();
        let answer: AllocateResponse = service.client.allocate(&request).json();
        assert!((answer.optimizer.lr_multiplier - 2.0).abs() < 1e-9, "{answer:?}");
        service.kill_and_restart();
    }
    let answer: AllocateResponse = service.client.allocate(&allocate_request("job", 2, 3)).json();
    assert!((answer.optimizer.lr_multiplier - 2.0).abs() < 1e-9, "{answer:?}");
    assert_eq!(answer.optimizer.schedule_iteration, Some(5.0), "1 + 2 + 2 steps of the schedule");
}

/// Reports of an allocated iteration also update AdaScale, and the update survives a crash.
#[test]
fn gradients_of_an_allocated_iteration_are_not_lost() {
    let mut service = Service::start();
    let spec = JobSpec { rule: LearningRateRule::Adascale, per_worker_batch: Some(8), ..JobSpec::new(8) };
    service.client.put_job("job", &spec);
    join_all(&service.client, "job", 2);
    assert_eq!((multiplier(&service, 2, 0), multiplier(&service, 2, 1)), (1.0, 1.0));
    let mut request = allocate_request("job", 2, 1);
    request.reports = (0..2)
        .map(|worker| {
            let mut report = report(worker, 0, 8, 100.0);
            report.gradient_sqr = Some(1.0);
            report.global_gradient_sqr = Some(0.5);
            report
        })
        .collect();
    let answer: AllocateResponse = service.client.allocate(&request).json();
    assert_eq!(answer.optimizer.lr_multiplier, 1.0, "the allocation does not change");
    service.kill_and_restart();
    assert!((multiplier(&service, 2, 2) - 2.0).abs() < 1e-9);
}

/// Reports of a job that cannot be planned are stored. They do not fix the rule: its settings may change
/// until the first allocation.
#[test]
fn the_rule_may_change_until_the_first_allocation_also_after_a_crash() {
    let mut service = Service::start();
    let adascale = JobSpec { rule: LearningRateRule::Adascale, max_local_batch: Some(8), ..JobSpec::new(64) };
    service.client.put_job("job", &adascale);
    join_all(&service.client, "job", 2);
    let mut request = allocate_request("job", 2, 1);
    request.reports = (0..2)
        .map(|worker| WorkerReport {
            gradient_sqr: Some(1.0),
            global_gradient_sqr: Some(0.5),
            ..report(worker, 0, 8, 100.0)
        })
        .collect();
    service.client.allocate(&request).problem(422, "infeasible");
    let linear = JobSpec { rule: LearningRateRule::Linear, max_local_batch: Some(8), ..JobSpec::new(16) };
    service.client.put_job("job", &linear);
    service.kill_and_restart();
    let answer: AllocateResponse = service.client.allocate(&allocate_request("job", 2, 1)).json();
    assert_eq!((answer.optimizer.rule, answer.optimizer.lr_multiplier), (LearningRateRule::Linear, 1.0));
}

/// A job that resumes from an old checkpoint after a departure returns to an iteration far back, under every rule.
#[test]
fn a_job_returns_to_an_iteration_far_back() {
    let service = Service::start();
    for rule in [LearningRateRule::None, LearningRateRule::DynamicSgd, LearningRateRule::Adascale] {
        let job = format!("{rule:?}").to_lowercase();
        service.client.put_job(&job, &JobSpec { rule, ..JobSpec::new(64) });
        join_all(&service.client, &job, 3);
        for iteration in 0..300 {
            service.client.allocate(&allocate_request(&job, 3, iteration)).json::<AllocateResponse>();
        }
        assert_eq!(service.client.delete(&format!("/v1/jobs/{job}/workers/node%2F2")).status, 200);
        let again: AllocateResponse = service.client.allocate(&allocate_request(&job, 4, 20)).json();
        assert_eq!((again.iteration, again.allocations.len()), (20, 2), "{rule:?}");
    }
}

#[test]
fn settings_are_checked() {
    let service = Service::start();
    let legw = JobSpec { rule: LearningRateRule::Legw, ..JobSpec::new(32) };
    let problem = service.client.put("/v1/jobs/job", &legw).problem(422, "invalid");
    assert!(problem.detail.contains("warmup_epochs"), "{}", problem.detail);
    for (spec, word) in [
        (JobSpec { per_worker_batch: Some(0), ..JobSpec::new(32) }, "per_worker_batch"),
        (JobSpec { distinct_sizes: Some(1), ..JobSpec::new(32) }, "distinct_sizes"),
    ] {
        let problem = service.client.put("/v1/jobs/job", &spec).problem(422, "invalid");
        assert!(problem.detail.contains(word), "{}", problem.detail);
    }
}
