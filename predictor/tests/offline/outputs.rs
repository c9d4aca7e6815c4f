//! Outputs of the commands, and their correctness.

use serde_json::Value;

use crate::support::{Folder, number, own_trace};

/// By hand. Warm-up: 2 of 5 rows. The last value forecasts 4, 2, 8 for 2, 8, 4: errors -2, 6, -4.
#[test]
fn the_numbers_are_those_of_the_formulas() {
    let folder = Folder::with("speed\n8\n4\n2\n8\n4\n");
    let json = folder.json("--trace t.csv --models last,ema_1");
    for model in ["last", "ema_1"] {
        let is = |key: &str, expected: f64| {
            let ours = number(&json, 0, model, key);
            assert!((ours - expected).abs() < 1e-12, "{key}: {ours} {expected}");
        };
        // The mean of 2, 8, 4 is 14/3; squared deviations: 64/9 + 100/9 + 4/9 = 168/9.
        is("rmse", (56.0f64 / 3.0).sqrt());
        is("mae", 4.0);
        is("mape", (1.0 + 0.75 + 1.0) / 3.0);
        is("nmse", 56.0 / (168.0 / 9.0));
        is("rrse", 3.0f64.sqrt());
        is("rmse_rel_last", 1.0);
    }
    assert_eq!(
        (json["series"][0]["rows"].as_u64(), json["series"][0]["tested"].as_u64()),
        (Some(5), Some(3))
    );
}

fn cell(line: &str, column: usize) -> f64 {
    line.split(',').nth(column).unwrap().parse().unwrap()
}

/// The shape of the JSON that scripts rely on. A model's results do not depend on which other models are run.
#[test]
fn json_has_its_shape() {
    let folder = Folder::new();
    folder.write("one.csv", &own_trace(120, 1));
    folder.write("two.csv", &own_trace(100, 2));
    let json = folder.json("--trace one.csv two.csv --models ema,mix,arx_all");
    let series = json["series"].as_array().unwrap();
    assert_eq!(series.len(), 2);
    assert_eq!((&series[1]["trace"], &series[1]["unique_id"]), (&"two.csv".into(), &"two".into()));
    for one in series {
        let names: Vec<&Value> =
            one["models"].as_array().unwrap().iter().map(|model| &model["model"]).collect();
        assert_eq!(names, ["ema", "mix", "arx_all"]);
        for model in one["models"].as_array().unwrap() {
            for key in [
                "rmse",
                "mae",
                "mape",
                "rrse",
                "nmse",
                "rmse_rel_last",
                "coverage",
                "width",
                "fit_s",
                "predict_us",
            ] {
                assert!(model[key].as_f64().is_some_and(|number| number >= 0.0), "{key}: {model}");
            }
        }
    }
    let steps = json["step_time"].as_array().unwrap();
    assert_eq!(steps.len(), 3);
    for step in steps {
        let (mean, p95) =
            (step["mean_over_oracle"].as_f64().unwrap(), step["p95_over_oracle"].as_f64().unwrap());
        assert!(mean >= 1.0 && p95 >= 1.0, "{step}");
    }
    assert_eq!(steps[2]["model"], "arx_all");
    assert!(json.get("step_time_by_trace").is_none());
    // The driver explains most of the variance.
    assert!(number(&json, 0, "arx_all", "rmse_rel_last") < 0.6, "{json}");

    let alone = folder.json("--trace one.csv --models arx_all");
    assert_eq!(alone["step_time"], Value::Array(vec![]));
    for key in ["rmse", "rmse_rel_last", "coverage"] {
        assert_eq!(number(&alone, 0, "arx_all", key), number(&json, 0, "arx_all", key));
    }
}

/// By hand, the last value over rows 2, 3 and 4 of 30 samples. Forecast speeds: (10, 10), (10, 10), (10, 20).
/// Actual speeds: (10, 10), (10, 20), (20, 10). The iterations take 1.5, 1.5 and 2 s, and with the oracle
/// 1.5, 1 and 1 s. The shorter series determines where the iterations begin and end, although row 2 is within
/// the warm-up of the longer.
#[test]
fn steps_follow_their_events() {
    let folder = Folder::new();
    folder.write("a.csv", "speed\n10\n10\n10\n10\n20\n");
    folder.write("b.csv", "speed\n10\n10\n10\n20\n10\n99\n99\n99\n99\n");
    let json = folder.json("--trace a.csv b.csv --models last --global-batch 30");
    let step = &json["step_time"][0];
    assert!((step["mean_over_oracle"].as_f64().unwrap() - 5.0 / 3.5).abs() < 1e-9, "{step}");
    assert!((step["p95_over_oracle"].as_f64().unwrap() - 2.0).abs() < 1e-9, "{step}");
}

