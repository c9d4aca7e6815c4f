//! Tables of different shapes.

use std::fmt::Write;

use serde_json::Value;

use crate::support::{Folder, number, own_trace};

/// No future information leaks into forecasts: a truth column that is the speed itself changes nothing, and
/// neither do counters or columns of the outcome.
#[test]
fn true_load_and_outcome_are_not_inputs() {
    let own = own_trace(100, 1);
    let mut leaking = String::new();
    for (at, line) in own.lines().enumerate() {
        let speed = line.split(',').nth(4).unwrap();
        let name = if at == 0 { "truth_speed" } else { speed };
        writeln!(leaking, "{line}{name},").unwrap();
    }
    let folder = Folder::with(&own);
    folder.write("leaking.csv", &leaking);
    let of = |words: &str| folder.json(&format!("{words} --models mix"));
    let plain = of("--trace t.csv");
    let rmse = |json: &Value| number(json, 0, "mix", "rmse");
    assert_eq!(rmse(&plain), rmse(&of("--trace leaking.csv")));
    assert_eq!(rmse(&plain), rmse(&of("--trace t.csv --drivers load,flat")));
    let without = of("--trace t.csv --drivers=");
    assert!(rmse(&without) > 1.3 * rmse(&plain), "{} {}", rmse(&without), rmse(&plain));
    folder.refuses(2, "--trace t.csv --drivers load,truth_load", "truth_load");
    folder.refuses(1, "--trace t.csv --drivers speed", "\"speed\" is the forecast column");
}

/// A long table of times of three workers with interleaved rows is equivalent to three tables of speeds.
#[test]
fn a_long_table_of_times_holds_several_workers() {
    let folder = Folder::new();
    let mut long = String::from(",worker,gpu,time,batch_time_norm\n");
    let mut speeds = vec![String::from("speed\n"); 3];
    for row in 0..40u32 {
        for worker in 0..3u32 {
            let time = 100 + 50 * worker + row * 7919 % 13 + 10 * (row / 20);
            writeln!(long, "{},{worker},25,{},{time}", row * 3 + worker, row * 10 + 1).unwrap();
            writeln!(speeds[worker as usize], "{}", 1.0 / f64::from(time)).unwrap();
        }
    }
    folder.write("long.csv", &long);
    folder.write("other.csv", &long.replace(",25,", ",30,"));
    for (worker, speeds) in speeds.iter().enumerate() {
        folder.write(&format!("w{worker}.csv"), speeds);
    }
    let models = "--models last,ema_0.3,arx_all";
    let columns = "--id worker --time time --target-time batch_time_norm";
    let long = folder.json(&format!("--trace long.csv {columns} {models}"));
    let apart = folder.json(&format!("--trace w0.csv w1.csv w2.csv {models}"));
    for worker in 0..3 {
        assert_eq!(long["series"][worker]["unique_id"], worker.to_string());
        for model in ["last", "ema_0.3", "arx_all"] {
            assert_eq!(
                number(&long, worker, model, "rmse"),
                number(&apart, worker, model, "rmse"),
                "{model}"
            );
        }
    }
    assert_eq!(long["step_time"], apart["step_time"]);

    // The column `worker` names the worker of a row by default.
    let unsaid =
        folder.json(&format!("--trace long.csv {} {models}", columns.trim_start_matches("--id worker ")));
    assert_eq!(unsaid["step_time"], long["step_time"]);

    // Two such tables are two jobs with separate iterations.
    let two = folder.json(&format!("--trace long.csv other.csv {columns} {models}"));
    let by_trace = two["step_time_by_trace"].as_array().unwrap();
    assert_eq!(by_trace.len(), 2);
    assert_eq!((&by_trace[1]["trace"], &by_trace[1]["step_time"]), (&"other.csv".into(), &long["step_time"]));
    let csv = folder.prints(&format!("--trace long.csv other.csv {columns} --models last --csv -"));
    assert!(csv.lines().nth(1).unwrap().starts_with("long.csv/0,161,"), "{csv}");
}

/// Speed is the batch over the time.
#[test]
fn times_and_speeds_agree() {
    let folder = Folder::with(&own_trace(60, 1));
    let of = |words: &str| {
        number(
            &folder.json(&format!("--trace t.csv --models arx_all {words}")),
            0,
            "arx_all",
            "rmse_rel_last",
        )
    };
    let (speeds, times) = (of(""), of("--target-time iter_ms"));
    assert!((speeds - times).abs() < 1e-6, "{speeds} {times}");
}

#[test]
fn blanks_numbers_for_names_and_quotes() {
    let folder = Folder::with("  4   1\n 2  0\n\n8\t 1\n4   1\n");
    folder.write("quoted.csv", "\"my speed\",\"x\",\n4,1,\n2,0,\n8,1,\n4,1,\n");
    let blank = folder.json("--trace t.csv --target 0 --drivers 1 --models last");
    let quoted = {
        let mut command = folder.command("--trace quoted.csv --models last --json");
        serde_json::from_slice::<Value>(&command.args(["--target", "my speed"]).output().unwrap().stdout)
            .unwrap()
    };
    // Warm-up is one row: errors -2, 6, -4.
    assert!((number(&blank, 0, "last", "mae") - 4.0).abs() < 1e-12);
    assert_eq!(number(&quoted, 0, "last", "mae"), number(&blank, 0, "last", "mae"));
}

/// The time may be text. It labels the forecasts.
#[test]
fn times_may_be_text() {
    let table = "timestamp,value\n2014-02-14 14:30:00,1\n2014-02-14 14:35:00,2\n2014-02-14 \
        14:40:00,1\n2014-02-14 14:45:00,3\n";
    let folder = Folder::with(table);
    let csv = folder.prints("--trace t.csv --target value --time timestamp --models last --csv -");
    assert!(csv.lines().nth(1).unwrap().starts_with("t,2014-02-14 14:35:00,2,last,"), "{csv}");
    folder.refuses(
        1,
        "--trace t.csv --target value",
        "t.csv:2: column \"timestamp\": \"2014-02-14 14:30:00\"",
    );
}
