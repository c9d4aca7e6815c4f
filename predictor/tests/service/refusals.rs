//! Rejected requests: always a problem with a stable type that names the value and the rule, and without any
//! effect.

use std::io::{Read, Write};
use std::net::TcpStream;

use evenstep_protocol::{AllocateRequest, AllocateResponse, JobSpec, Problem, SpeedsView, WorkersView};
use serde_json::{Value, json};

use crate::support::{Service, allocate_request, join_all, report, worker_id};

#[test]
fn unknown_jobs_and_workers_are_404_by_name() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(60));
    for path in
        ["/v1/jobs/nobody", "/v1/jobs/nobody/workers", "/v1/jobs/nobody/forecast", "/v1/jobs/nobody/speeds"]
    {
        let problem = client.get(path).problem(404, "unknown-job");
        assert!(problem.detail.contains("nobody"), "{}", problem.detail);
    }
    client.allocate(&allocate_request("nobody", 0, 0)).problem(404, "unknown-job");
    client.allocated("nobody", 0).problem(404, "unknown-job");
    client.allocated("job", 0).problem(404, "not-answered");
    client.delete("/v1/jobs/nobody").problem(404, "unknown-job");
    client.delete("/v1/jobs/job/workers/node%2F7").problem(404, "unknown-worker");
    let problem = client.get("/v2/jobs").problem(404, "unknown-path");
    assert!(problem.detail.contains("/v2/jobs"), "{}", problem.detail);
}

#[test]
fn wrong_methods_are_405() {
    let service = Service::start();
    for path in ["/v1/telemetry", "/v1/jobs/job/workers/node%2F7"] {
        service.client.get(path).problem(405, "wrong-method");
    }
    for path in ["/healthz", "/readyz", "/v1/nodes", "/v1/jobs", "/v1/jobs/job/forecast"] {
        service.client.delete(path).problem(405, "wrong-method");
    }
    let problem = service.client.delete("/allocate").problem(405, "wrong-method");
    assert!(problem.detail.contains("DELETE"), "{}", problem.detail);
}

#[test]
fn caps_and_floors_that_cannot_hold_the_batch_are_422_with_the_numbers() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec { max_local_batch: Some(20), ..JobSpec::new(64) });
    join_all(client, "job", 3);
    let problem = client.allocate(&allocate_request("job", 3, 0)).problem(422, "infeasible");
    assert_eq!(
        (problem.global_batch, problem.sum_of_caps, problem.sum_of_floors),
        (Some(64), Some(60), Some(3))
    );
    assert!(problem.detail.contains("64") && problem.detail.contains("60"), "{}", problem.detail);
    // The solution: another worker.
    client.join("job", "node/3");
    assert_eq!(client.allocate(&allocate_request("job", 4, 0)).json::<AllocateResponse>().global_batch, 64);

    client.put_job("floors", &JobSpec::new(64));
    join_all(client, "floors", 2);
    client.put_job("floors", &JobSpec { min_local_batch: Some(40), ..JobSpec::new(64) });
    let problem = client.allocate(&allocate_request("floors", 2, 0)).problem(422, "infeasible");
    assert_eq!((problem.sum_of_floors, problem.sum_of_caps), (Some(80), None));
}

/// An infeasible request keeps the state of the job in memory, and the reports in the request are stored.
#[test]
fn an_iteration_that_cannot_be_planned_keeps_its_reports_and_changes_nothing_else() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(64));
    let generation = join_all(client, "job", 2);
    let workers = || client.get("/v1/jobs/job/workers").json::<WorkersView>().workers;
    let reports = || {
        let view: SpeedsView = client.get("/v1/jobs/job/speeds?from=0").json();
        [0, 1].map(|worker| view.speeds.iter().filter(|speed| speed.worker == worker_id(worker)).count())
    };
    let with_reports = |iteration: u64| AllocateRequest {
        reports: vec![report(0, iteration - 1, 32, 100.0), report(1, iteration - 1, 32, 100.0)],
        ..allocate_request("job", generation, iteration)
    };
    client.allocate(&allocate_request("job", generation, 0)).json::<AllocateResponse>();
    for iteration in 1..4 {
        client.allocate(&with_reports(iteration)).json::<AllocateResponse>();
    }
    client.put_job("job", &JobSpec { max_local_batch: Some(20), ..JobSpec::new(64) });
    let before = (client.job("job"), workers());
    assert_eq!(reports(), [3, 3]);
    let of_one =
        AllocateRequest { reports: vec![report(0, 3, 32, 200.0)], ..allocate_request("job", generation, 4) };
    client.allocate(&of_one).problem(422, "infeasible");
    let after = (client.job("job"), workers());
    assert_eq!(after.0, before.0);
    assert_eq!(reports(), [4, 3], "the report is stored");
    assert!(after.1[0].speed_samples_per_s.unwrap() > 150.0, "and the models learned from it");
    // If the job had been read from the store again, each worker would have a new lease.
    assert_eq!(after.1[1].last_seen_unix_ms, before.1[1].last_seen_unix_ms, "the state stays in memory");

    client.put_job("job", &JobSpec::new(64));
    client.allocate(&of_one).json::<AllocateResponse>();
    assert_eq!(reports(), [4, 3], "it is stored once");
}

