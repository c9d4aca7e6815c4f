//! `evenstep-predictor store`: maintenance of stores that real predictors wrote, on both databases.

mod check;

mod export;

mod import;

mod vacuum;

use std::path::Path;
use std::process::Output;

use evenstep_protocol::{
    AllocateRequest, JobId, JobSpec, JoinRequest, NodeId, NodeSample, TelemetryBatch, WorkerId, WorkerReport,
};
use evenstep_tests::postgres::Database;
use evenstep_tests::store::Store;
use evenstep_tests::{Client, Predictor};

use crate::support::Folder;

const BINARY: &str = env!("CARGO_BIN_EXE_evenstep-predictor");

/// Number of allocated iterations of a job.
const ITERATIONS: u64 = 12;
/// Number of samples of a node.
const SAMPLES: u64 = 300;

/// An empty store of each database. Without PostgreSQL, only SQLite, and the test prints this.
fn stores(test: &str) -> Vec<Store> {
    let mut stores = vec![Store::sqlite()];
    stores.extend(Database::shared(test).map(Store::Postgres));
    stores
}

/// A predictor that stores models immediately.
fn serve(store: &Store) -> Predictor {
    Predictor::start_over(Path::new(BINARY), &store.address(), &["--refit-interval-s=1"])
}

/// Lets a predictor store rows in every table: two jobs whose workers leave and return, and a node.
fn fill(client: &Client) {
    for job in ["job-a", "job-b"] {
        client
            .put_job(job, &JobSpec { rule: evenstep_protocol::LearningRateRule::Linear, ..JobSpec::new(96) });
        let mut generation = 0;
        for worker in 0..3 {
            let worker = WorkerId::new(format!("node/{worker}")).unwrap();
            let request =
                JoinRequest { claims: true, device: Some("cpu".into()), ..JoinRequest::new(worker) };
            let joined = client.post(&format!("/v1/jobs/{job}/workers"), &request);
            generation = joined.json::<evenstep_protocol::JoinResponse>().generation;
        }
        for iteration in 0..ITERATIONS {
            if iteration == ITERATIONS / 2 {
                client.leave(job, "node/2");
                generation = client.join(job, "node/2").generation;
            }
            let mut request = AllocateRequest::new(JobId::new(job).unwrap(), generation, iteration);
            let before = iteration.checked_sub(1);
            request.reports = before
                .into_iter()
                .flat_map(|before| (0..3).map(move |worker| report(worker, before)))
                .collect();
            let answer = client.allocate(&request);
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let pinned = serde_json::json!({"pinned_local_batch": 8});
        assert_eq!(client.put(&format!("/v1/jobs/{job}/workers/node%2F1/override"), &pinned).status, 204);
    }
    let sample = |sequence: u64| NodeSample {
        at_unix_ms: 1_763_758_403_000 + sequence.cast_signed() * 1000,
        readings: [
            ("psi_cpu_some".to_owned(), 1.0 / (sequence + 3) as f64),
            ("procs_running".to_owned(), 2.0),
        ]
        .into(),
        missing: [("gpu".to_owned(), "a \"driver\"\tis\\missing\n".to_owned())].into(),
        ..NodeSample::default()
    };
    let batch = TelemetryBatch {
        node: NodeId::new("node-a").unwrap(),
        boot_id: "boot".to_owned(),
        sequence: 0,
        samples: (0..SAMPLES).map(sample).collect(),
    };
    assert_eq!(client.post("/v1/telemetry", &batch).status, 200);
}

fn report(worker: u64, iteration: u64) -> WorkerReport {
    let local_batch = 32;
    WorkerReport {
        drivers: [("other_cpu".to_owned(), (iteration % 5) as f64 / 7.0)].into(),
        barrier_wait_s: (worker > 0).then_some(0.1),
        ..WorkerReport::new(
            WorkerId::new(format!("node/{worker}")).unwrap(),
            iteration,
            local_batch,
            local_batch as f64 / (100.0 + 30.0 * worker as f64),
        )
    }
}

/// A store that a predictor has filled and no longer serves.
fn filled(store: &Store) {
    let mut predictor = serve(store);
    fill(&predictor.client());
    evenstep_tests::wait::until("models are stored", || {
        (rows(store, "SELECT 1 FROM model_state WHERE part = 0") == 2
            && rows(store, "SELECT 1 FROM device_model") == 1)
            .then_some(())
    });
    predictor.process.terminate();
    assert!(predictor.process.wait().success(), "{}", predictor.process.output());
}

/// Number of rows of a query.
fn rows(store: &Store, query: &str) -> usize {
    let count = store.rows(&format!("SELECT CAST(count(*) AS TEXT) FROM ({query}) AS counted"));
    count[0][0].as_deref().unwrap().parse().unwrap()
}

/// Runs a `store` command in a folder.
fn run(folder: &Folder, words: &[&str]) -> Output {
    folder.command("").args(words).output().unwrap()
}

/// Runs a `store` command, which must succeed. Returns its standard output.
fn prints(folder: &Folder, words: &[&str]) -> String {
    let output = run(folder, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that a `store` command exits with this status and its error names all of `named`. Returns its
/// standard output.
fn refuses(folder: &Folder, status: i32, words: &[&str], named: &[&str]) -> String {
    let output = run(folder, words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{words:?}: {output:?}");
    assert!(named.iter().all(|named| said.contains(named)), "{words:?} must name {named:?}: {said}");
    assert!(!said.contains("panicked") && said.lines().count() <= 9, "{said}");
    String::from_utf8(output.stdout).unwrap()
}
