//! System identification.

use std::fmt::Write;

use serde_json::Value;

use crate::support::{Folder, number};

/// y(k) = 0.5 y(k-1) - 0.2 y(k-2) + u(k-1), with `u` in the first column and `y` in the second. The series
/// crosses zero.
fn linear_system(rows: u32) -> String {
    let mut table = String::new();
    let (mut y, mut before, mut input) = (0.0f64, 0.0f64, 0.0f64);
    for row in 0..rows {
        (y, before) = (0.5 * y - 0.2 * before + input, y);
        input = f64::from(row * 7919 % 13) - 6.0;
        writeln!(table, "{input} {y}").unwrap();
    }
    table
}

const SYSTEM: &str = "--trace t.csv --target 1 --drivers 0 --train 50..200 --lags-y 2 --lags-u 1";

#[test]
fn free_run_prediction_of_a_linear_system_is_exact() {
    let folder = Folder::with(&linear_system(400));
    for words in ["--free-run", "", "--free-run --current no", "--free-run --current yes"] {
        let json = folder.json(&format!("{SYSTEM} --test 250..400 {words} --models arx"));
        assert!(number(&json, 0, "arx", "rmse") < 1e-6, "{words}: {json}");
        assert!(number(&json, 0, "arx", "rmse_rel_last") < 1e-6, "{words}: {json}");
        assert_eq!(json["series"][0]["tested"], 150);
        assert_eq!(json["step_time"], Value::Array(vec![]));
    }
    // The free run of a model without the driver of the system diverges.
    let blind = folder
        .json("--trace t.csv --target 1 --train 50..200 --test 250..400 --lags-y 2 --free-run --models arx");
    assert!(number(&blind, 0, "arx", "rrse") > 0.5, "{blind}");
}

#[test]
fn inputs_may_be_signs() {
    let mut table = String::new();
    let mut y = 0.0f64;
    let mut input = 0.0f64;
    for row in 0..200u32 {
        y = 0.5 * y + if input == 0.0 { 0.0 } else { input.signum() };
        input = f64::from(row * 7919 % 13) - 6.0;
        writeln!(table, "{input},{y}").unwrap();
    }
    let folder = Folder::with(&table);
    let of = |driver: &str| {
        let words =
            format!("--trace t.csv --target 1 --drivers {driver} --train ..100 --lags-y 1 --models arx");
        number(&folder.json(&words), 0, "arx", "rmse")
    };
    assert!(of("sign(0)") < 1e-6 && of("0") > 0.01, "{} {}", of("sign(0)"), of("0"));
}

/// By hand: the last value over rows 3, 4, 5 (values 7, 1, 4) one row ahead, in free run, and without the
/// first row.
#[test]
fn the_last_value_baseline_is_included() {
    let folder = Folder::with("x\n0\n5\n2\n7\n1\n4\n");
    let mae = |words: &str| {
        let words =
            format!("--trace t.csv --target x --train 0..3 --test 3..6 --lags-y 1 --models last {words}");
        number(&folder.json(&words), 0, "last", "mae")
    };
    assert_eq!(mae(""), (5.0 + 6.0 + 3.0) / 3.0);
    assert_eq!(mae("--free-run"), (5.0 + 1.0 + 2.0) / 3.0);
    assert_eq!(mae("--skip 1"), 4.5);
    let forecasts =
        folder.prints("--trace t.csv --target x --test 3.. --lags-y 1 --models last --skip 1 --csv -");
    assert_eq!(forecasts, "unique_id,ds,y,model,y_hat,lo,hi\nt,4,1,last,7,,\nt,5,4,last,1,,\n");
}

#[test]
fn shapes_that_do_not_fit_are_rejected() {
    let folder = Folder::with(&linear_system(100));
    let of = |status: i32, words: &str, named: &str| {
        folder.refuses(status, &format!("--trace t.csv --target 1 {words}"), named);
    };
    of(1, "--train 0..101", "the train range 0..101 ends after the last of 100 rows");
    of(1, "--train 0..50 --test 90..110", "the test range 90..110 ends after the last of 100 rows");
    of(1, "--train 0..3 --lags-y 3", "need more than 3 rows");
    of(1, "--train 5..50 --test 1..4", "3 rows must precede it");
    of(1, "--train 0..50 --skip 49", "at least 2 rows must remain");
    of(2, "--train 50..50", "empty");
    of(2, "--train 50..40", "empty");
    of(2, "--train 50", "A..B");
    of(2, "--train 0..50 --models mix", "mix is a streaming model");
    of(2, "--train 0..50 --warmup 0.5", "--warmup");
    of(2, "--train 0..50 --free-run --horizon 2", "--horizon");
    of(2, "--free-run", "--train");
    of(2, "--train 0..50 --lags-y 0", "need drivers");
    folder.write("t.csv", "1,2\n2,3\n,4\n4,5\n");
    of(1, "--drivers 0 --train 0..2 --lags-y 1", "t.csv:3: column \"0\": \"\" is missing");
}