#[test]
fn invalid_json_is_400_and_json_of_another_shape_is_422() {
    let service = Service::start();
    let client = &service.client;
    for body in ["", "{", "nonsense", "\u{feff}{}"] {
        for path in ["/allocate", "/v1/telemetry", "/v1/jobs/job/workers"] {
            client.post_text(path, body).problem(400, "malformed");
        }
    }
    let trailing = r#"{"job_id":"job","generation":0,"iteration":0} more"#;
    client.post_text("/allocate", trailing).problem(400, "malformed");
    let asking = |change: &str, value: Value| {
        let mut body = json!({"job_id": "job", "generation": 0, "iteration": 1});
        body[change] = value;
        (change.to_owned(), client.post("/allocate", &body))
    };
    for (field, reply) in [
        asking("job_id", json!("not a name")),
        asking("job_id", json!(7)),
        asking("generation", json!(-1)),
        asking("iteration", json!(1.5)),
        asking("iteration", json!(1u64 << 60)),
        asking("reports", json!({})),
        asking("global_batch", json!(0)),
        asking("look_ahead", json!(3)),
    ] {
        let problem = reply.problem(422, "invalid");
        assert!(problem.detail.contains(&field), "{field}: {}", problem.detail);
    }
    let problem = client.post("/allocate", &json!({"job_id": "job"})).problem(422, "invalid");
    assert!(problem.detail.contains("generation"), "{}", problem.detail);
}

/// The order of the fields is not part of the API.
#[test]
fn an_array_is_not_an_object() {
    let service = Service::start();
    let client = &service.client;
    client.put("/v1/jobs/other", &json!([64])).problem(422, "invalid");
    client.get("/v1/jobs/other").problem(404, "unknown-job");
    client.put_job("job", &JobSpec::new(60));
    join_all(client, "job", 1);
    for (path, body, named) in [
        ("/v1/jobs/job/workers", json!(["node/1", null, null, null, null, false]), ""),
        ("/v1/jobs/job/workers/node%2F0/oom", json!([0, 2]), ""),
        ("/allocate", json!(["job", 1, 0, null, [], []]), ""),
        (
            "/allocate",
            json!({"job_id": "job", "generation": 1, "iteration": 1, "reports": [["node/0", 0, 60, 0.5]]}),
            "reports[0]",
        ),
        ("/v1/telemetry", json!(["node", "b", 0, []]), ""),
        (
            "/v1/telemetry",
            json!({"node": "node", "boot_id": "b", "sequence": 0, "samples": [[1]]}),
            "samples[0]",
        ),
        ("/v1/plan/burst", json!([{"layers": []}, 8]), ""),
    ] {
        let problem = client.post(path, &body).problem(422, "invalid");
        assert!(problem.detail.contains("sequence"), "{path}: {}", problem.detail);
        assert!(problem.detail.contains(named), "{path}: {}", problem.detail);
    }
    assert_eq!(client.job("job").live_workers, 1);
    client.allocated("job", 0).problem(404, "not-answered");
}

#[test]
fn numbers_without_meaning_are_rejected_by_value() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(60));
    join_all(client, "job", 1);
    let far = 1u64 << 53;
    for field in ["pinned_local_batch", "min_local_batch", "max_local_batch"] {
        let problem = client
            .put("/v1/jobs/job/workers/node%2F0/override", &json!({field: far}))
            .problem(422, "invalid");
        assert!(problem.detail.contains(field) && problem.detail.contains(&far.to_string()), "{problem:?}");
    }
    let sample = json!({"node": "node", "boot_id": "b", "sequence": 0, "samples": [{"at_unix_ms": far}]});
    let problem = client.post("/v1/telemetry", &sample).problem(422, "invalid");
    assert!(problem.detail.contains("samples[0].at_unix_ms: 9007199254740992"), "{problem:?}");
    // The body is JSON; only a key of a table is not a number.
    let plan =
        json!({"global_batch": 8, "gpus": 2, "profile": {"layers": [{"name": "a", "compute_us": {"x": 1}}]}});
    let problem = client.post("/v1/plan/burst", &plan).problem(422, "invalid");
    assert!(problem.detail.contains("profile.layers[0].compute_us"), "{problem:?}");
}

