//! Budgets of background work: their sizes, and that other jobs' responses do not have them.

use evenstep_protocol::{AllocateResponse, BackgroundSettings, JobSpec};
use serde_json::{Value, json};

use crate::support::{Service, allocate_request, allocate_request_with_reports, join_all};

const SPEEDS: [f64; 3] = [100.0, 200.0, 400.0];

fn spec(slow_down_limit: f64) -> JobSpec {
    // With few allowed sizes, shares cannot follow speeds, so there is slack.
    JobSpec {
        allowed_sizes: vec![16, 32],
        background: Some(BackgroundSettings { slow_down_limit }),
        ..JobSpec::new(64)
    }
}

/// The bodies of `count` responses.
fn answers(service: &Service, job: &str, spec: &JobSpec, count: u64) -> Vec<String> {
    service.client.put_job(job, spec);
    let generation = join_all(&service.client, job, 3);
    let answer = |iteration| {
        service.client.allocate(&allocate_request_with_reports(job, generation, iteration, &SPEEDS)).body
    };
    (0..count).map(answer).collect()
}

#[test]
fn budgets_are_the_slack_and_what_the_limit_adds() {
    let mut service = Service::start();
    for (job, limit) in [("strict", 1.0), ("usual", 1.1), ("wide", 2.0)] {
        let bodies = answers(&service, job, &spec(limit), 6);
        let parsed: Vec<AllocateResponse> =
            bodies.iter().map(|body| serde_json::from_str(body).unwrap()).collect();
        assert!(parsed[0].allocations.iter().all(|share| share.background.is_none()), "unmeasured");
        let last = parsed.last().unwrap();
        let times: Vec<f64> =
            last.allocations.iter().map(|share| share.predicted_compute_time_s.unwrap()).collect();
        let step_s = times.iter().copied().fold(0.0, f64::max);
        let mut slack = 0;
        for (share, time_s) in last.allocations.iter().zip(&times) {
            let background = share.background.unwrap();
            assert_eq!(background.slack_s, step_s - time_s, "{last:?}");
            assert!((background.budget_s - (limit * step_s - time_s)).abs() < 1e-12, "{last:?}");
            slack += usize::from(background.slack_s > 0.0);
        }
        assert_eq!(slack, 2, "all workers except the slowest: {last:?}");
        // Durable, like the rest of the response.
        let before = bodies.last().unwrap();
        service.kill_and_restart();
        assert_eq!(service.client.allocated(job, last.iteration).body, *before);
        let metrics = service.client.get("/metrics").body;
        assert!(!metrics.contains("evenstep_worker_slack_seconds"), "no iteration was allocated since");
        service.client.allocate(&allocate_request(job, last.generation, 6));
        let metrics = service.client.get("/metrics").body;
        assert!(metrics.contains(&format!("evenstep_worker_background_budget_seconds{{job_id=\"{job}\"")));
    }
}

/// The same job without the option gets the same allocations, without this field.
#[test]
fn jobs_without_background_get_no_budget() {
    let service = Service::start();
    let plain = JobSpec { background: None, ..spec(1.1) };
    let asked = answers(&service, "job", &spec(1.1), 8);
    let other = Service::start();
    let silent = answers(&other, "job", &plain, 8);
    assert!(silent.iter().all(|body| !body.contains("background") && !body.contains("slack")));
    let without = |body: &String| {
        let mut answer: Value = serde_json::from_str(body).unwrap();
        for share in answer["allocations"].as_array_mut().unwrap() {
            share.as_object_mut().unwrap().remove("background");
        }
        answer
    };
    assert_ne!(asked, silent);
    assert_eq!(asked.iter().map(without).collect::<Vec<_>>(), silent.iter().map(without).collect::<Vec<_>>());
}

/// No background work runs during a profile, because it would disturb the measurement.
#[test]
fn nothing_else_runs_during_a_profile() {
    let service = Service::start();
    let background = Some(BackgroundSettings::default());
    let spec = JobSpec { profile: true, background, ..JobSpec::new(64) };
    let bodies = answers(&service, "job", &spec, 48);
    let (profiling, later): (Vec<_>, Vec<_>) = bodies.iter().partition(|body| body.contains("\"profiling\""));
    assert!(profiling.len() > 2, "{bodies:?}");
    assert!(profiling.iter().all(|body| !body.contains("slack_s")), "{profiling:?}");
    assert!(later.last().unwrap().contains("slack_s"), "{later:?}");
}

#[test]
fn invalid_job_options_are_rejected() {
    let service = Service::start();
    for (background, named) in [
        (json!({"slow_down_limit": 0.99}), "background.slow_down_limit: 0.99 must be 1 to 10"),
        (json!({"slow_down_limit": 10.5}), "background.slow_down_limit: 10.5 must be 1 to 10"),
        (json!({"slow_down_limit": "much"}), "background.slow_down_limit"),
        (json!({"limit": 2}), "limit"),
        (json!(true), "background"),
    ] {
        let body = json!({"global_batch": 64, "background": background});
        let problem = service.client.put("/v1/jobs/job", &body).problem(422, "invalid");
        assert!(problem.detail.contains(named), "{}", problem.detail);
    }
    let body = json!({"global_batch": 64, "background": {}});
    assert_eq!(service.client.put("/v1/jobs/job", &body).status, 201, "the default limit");
}
