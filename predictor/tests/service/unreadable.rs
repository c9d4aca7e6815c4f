//! Rows that this version cannot read, or that a newer version wrote: everything else works.

use std::fs;
use std::path::Path;
use std::process::Command;

use evenstep_protocol::{JobSpec, JobState, LearningRateRule, LiveView};
use evenstep_tests::events::Events;
use evenstep_tests::predictor::without_settings;
use evenstep_tests::store::{sqlite_address, sqlite_file, sqlite_rows};
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Predictor};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{BINARY, allocate_request, allocate_request_with_reports, join_all};

const ITERATIONS: u64 = 6;
/// Columns of text that a store may leave empty.
const OPTIONAL: [(&str, &str); 1] = [("audit", "address")];

/// A store with a value in each column: two jobs, and a node.
fn store() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut predictor = Predictor::start(Path::new(BINARY), folder.path());
    let client = predictor.client();
    for job in ["good", "odd"] {
        client.put_job(job, &JobSpec { rule: LearningRateRule::Linear, ..JobSpec::new(128) });
        let generation = join_all(&client, job, 2);
        for iteration in 0..ITERATIONS {
            let request = allocate_request_with_reports(job, generation, iteration, &[100.0, 200.0]);
            assert_eq!(client.allocate(&request).status, 200);
        }
        let pinned = json!({"max_local_batch": 128});
        assert_eq!(client.put(&format!("/v1/jobs/{job}/workers/node%2F1/override"), &pinned).status, 204);
    }
    let sample = json!({"at_unix_ms": 1_763_758_403_000_i64, "readings": {"cpu_busy": 0.5}});
    let batch = json!({"node": "n", "boot_id": "b", "sequence": 0, "samples": [sample]});
    assert_eq!(client.post("/v1/telemetry", &batch).status, 200);
    let rows = |query: &str| sqlite_rows(&sqlite_file(folder.path()), query);
    let totals = "SELECT totals FROM job WHERE totals IS NOT NULL";
    until("the totals of both jobs are stored", || (rows(totals).len() == 2).then_some(()));
    predictor.process.terminate();
    assert!(predictor.process.wait().success());
    rows(
        r#"INSERT INTO node_summary VALUES ('n', 60, 60000, 1, '{"cpu_busy": [1, 0.5, 0.5, 0.5]}') RETURNING node"#,
    );
    rows(
        "INSERT INTO model_state VALUES ('odd', 0, 0, 0, 0, x'00') ON CONFLICT DO UPDATE SET format = 0 RETURNING job_id",
    );
    rows("INSERT INTO segment VALUES ('odd', 0, 1, 0, 0) RETURNING job_id");
    rows("INSERT INTO device_model VALUES ('cpu', 0, 0, x'00') RETURNING device");
    rows("INSERT INTO node_sample_gone VALUES ('n', 'a', 0, 1, 0) RETURNING node");
    rows("INSERT INTO worker_summary VALUES ('odd', 'node/0', 60, 0, 1, 1, 1, 0, 0, 0, 0) RETURNING job_id");
    rows("INSERT INTO token VALUES ('t', x'00', 'view', '*', 'a note', 0, NULL, NULL) RETURNING token_id");
    folder
}

/// The tables and columns of a store with JSON objects, from its schema.
fn json_columns(folder: &Path) -> Vec<(String, String)> {
    let rows = |query: &str| sqlite_rows(&sqlite_file(folder), query);
    let columns = rows(
        "SELECT tables.name, columns.name FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
         WHERE tables.type = 'table' AND tables.name NOT LIKE '\\_sqlx%' ESCAPE '\\' AND columns.type = 'TEXT'",
    );
    let text = |cell: &Option<String>| cell.clone().unwrap();
    let mut found = Vec::new();
    for (table, column) in columns.iter().map(|row| (text(&row[0]), text(&row[1]))) {
        let values = rows(&format!("SELECT {column} FROM {table} WHERE {column} IS NOT NULL LIMIT 1"));
        let is_optional = OPTIONAL.contains(&(table.as_str(), column.as_str()));
        assert!(is_optional || !values.is_empty(), "{table}.{column} has no value: let `store` fill it");
        let is_object = |row: &Vec<Option<String>>| serde_json::from_str::<Value>(&text(&row[0])).is_ok();
        if values.first().is_some_and(is_object) {
            found.push((table, column));
        }
    }
    assert!(found.len() >= 10, "{found:?}");
    found
}

/// A copy of a store in which a column of the job `odd`, or of all nodes, has this value.
fn changed(folder: &Path, (table, column): (&str, &str), value: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    fs::copy(sqlite_file(folder), sqlite_file(copy.path())).unwrap();
    let of_job = "SELECT name FROM pragma_table_info('{}') WHERE name = 'job_id'".replace("{}", table);
    let of_job = !sqlite_rows(&sqlite_file(copy.path()), &of_job).is_empty();
    let condition = if of_job { "job_id = 'odd'" } else { "true" };
    let set = format!(
        "UPDATE {table} SET {column} = {value} WHERE {condition} AND {column} IS NOT NULL RETURNING 'x'"
    );
    assert!(!sqlite_rows(&sqlite_file(copy.path()), &set).is_empty());
    copy
}

fn live(client: &Client) -> LiveView {
    Events::open(&format!("{}/v1/live", client.url())).next_of(&["jobs"]).unwrap().json()
}