/// Eight of the samples, in two chunks, with the given changes.
fn tail(changed: &Value) -> Value {
    let mut tail = json!({"chunks": 2, "samples": 8, "compute_time_s": 0.1, "claim_time_s": 0.001});
    let fields = changed.as_object().cloned().unwrap_or_default();
    fields.into_iter().for_each(|(field, value)| tail[field] = value);
    tail
}

#[test]
fn invalid_reports_are_rejected_by_field_and_value_and_change_nothing() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(60));
    join_all(client, "job", 1);
    let many: serde_json::Map<String, Value> =
        (0..65).map(|number| (format!("d{number}"), json!(1))).collect();
    for (field, value, named) in [
        ("compute_time_s", json!(-0.5), "-0.5"),
        ("compute_time_s", json!(0), "0"),
        ("compute_time_s", json!("fast"), "fast"),
        ("barrier_wait_s", json!(-1), "-1"),
        ("loader_wait_s", json!(-2), "-2"),
        ("iteration", json!(5), "5"),
        ("iteration", json!(u64::MAX), "18446744073709551615"),
        ("local_batch", json!(-3), "-3"),
        ("worker", json!("a b"), "a b"),
        ("micro_batches", json!(0), "0"),
        ("micro_batches", json!(61), "61"),
        ("tail", tail(&json!({"samples": 61})), "samples: 61 must be 1 to 60"),
        ("tail", tail(&json!({"samples": 0})), "samples: 0"),
        ("tail", tail(&json!({"chunks": 0})), "chunks: 0"),
        ("tail", tail(&json!({"chunks": 9})), "chunks: 9 must be 1 to 8"),
        ("tail", tail(&json!({"compute_time_s": 0.6})), "0.6 must not be above compute_time_s, 0.5"),
        ("tail", tail(&json!({"compute_time_s": -0.1})), "compute_time_s: -0.1"),
        ("tail", tail(&json!({"claim_time_s": -1})), "claim_time_s: -1"),
        ("tail", tail(&json!({"claims": 1})), "claims"),
        ("drivers", json!({"Load": 1}), "Load"),
        ("drivers", json!({"load": null}), "null"),
        ("drivers", Value::Object(many), "65"),
        ("colour", json!("red"), "colour"),
    ] {
        let mut report =
            json!({"worker": "node/0", "iteration": 0, "local_batch": 60, "compute_time_s": 0.5});
        report[field] = value;
        let body = json!({"job_id": "job", "generation": 1, "iteration": 5, "reports": [report]});
        let problem = client.post("/allocate", &body).problem(422, "invalid");
        assert!(problem.detail.contains("reports[0]"), "{}", problem.detail);
        assert!(
            problem.detail.contains(field) && problem.detail.contains(named),
            "{field}: {}",
            problem.detail
        );
    }
    // Two chunks and a base batch are at least three micro-batches.
    let mut report = json!({"worker": "node/0", "iteration": 0, "local_batch": 60, "compute_time_s": 0.5});
    (report["tail"], report["micro_batches"]) = (tail(&json!({})), json!(2));
    let body = json!({"job_id": "job", "generation": 1, "iteration": 5, "reports": [report]});
    let problem = client.post("/allocate", &body).problem(422, "invalid");
    assert!(problem.detail.contains("reports[0].micro_batches: 2 must be 3 to 60"), "{}", problem.detail);
    let job = client.job("job");
    assert_eq!((job.next_iteration, job.last_decision), (0, None));
}

