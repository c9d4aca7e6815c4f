//! `POST /v1/plan/burst`.

use evenstep_burst::BurstPlan;
use evenstep_protocol::JobSpec;
use serde_json::{Value, json};

use crate::support::{Service, allocate_request_with_reports, join_all};

/// The three layers of DeepPool's example on up to four GPUs, with 0.5 us for each change of the count.
fn toy(settings: &Value) -> Value {
    let changes = ["1->2", "1->4", "2->1", "2->4", "4->1", "4->2"];
    let edge_us: Value = changes.into_iter().map(|change| (change.to_owned(), json!(0.5))).collect();
    let layer = |(name, costs): (&str, [f64; 3])| json!({"id": name, "name": name, "cost_us": {"1": costs[0], "2": costs[1], "4": costs[2]}, "edge_us": edge_us});
    let layers = [("A", [8.0, 4.0, 2.0]), ("B", [6.0, 5.0, 4.5]), ("C", [4.0, 2.0, 1.0])].map(layer);
    changed(
        json!({"profile": {"layers": layers}, "gpus": 4, "global_batch": 32, "exempt_below_us": 0}),
        settings,
    )
}

fn changed(mut request: Value, settings: &Value) -> Value {
    for (key, value) in settings.as_object().unwrap() {
        request[key] = value.clone();
    }
    request
}

/// 10 us per sample, and no data to move.
pub fn linear(settings: &Value) -> Value {
    let layer = json!({"name": "only", "compute_us": {"1": 10}});
    changed(json!({"profile": {"layers": [layer]}, "global_batch": 120, "counts": [1, 2, 3]}), settings)
}

#[test]
fn plans_are_those_of_the_command() {
    let service = Service::start();
    let plan = |limit: f64| -> BurstPlan {
        service.client.post("/v1/plan/burst", &toy(&json!({"amplification": limit}))).json()
    };
    let table = [(1.0, 12.5, 18.5, [4, 1, 1]), (1.5, 10.0, 20.5, [4, 1, 4]), (3.0, 7.5, 30.0, [4, 4, 4])];
    for (limit, iteration_us, gpu_us, gpus) in table {
        let plan = plan(limit);
        let planned: Vec<u64> = plan.layers.iter().map(|layer| layer.gpus).collect();
        assert_eq!((plan.iteration_us, plan.gpu_us, planned), (iteration_us, gpu_us, gpus.to_vec()));
        assert_eq!((plan.front.len(), plan.amplification, plan.gpus), (5, Some(limit), 4));
        assert!(plan.exact && plan.front_complete && plan.workers.is_empty());
    }
    assert_eq!(plan(1.5).idle_us, [0.0, 6.5, 6.5, 6.5]);
}

/// Workers of speeds 100, 200 and 50 get samples in this proportion. An unmeasured worker counts as the mean
/// of the others.
#[test]
fn a_jobs_workers_are_as_fast_as_they_are_forecast_to_be() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(192));
    let generation = join_all(client, "job", 3);
    let unknown: BurstPlan = client.post("/v1/plan/burst", &linear(&json!({"job_id": "job"}))).json();
    assert_eq!((unknown.speeds, unknown.iteration_us), (vec![1.0; 3], 400.0), "all workers are unmeasured");
    for iteration in 0..30 {
        client.allocate(&allocate_request_with_reports("job", generation, iteration, &[100.0, 200.0, 50.0]));
    }
    let plan: BurstPlan = client.post("/v1/plan/burst", &linear(&json!({"job_id": "job", "gpus": 3}))).json();
    let named: Vec<String> = plan.workers.iter().map(ToString::to_string).collect();
    assert_eq!(
        (named, &plan.gpu_order),
        (vec!["node/0".into(), "node/1".into(), "node/2".into()], &vec![1, 0, 2])
    );
    for (speed, expected) in plan.speeds.iter().zip([0.5, 1.0, 0.25]) {
        assert!((speed - expected).abs() < 0.02, "{:?}", plan.speeds);
    }
    let samples = &plan.layers[0].samples;
    assert!(
        samples.iter().zip([68, 34, 17]).all(|(ours, expected): (&u64, u64)| ours.abs_diff(expected) <= 2)
    );
    assert_eq!(samples.iter().sum::<u64>(), 120);
    client.join("job", "node/3");
    let joined: BurstPlan = client.post("/v1/plan/burst", &linear(&json!({"job_id": "job"}))).json();
    let mean = joined.speeds[..3].iter().sum::<f64>() / 3.0;
    assert!(joined.speeds.len() == 4 && (joined.speeds[3] - mean).abs() < 1e-9, "{:?}", joined.speeds);
    assert_eq!(client.next_iteration("job"), 30, "a plan has no effect");
}