/// Checks that one column of the job `odd` concerns no one else, and that the job can be exported and deleted. Its
/// allocations fail if `refused`, with an error that names the job and contains this text.
fn check(copy: &Path, name: &str, refused: Option<&str>) {
    let flags = ["--refit-interval-s=86400"];
    let predictor = Predictor::start_over(Path::new(BINARY), &sqlite_address(copy), &flags);
    let client = predictor.client();
    let jobs = |client: &Client| -> Vec<(String, String)> {
        let list: Value = client.get("/v1/jobs").json();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        list["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| (text(&job["job_id"]), text(&job["state"])))
            .collect()
    };
    assert_eq!(
        jobs(&client).iter().map(|(job, _)| job.as_str()).collect::<Vec<_>>(),
        ["good", "odd"],
        "{name}"
    );
    assert_eq!(live(&client).jobs.len(), 2, "{name}");
    assert_eq!(client.allocate(&allocate_request("good", 2, ITERATIONS)).status, 200, "{name}");
    for path in
        ["/readyz", "/v1/nodes", "/v1/store", "/metrics", "/v1/jobs/good/summary", "/v1/nodes/n/samples"]
    {
        assert_eq!(client.get(path).status, 200, "{name}: {path}");
    }
    let answer = client.allocate(&allocate_request("odd", 2, ITERATIONS));
    if let Some(reason) = refused {
        let problem = answer.problem(503, "unreadable");
        assert!(problem.detail.contains("job odd") && problem.detail.contains(reason), "{name}: {problem:?}");
        assert_eq!(jobs(&client)[1].1, "unreadable", "{name}");
        let shown = until("the list shows the state", || {
            Some(live(&client).jobs.remove(1)).filter(|odd| odd.state == Some(JobState::Unreadable))
        });
        assert!(shown.state_reason.as_ref().is_some_and(|said| said.contains(reason)), "{name}: {shown:?}");
    } else {
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
    }
    let mut export = Command::new(BINARY);
    export.args(["store", "export", "--job=odd", "--store", &sqlite_address(copy), "--to"]);
    let export = without_settings(export.arg(copy.join("out"))).output().unwrap();
    assert!(export.status.success(), "{name}: {export:?}");
    assert!(fs::read_to_string(copy.join("out/job.csv")).unwrap().contains("odd"), "{name}");
    assert_eq!(client.delete("/v1/jobs/odd").status, 204, "{name}");
    assert_eq!(jobs(&client).len(), 1, "{name}");
}

#[test]
fn a_field_of_a_newer_version_in_any_column_concerns_at_most_its_own_job() {
    let folder = store();
    for (table, column) in json_columns(folder.path()) {
        let value = format!("json_set({column}, '$.option_of_the_future', 5)");
        let copy = changed(folder.path(), (&table, &column), &value);
        let name = format!("{table}.{column}");
        let predictor = Predictor::start(Path::new(BINARY), copy.path());
        let client = predictor.client();
        for path in ["", "/workers", "/forecast", "/summary", "/history", "/log", "/allocations", "/speeds"] {
            assert_eq!(client.get(&format!("/v1/jobs/odd{path}")).status, 200, "{name}: {path}");
        }
        drop(predictor);
        check(copy.path(), &name, (name == "job.spec").then_some("option_of_the_future"));
    }
}

#[test]
fn a_job_with_an_unknown_option_is_planned_once_it_is_set_again() {
    let folder = store();
    let value = "json_set(spec, '$.learning_rate.option_of_the_future', 5)";
    let copy = changed(folder.path(), ("job", "spec"), value);
    let mut predictor = Predictor::start(Path::new(BINARY), copy.path());
    let mut client = predictor.client();
    let request = allocate_request_with_reports("odd", 2, ITERATIONS, &[100.0, 200.0]);
    let problem = client.allocate(&request).problem(503, "unreadable");
    assert!(problem.detail.contains("option_of_the_future"), "{problem:?}");
    // Its reports are learned meanwhile, and its earlier allocations are returned.
    let reports = "SELECT worker FROM report WHERE job_id = 'odd' AND iteration = ".to_owned();
    let reports = reports + &(ITERATIONS - 1).to_string();
    assert_eq!(sqlite_rows(&sqlite_file(copy.path()), &reports).len(), 2);
    assert_eq!(client.allocate(&allocate_request("odd", 2, ITERATIONS - 1)).status, 200);
    let spec = client.job("odd").spec.unwrap();
    client.put_job("odd", &spec);
    for _ in 0..2 {
        assert_eq!(client.allocate(&request).status, 200);
        predictor.kill_and_restart();
        client = predictor.client();
    }
}

#[test]
fn a_damaged_column_concerns_at_most_its_own_job() {
    let folder = store();
    for (table, column) in json_columns(folder.path()) {
        let name = format!("{table}.{column}");
        let reason = match name.as_str() {
            "job.spec" => Some("stored job cannot be read"),
            "job.learning_rate" => Some("stored learning rate cannot be read"),
            "worker.request" => Some("stored join request cannot be read"),
            "worker.operator_override" => Some("stored override cannot be read"),
            "allocation.answer" => Some("stored answer cannot be read"),
            // Caches, and measurements: they are computed again, or missing.
            _ => None,
        };
        for value in
            [format!("substr({column}, 1, length({column}) / 2)"), "CAST(x'7bff' AS TEXT)".to_owned()]
        {
            check(changed(folder.path(), (&table, &column), &value).path(), &name, reason);
        }
    }
    for (column, value, reason) in [
        ("spec", "json_set(spec, '$.global_batch', -1)", "-1"),
        ("spec", "json_set(spec, '$.quantum', 0)", "quantum"),
        ("spec", "json_set(spec, '$.hedge', 'perhaps')", "perhaps"),
        ("generation", "-1", "-1"),
    ] {
        check(changed(folder.path(), ("job", column), value).path(), value, Some(reason));
    }
}