#[test]
fn invalid_jobs_and_workers_are_rejected_by_field_and_value() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(60));
    let put = |change: Value| client.put("/v1/jobs/other", &change);
    let join = |change: Value| client.post("/v1/jobs/job/workers", &change);
    for (reply, named) in [
        (put(json!({})), "global_batch"),
        (put(json!({"global_batch": 0})), "global_batch: 0"),
        (put(json!({"global_batch": 1u64 << 32})), "global_batch: 4294967296"),
        (put(json!({"global_batch": 60, "quantum": 7})), "quantum, 7"),
        (put(json!({"global_batch": 60, "quantum": 0})), "quantum: 0"),
        (put(json!({"global_batch": 60, "lease_s": 0.5})), "lease_s: 0.5"),
        (put(json!({"global_batch": 60, "min_gain": 1.5})), "min_gain: 1.5"),
        (put(json!({"global_batch": 60, "max_batch_growth": 0.5})), "max_batch_growth: 0.5 must be omitted"),
        (put(json!({"global_batch": 60, "memory_headroom": 0})), "memory_headroom: 0 must be omitted"),
        (put(json!({"global_batch": 60, "flap_cooldown_s": "1m"})), "flap_cooldown_s"),
        // The option of earlier versions.
        (put(json!({"global_batch": 60, "calm": {"trust": 2.0}})), "unknown field `calm`"),
        (put(json!({"global_batch": 60, "overlap_begins": 0.5})), "overlap_begins: 0.5 must be omitted"),
        (put(json!({"global_batch": 60, "min_local_batch": 9, "max_local_batch": 8})), "min_local_batch: 9"),
        (put(json!({"global_batch": 60, "max_local_batch": 0})), "max_local_batch: 0"),
        (put(json!({"global_batch": 60, "min_chunk": 0})), "min_chunk: 0"),
        (put(json!({"global_batch": 60, "quantum": 4, "min_chunk": 6})), "min_chunk: 6 must be a multiple"),
        (
            put(json!({"global_batch": 60, "quantum": 4, "allowed_sizes": [0, 8, 10]})),
            "allowed_sizes: 10 must be a multiple of quantum, 4",
        ),
        (put(json!({"global_batch": 60, "hedge": "always"})), "always"),
        (put(json!({"global_batch": 60, "rule": "adam"})), "adam"),
        (put(json!({"global_batch": 60, "batch": 1})), "batch"),
        (join(json!({"worker": "-"})), "worker"),
        (join(json!({"worker": "w", "max_local_batch": 0})), "max_local_batch: 0"),
        (join(json!({"worker": "w", "device": "x".repeat(257)})), "device: 257"),
        (client.put("/v1/jobs/a%20b", &JobSpec::new(60)), "a b"),
        (client.get("/v1/jobs/job/speeds?limit=0"), "limit: 0"),
        (client.get("/v1/jobs/job/speeds?limit=10001"), "limit: 10001"),
        (client.get("/v1/jobs/job/allocations?form=1"), "form"),
        (client.get("/v1/nodes/node/samples?limit=all"), "limit"),
        (client.get("/allocate?job_id=job&iteration=-1"), "iteration"),
    ] {
        let problem = reply.problem(422, "invalid");
        assert!(problem.detail.contains(named), "{named}: {}", problem.detail);
    }
    client.get("/v1/jobs/other").problem(404, "unknown-job");
    assert_eq!(client.job("job").live_workers, 0);
}

#[test]
fn bodies_beyond_8_mib_are_413_also_where_they_hide_their_length() {
    let service = Service::start();
    let client = &service.client;
    client.put_job("job", &JobSpec::new(60));
    join_all(client, "job", 1);
    let body = |bytes: usize| {
        let start = r#"{"job_id":"job","generation":1,"iteration":0}"#;
        format!("{start}{}", " ".repeat(bytes - start.len()))
    };
    let limit = 8 << 20;
    assert_eq!(client.post_text("/allocate", &body(limit)).status, 200, "the limit itself is allowed");
    let problem = client.post_text("/allocate", &body(limit + 1)).problem(413, "too-large");
    assert!(problem.detail.contains("8388608"), "{}", problem.detail);

    let mut stream = TcpStream::connect(service.predictor.url.strip_prefix("http://").unwrap()).unwrap();
    let head = "POST /allocate HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
    // The service may stop reading at any moment. Writing fails then, but the response arrives.
    let _ = (0..9).try_for_each(|_| stream.write_all(chunk.as_bytes()));
    let _ = stream.write_all(b"0\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    assert!(head.starts_with("HTTP/1.1 413"), "{head}");
    assert!(body.contains("urn:evenstep:problem:too-large"), "{body}");
}

/// The body of a rejected request is read to its end, also where nothing uses it. So the client receives the response,
/// and its next request succeeds.
#[test]
fn a_rejection_keeps_the_connection() {
    let service = Service::start();
    let client = &service.client;
    let spec = JobSpec::new(60);
    let large = " ".repeat((8 << 20) + 1);
    for (reply, status) in [
        (client.put("/v1/jobs/a%20b", &spec), 422),
        (client.put("/v2/jobs/job", &spec), 404),
        (client.put("/allocate", &spec), 405),
        (client.post_text("/allocate", &large), 413),
        (client.post_text("/v1/telemetry", &large), 413),
        (client.post_text("/v2/jobs/job", &large), 404),
        (client.put("/v1/jobs/job", &spec), 201),
        (client.post_text("/allocate", "{"), 400),
    ] {
        assert_eq!((reply.status, reply.connection.as_deref()), (status, None), "{reply:?}");
    }
}

#[test]
fn a_truncated_body_is_not_a_request() {
    let service = Service::start();
    service.client.put_job("job", &JobSpec::new(60));
    join_all(&service.client, "job", 1);
    let address = service.predictor.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let body = r#"{"job_id":"job","generation":1,"iteration":0}"#;
    let head = "POST /allocate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let head = format!("{head}content-length: {}\r\n\r\n", body.len() + 1);
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    if let Some((_, body)) = answer.split_once("\r\n\r\n") {
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(serde_json::from_str::<Problem>(body).is_ok() || body.is_empty(), "{answer}");
    }
    service.client.allocated("job", 0).problem(404, "not-answered");
}