#[test]
fn violations_are_rejected_by_value_and_rule() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("empty", &JobSpec::new(60));
    let refused = |request: Value, slug: &str, named: &str| {
        let problem = client.post("/v1/plan/burst", &request).problem(422, slug);
        assert!(problem.detail.contains(named), "{named}: {}", problem.detail);
    };
    refused(toy(&json!({"gpus": null})), "invalid", "gpus: missing");
    refused(toy(&json!({"gpus": 0})), "invalid", "gpus: 0 must be 1 to 65536");
    refused(toy(&json!({"gpus": 1u64 << 40})), "invalid", "gpus: 1099511627776 must be 1 to 65536");
    refused(toy(&json!({"global_batch": 0})), "invalid", "global_batch: 0 must be 1 to");
    refused(toy(&json!({"speeds": [1, 1]})), "invalid", "speeds: 2 for 4 gpus");
    refused(toy(&json!({"speeds": [1, 1, 0, 1]})), "invalid", "GPU 2: relative speed 0 must be positive");
    refused(toy(&json!({"amplification": 0.5})), "invalid", "amplification limit 0.5 must be finite");
    refused(toy(&json!({"exempt_below_us": -1})), "invalid", "exempt_below_us -1 must be finite");
    refused(toy(&json!({"counts": [5]})), "invalid", "allowed GPU count 5 must be 1 to 4");
    refused(
        toy(&json!({"network": {"latency_us": 5}})),
        "invalid",
        "network: bandwidth_bytes_per_s is missing",
    );
    refused(toy(&json!({"amplificatoin": 2})), "invalid", "amplificatoin");
    refused(toy(&json!({"profile": {"layers": []}})), "invalid", "0 layers");
    refused(
        toy(&json!({"profile": {"layers": [{"name": "a"}]}})),
        "invalid",
        "layer a: compute_us and cost_us are both missing",
    );
    refused(toy(&json!({"job_id": "empty", "gpus": null})), "invalid", "job empty has no live workers");
    refused(toy(&json!({"job_id": "empty", "speeds": [1]})), "invalid", "speeds: must be omitted");
    refused(
        linear(&json!({"gpus": 65536, "counts": (1..=40).collect::<Vec<_>>()})),
        "invalid",
        "40 allowed GPU counts",
    );
    refused(
        toy(&json!({"counts": [2], "amplification": 1})),
        "infeasible",
        "layer B exceeds the amplification limit of 1",
    );
    refused(
        toy(&json!({"counts": [3], "gpus": 4})),
        "infeasible",
        "layer A can run on none of the allowed GPU counts [3]",
    );
    let many: Vec<Value> = (0..65).map(|at| json!({"name": format!("{at}"), "cost_us": {"1": 1}})).collect();
    refused(
        toy(&json!({"profile": {"layers": many}, "gpus": 65536})),
        "invalid",
        "layers times GPUs must be at most 4194304",
    );
    let problem =
        client.post("/v1/plan/burst", &toy(&json!({"job_id": "nobody"}))).problem(404, "unknown-job");
    assert!(problem.detail.contains("nobody"));
    client.post_text("/v1/plan/burst", "{").problem(400, "malformed");
    let large = toy(&json!({"profile": {"model": "x".repeat(9 << 20), "layers": []}}));
    client.post("/v1/plan/burst", &large).problem(413, "too-large");
    assert_eq!(client.get("/v1/plan/burst").status, 405);
}