/// By hand: constant speeds 10 and 30 that both models forecast exactly, so only the even split loses time:
/// 64 of 128 samples at 10 take twice the time of the oracle's 32.
#[test]
fn step_times_are_those_of_the_allocation() {
    let folder = Folder::new();
    folder.write("slow.csv", &format!("speed\n{}", "10\n".repeat(10)));
    folder.write("fast.csv", &format!("speed\n{}", "30\n".repeat(8)));
    let json = folder.json("--trace slow.csv fast.csv --models last");
    let step = &json["step_time"][0];
    let near = |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 1e-9;
    assert!(near(&step["mean_over_oracle"], 1.0) && near(&step["p95_over_oracle"], 1.0), "{step}");
    assert!(near(&json["step_time_even"]["mean_over_oracle"], 2.0), "{json}");
    // Of 4 samples the oracle gives 1 to the slow worker (0.1 s), an even split 2.
    let small = folder.json("--trace slow.csv fast.csv --models last --global-batch 4");
    assert!(near(&small["step_time_even"]["mean_over_oracle"], 2.0), "{small}");
    // Undefined errors are null: a constant series has no variance, and the last value no error.
    let model = &json["series"][0]["models"][0];
    assert_eq!(
        (&model["rrse"], &model["nmse"], &model["rmse_rel_last"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
}

#[test]
fn every_output_goes_where_it_should() {
    let folder = Folder::with(&own_trace(60, 3));
    let table = folder.prints("--trace t.csv --models last,mix --json j.json --csv f.csv --report r.html");
    assert!(table.contains("mix") && table.contains("coverage"), "{table}");
    let json: Value = serde_json::from_str(&folder.read("j.json")).unwrap();
    assert_eq!(json["series"][0]["unique_id"], "t");
    let csv = folder.read("f.csv");
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("unique_id,ds,y,model,y_hat,lo,hi"));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 2 * 36);
    for line in &lines {
        let (y_hat, lo, hi) = (cell(line, 4), cell(line, 5), cell(line, 6));
        assert!(lo <= y_hat && y_hat <= hi, "{line}");
    }
    // The first row after the warm-up, with its time.
    assert!(lines[0].starts_with("t,12,"), "{}", lines[0]);
    let page = folder.read("r.html");
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.contains("★") && page.contains("\"kind\":\"band\""),
        "{}",
        page.len()
    );
    assert!(page.contains("default-src 'none'") && !page.contains(" src=") && !page.contains(" href="));

    assert_eq!(folder.prints("--trace t.csv --models last,mix --csv -"), csv);
    assert!(folder.prints("--trace t.csv --report -").starts_with("<!DOCTYPE html>"));
    assert_eq!(
        folder.prints_with_input(&own_trace(60, 3), "--trace - --models last --csv -").lines().count(),
        37
    );
}

/// The results do not depend on the number of threads; only times differ.
#[test]
fn the_number_of_threads_does_not_matter() {
    let folder = Folder::new();
    let traces: Vec<String> = (0..4).map(|trace| format!("{trace}.csv")).collect();
    for (seed, trace) in traces.iter().enumerate() {
        folder.write(trace, &own_trace(250, seed as u64));
    }
    let words = format!("--trace {} --models last,mix,arx --json", traces.join(" "));
    let run = |threads: &str| {
        let output = folder.command(&words).env("RAYON_NUM_THREADS", threads).output().unwrap();
        let mut json: Value = serde_json::from_slice(&output.stdout).unwrap();
        for series in json["series"].as_array_mut().unwrap() {
            for model in series["models"].as_array_mut().unwrap() {
                let model = model.as_object_mut().unwrap();
                model.remove("fit_s").unwrap();
                model.remove("predict_us").unwrap();
            }
        }
        json
    };
    let one = run("1");
    assert!(number(&one, 3, "mix", "rmse") > 0.0);
    assert_eq!(one, run("4"));
}
