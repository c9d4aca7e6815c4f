//! End-to-end tests of the command `report`: table, page and JSON from a record, and errors for malformed
//! records.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const WARM_UP: u64 = 5;
const ITERATIONS: u64 = 15;

/// Returns an iteration of two workers at paces 1 and 3: 60 ms with even batches, 40 ms under base, and 30 ms
/// under evenstep, which is the ideal.
fn iteration(policy: &str, iteration: u64) -> Value {
    let (batches, times) = match policy {
        "even" => ([60, 60], [0.06, 0.02]),
        "base" => ([40, 80], [0.04, 80.0 / 3000.0]),
        _ => ([30, 90], [0.03, 0.03]),
    };
    let slowest = f64::max(times[0], times[1]);
    let worker = |rank: usize| {
        let tail = (policy == "evenstep").then(
            || json!({"chunks": 2 + rank, "samples": 12, "compute_time_s": 0.01, "claim_time_s": 0.0003}),
        );
        json!({"worker": format!("node/{rank}"), "tail": tail, "micro_batches": 4, "local_batch": batches[rank], "compute_time_s": times[rank],
            "barrier_wait_s": slowest - times[rank], "loader_wait_s": 0.0, "drivers": {},
            "predicted_speed_samples_per_s": batches[rank] as f64 / times[rank]})
    };
    let server_s = (policy == "evenstep").then_some(0.001 * iteration as f64);
    json!({"kind": "iteration", "policy": policy, "iteration": iteration, "epoch": 0, "at_s": 0.0, "global_batch": 120,
        "step_time_s": slowest, "request_s": 0.0, "server_s": server_s, "all_reduce_s": 0.0, "loss": 1.0,
        "workers": [worker(0), worker(1)]})
}

fn record(policies: &[&str]) -> Vec<Value> {
    let mut lines = vec![
        json!({"kind": "run", "scenario": "paced", "paces": [1.0, 3.0], "workers": ["node/0", "node/1"],
        "global_batch": 120, "model": "mlp", "data": "task", "steps": ITERATIONS, "seed": 1, "ask": "boundary",
        "policies": policies, "block": 5, "notes": ["imposed speeds <1 & 3>"]}),
    ];
    for policy in policies {
        lines.extend((0..ITERATIONS).map(|number| iteration(policy, number)));
        lines.push(json!({"kind": "end", "policy": policy, "iterations": ITERATIONS, "final_loss": 0.5,
            "evaluation": "held out", "pace_missed": [0, 0], "reports_lost": 0}));
    }
    lines
}

fn report(folder: &Path, lines: &[Value], extra: &[&str]) -> Output {
    let path = folder.join("record.jsonl");
    fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenstep-trainer"));
    command.arg("report").arg(&path).args(extra).current_dir(folder).output().unwrap()
}

#[test]
fn known_times_give_known_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        report(folder.path(), &record(&["even", "evenstep"]), &["--json=figures.json", "--html=page.html"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let figures: Value =
        serde_json::from_slice(&fs::read(folder.path().join("figures.json")).unwrap()).unwrap();
    let close = |pointer: &str, expected: f64| {
        let value = figures.pointer(pointer).and_then(Value::as_f64).unwrap();
        assert!((value - expected).abs() < 1e-9 * expected.max(1.0), "{pointer} {value}");
    };
    let run = &figures["runs"][0];
    assert_eq!((&run["scenario"], &run["policy"]), (&json!("paced"), &json!("even")));
    close("/runs/0/throughput_samples_per_s", 2000.0);
    close("/runs/0/ideal_throughput_samples_per_s", 4000.0);
    close("/runs/0/step_time_s/p50", 0.06);
    close("/runs/0/barrier_wait_share", 1.0 / 3.0);
    assert_eq!(figures["runs"][1]["policy"], json!("evenstep"));
    close("/runs/1/throughput_samples_per_s", 4000.0);
    close("/runs/1/step_time_s/p95", 0.03);
    close("/runs/1/barrier_wait_share", 0.0);
    close("/runs/1/final_loss", 0.5);
    close("/runs/1/gain", 2.0);
    close("/runs/1/share_of_ideal", 1.0);
    close("/runs/1/gain_like_for_like", 2.0);
    // Iteration n takes n ms; 5 to 14 count after the warm-up.
    close("/allocate_ms/p50", 10.0);
    close("/allocate_ms/p99", 14.0);
    close("/allocate_ms/count", (ITERATIONS - WARM_UP) as f64);

    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("imposed speeds <1 & 3>") && table.contains("2.00x"), "{table}");
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("Imposed speeds &lt;1 &amp; 3&gt;") && page.contains("2.00×"));
}

#[test]
fn a_shared_tail_is_compared_with_the_same_forecasts_alone() {
    let folder = tempfile::tempdir().unwrap();
    let lines = record(&["even", "base", "evenstep"]);
    let output = report(folder.path(), &lines, &["--json=figures.json", "--html=page.html"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: Value =
        serde_json::from_slice(&fs::read(folder.path().join("figures.json")).unwrap()).unwrap();
    let number = |pointer: &str| figures.pointer(pointer).and_then(Value::as_f64);
    let close = |pointer: &str, expected: f64| {
        assert!((number(pointer).unwrap() - expected).abs() < 1e-9, "{pointer} {:?}", number(pointer));
    };
    assert_eq!(figures.pointer("/runs/0/record"), Some(&json!("record")));
    close("/runs/1/gain", 1.5);
    close("/runs/1/barrier_wait_s", 0.02 / 3.0);
    close("/runs/2/step_time_s/mean", 0.03);
    close("/runs/2/over_base/gain", 4.0 / 3.0);
    close("/runs/2/over_base/gain_like_for_like", 4.0 / 3.0);
    close("/runs/2/over_base/barrier_wait", 0.0);
    close("/runs/2/over_base/speed", 1.0);
    close("/runs/2/claim_share", 0.01);
    // Each worker computes a base batch of 18 or 78 samples in 20 ms, and 12 samples of the tail in 10
    // ms.
    close("/runs/2/chunk_overhead_share", (0.02 - 12.0 / 900.0 - 12.0 / 3900.0) / 2.0 / 0.03);
    close("/runs/2/chunks", 5.0);
    close("/runs/2/tail_share", 0.2);
    close("/runs/2/passes", 8.0);
    close("/runs/1/claim_share", 0.0);
    assert_eq!((number("/runs/0/over_base/gain"), number("/runs/1/over_base/gain")), (None, None));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("1.33x"), "{table}");
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("Batches under base") && page.contains("Batches under evenstep"));
}

#[test]
fn a_broken_record_is_rejected_with_its_line_and_nothing_is_written() {
    type Corruption = fn(&mut Vec<Value>);
    let broken: [(Corruption, &str); 10] = [
        (|lines| lines.clear(), "kind run"),
        (|lines| drop(lines.remove(0)), "line 1: "),
        (|lines| lines.insert(3, lines[0].clone()), "line 4: "),
        (|lines| drop(lines.remove(4)), "line 5: iteration 4 of even: must follow 2"),
        (|lines| lines[2]["step_time_s"] = json!(0.0), "line 3: step_time_s 0"),
        (|lines| lines[2]["workers"][1]["compute_time_s"] = json!(-1.0), "line 3: node/1: compute_time_s -1"),
        (|lines| lines[2]["workers"][1]["local_batch"] = json!(59), "line 3: the local batches sum to 119"),
        (|lines| lines[2]["workers"][1]["worker"] = json!("other"), "line 3: "),
        (|lines| lines[2]["loss"] = json!("low"), "line 3"),
        (|lines| drop(lines.pop()), "no end line of policy evenstep"),
    ];
    for (corrupt, words) in broken {
        let folder = tempfile::tempdir().unwrap();
        let mut lines = record(&["even", "evenstep"]);
        corrupt(&mut lines);
        let output = report(folder.path(), &lines, &["--json=figures.json"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(words), "{words}: {error}");
        assert!(error.contains("record.jsonl"), "{error}");
        assert!(output.stdout.is_empty() && !folder.path().join("figures.json").exists());
    }
}
