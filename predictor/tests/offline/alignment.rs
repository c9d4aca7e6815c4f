//! Histories with missing, repeated or differently written rows of workers.

use std::fmt::Write;

use serde_json::Value;

use crate::support::Folder;

/// Iterations of the histories.
const ITERATIONS: usize = 240;

/// A row of a history.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    worker: &'static str,
    iteration: usize,
    seconds: f64,
}

/// Two workers. One has a third of the other's speed; they swap every 30 iterations, with noise of a few percent.
fn swapping() -> Vec<Row> {
    let row = |at: usize| {
        let (iteration, worker) = (at / 2, ["a", "b"][at % 2]);
        let share = if (iteration / 30 % 2 == 0) == (worker == "a") { 0.35 } else { 1.0 };
        Row { worker, iteration, seconds: 0.08 / share * (1.0 + 0.002 * (at * 7919 % 13) as f64) }
    };
    (0..2 * ITERATIONS).map(row).collect()
}

/// Both are slow at the same times, so an even split is right.
fn together() -> Vec<Row> {
    let row = |at: usize| {
        let iteration = at / 2;
        let seconds = if (iteration / 5).is_multiple_of(2) { 0.1 } else { 0.2 };
        Row {
            worker: ["a", "b"][at % 2],
            iteration,
            seconds: seconds * (1.0 + 0.0001 * (at * 7919 % 13) as f64),
        }
    };
    (0..2 * ITERATIONS).map(row).collect()
}

/// Mean step of an even split by hand: the slowest worker in each iteration of which both have a row. Of repeated rows the last counts.
fn even_s(rows: &[Row]) -> f64 {
    let of = |worker: &str, iteration| {
        let found = rows.iter().rev().find(|row| row.worker == worker && row.iteration == iteration);
        found.map(|row| row.seconds)
    };
    let steps: Vec<f64> =
        (0..ITERATIONS).filter_map(|iteration| Some(of("a", iteration)?.max(of("b", iteration)?))).collect();
    let counted = &steps[(0.4 * steps.len() as f64) as usize..];
    counted.iter().sum::<f64>() / counted.len() as f64
}

/// The table with a time column written by `time`.
fn table(rows: &[Row], time: impl Fn(&Row) -> String) -> String {
    let mut text = String::from("time,worker,local_batch,compute_time_s\n");
    for row in rows {
        writeln!(text, "{},{},64,{}", time(row), row.worker, row.seconds).unwrap();
    }
    text
}

fn by_iteration(rows: &[Row]) -> String {
    table(rows, |row| row.iteration.to_string())
}

/// Seconds since the start of the run: a step lasts a quarter of a second, `b` is late by a hundredth.
fn by_seconds(rows: &[Row]) -> String {
    table(rows, |row| format!("{:.3}", seconds(row)))
}

fn seconds(row: &Row) -> f64 {
    0.25 * row.iteration as f64 + if row.worker == "b" { 0.01 } else { 0.0 }
}

const COLUMNS: &str = "--time time --batch local_batch --target-time compute_time_s --drivers=";

fn simulated(text: &str) -> Value {
    let folder = Folder::to_simulate();
    folder.write("h.csv", text);
    folder.json(&format!("--trace h.csv {COLUMNS} --networks no"))
}

fn even(json: &Value) -> f64 {
    json["policies"][0]["mean_step_time_s"].as_f64().unwrap()
}

/// Name of a damage, the rows that it leaves, and the rows that are repeated.
type Damage = (&'static str, fn(&Row) -> bool, fn(&Row) -> bool);

/// Damages of histories: rows are lost, a worker logs rarely or later, and a resumed run repeats iterations.
fn damages() -> Vec<Damage> {
    vec![
        ("nothing", |_| true, |_| false),
        ("ten rows are lost", |row| row.worker != "b" || !(100..110).contains(&row.iteration), |_| false),
        (
            "rows of both are lost",
            |row| row.iteration % 17 != if row.worker == "a" { 3 } else { 5 },
            |_| false,
        ),
        (
            "a worker logs every second iteration",
            |row| row.worker == "a" || row.iteration % 2 == 0,
            |_| false,
        ),
        ("a worker begins later", |row| row.worker == "a" || row.iteration >= 40, |_| false),
        (
            "thirty rows of a worker are repeated",
            |_| true,
            |row| row.worker == "b" && (90..120).contains(&row.iteration),
        ),
        ("thirty iterations are repeated", |_| true, |row| (90..120).contains(&row.iteration)),
    ]
}

/// The rows that are left, with repeated ones after them, as after a resumption.
fn damaged(rows: &[Row], kept: fn(&Row) -> bool, repeated: fn(&Row) -> bool) -> Vec<Row> {
    let kept: Vec<Row> = rows.iter().filter(|row| kept(row)).cloned().collect();
    let Some(last) = kept.iter().rposition(repeated) else { return kept };
    let again =
        kept.iter().filter(|row| repeated(row)).map(|row| Row { seconds: 1.05 * row.seconds, ..row.clone() });
    kept[..=last].iter().cloned().chain(again).chain(kept[last + 1..].iter().cloned()).collect()
}

/// Workers are compared in the same iteration, whatever rows are missing or repeated.
#[test]
fn missing_and_repeated_rows_do_not_change_the_verdict() {
    for (what, kept, repeated) in damages() {
        for (history, is_worth_it) in [(swapping(), true), (together(), false)] {
            let rows = damaged(&history, kept, repeated);
            let json = simulated(&by_iteration(&rows));
            assert!((even(&json) / even_s(&rows) - 1.0).abs() < 1e-9, "{what}: {json}");
            let advice = &json["advice"];
            assert_eq!(advice["best"] != "leave_alone", is_worth_it, "{what}: {advice}");
            let is_note = rows.len() != history.len();
            assert_eq!(!json["notes"].as_array().unwrap().is_empty(), is_note, "{what}: {}", json["notes"]);
        }
    }
}

/// Times of day and seconds align workers as well as iterations do. Offsets from UTC may change in between.
#[test]
fn times_align_workers() {
    let start: jiff::Timestamp = "2026-03-29T00:59:40Z".parse().unwrap();
    let at = |row: &Row| start + jiff::SignedDuration::from_millis((1e3 * seconds(row)) as i64);
    // Summer time begins at 01:00 UTC.
    let zoned = |row: &Row| {
        let hours = if at(row) < "2026-03-29T01:00:00Z".parse().unwrap() { 1 } else { 2 };
        let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(hours));
        at(row).to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S%.3f%:z").to_string()
    };
    for (what, kept, repeated) in damages() {
        if what.contains("repeated") {
            // Times are not repeated.
            continue;
        }
        let rows = damaged(&swapping(), kept, repeated);
        let golden = simulated(&by_iteration(&rows));
        for text in [
            by_seconds(&rows),
            table(&rows, zoned),
            table(&rows, |row| at(row).to_string()),
            table(&rows, |row| at(row).to_zoned(jiff::tz::TimeZone::UTC).datetime().to_string()),
        ] {
            let json = simulated(&text);
            assert_eq!(
                (&json["policies"], &json["advice"]),
                (&golden["policies"], &golden["advice"]),
                "{what}: {text:.200}"
            );
        }
    }
}

/// Rows that were written twice count once.
#[test]
fn equal_rows_of_one_time_count_once() {
    let rows = swapping();
    let golden = simulated(&by_seconds(&rows));
    let again = by_seconds(&rows).lines().fold(String::new(), |text, line| {
        format!("{text}{line}\n") + if line.contains(",b,") { line } else { "" } + "\n"
    });
    let json = simulated(&again);
    assert_eq!(json["policies"], golden["policies"]);
    assert_eq!(json["notes"][0], "h.csv: rows left out because they repeat another row: 240");
}

/// A log that was written twice is read once.
#[test]
fn a_log_that_was_written_twice_is_read_once() {
    let text = by_iteration(&swapping());
    let golden = simulated(&text);
    let lines = text.split_once('\n').unwrap().1;
    let json = simulated(&format!("{text}{lines}"));
    assert_eq!(json["policies"], golden["policies"]);
    assert_eq!(json["notes"][0], "h.csv: rows left out because they repeat another row: 480");
}

/// A resumed run repeats iterations in which a worker is paused. The rows before the resumption do not count.
#[test]
fn rows_without_samples_replace_earlier_ones() {
    let rows = swapping();
    let text =
        by_iteration(&rows) + &(100..130).fold(String::new(), |text, at| format!("{text}{at},b,0,0\n"));
    let lost: Vec<Row> =
        rows.into_iter().filter(|row| row.worker != "b" || !(100..130).contains(&row.iteration)).collect();
    assert_eq!(simulated(&text)["policies"], simulated(&by_iteration(&lost))["policies"]);
}

/// The backtest compares the same iterations.
#[test]
fn a_backtest_compares_the_same_iterations() {
    let folder = Folder::new();
    let of = |rows: &[Row]| {
        folder.write("h.csv", &by_iteration(rows));
        let json = folder.json(&format!("--trace h.csv {COLUMNS} --models last"));
        json["step_time_even"]["mean_over_oracle"].as_f64().unwrap()
    };
    for (what, kept, repeated) in damages() {
        let (whole, ours) = (of(&swapping()), of(&damaged(&swapping(), kept, repeated)));
        assert!((ours / whole - 1.0).abs() < 0.03, "{what}: {ours} {whole}");
    }
}

/// In an exported history, a paused worker has rows without samples.
#[test]
fn rows_without_samples_are_left_out() {
    let mut text = by_iteration(&swapping());
    for iteration in 100..130 {
        let line = text.lines().find(|line| line.starts_with(&format!("{iteration},b,"))).unwrap().to_owned();
        text = text.replace(&line, &format!("{iteration},b,0,0"));
    }
    let lost: Vec<Row> = swapping()
        .into_iter()
        .filter(|row| row.worker != "b" || !(100..130).contains(&row.iteration))
        .collect();
    let (json, golden) = (simulated(&text), simulated(&by_iteration(&lost)));
    assert_eq!(json["policies"], golden["policies"]);
    assert_eq!(json["notes"][0], "h.csv: rows left out because they have no samples: 30");
    let folder = Folder::new();
    folder.write("h.csv", &text);
    let printed = folder.prints(&format!("--trace h.csv {COLUMNS} --models last"));
    assert!(printed.contains("they have no samples: 30"), "{printed}");
}

/// A history that went through a spreadsheet of another language.
#[test]
fn semicolons_and_decimal_commas_are_read() {
    let text = by_seconds(&swapping());
    let golden = simulated(&text);
    let other = format!("\u{feff}{}", text.replace(',', ";").replace('.', ",").replace('\n', "\r\n"));
    assert_eq!(simulated(&other)["policies"], golden["policies"]);
}

#[test]
fn what_cannot_be_aligned_is_refused() {
    let refuses = |text: &str, named: &str| {
        let folder = Folder::to_simulate();
        folder.write("h.csv", text);
        folder.refuses(1, &format!("--trace h.csv {COLUMNS}"), named);
    };
    let rows = swapping();
    // A clock that is set back at the end of summer time, without offsets.
    let back =
        |row: &Row| format!("2026-10-25 02:{:02}:{:02}.000", row.iteration / 60 % 2, row.iteration % 60);
    refuses(
        &table(&rows, back),
        "h.csv:242: column \"time\": \"2026-10-25 02:00:00.000\" is earlier than line 240; rows of a worker",
    );
    refuses(&table(&rows, back), "need their offset from UTC");
    let mixed = |row: &Row| {
        format!("2026-10-25T02:{:02}:00{}", row.iteration % 60, if row.iteration < 7 { "Z" } else { "" })
    };
    refuses(
        &table(&rows, mixed),
        "h.csv:16: column \"time\": \"2026-10-25T02:07:00\" is not of the kind in the first row: times with an offset",
    );
    refuses(
        &table(&rows, |row| format!("25.10.2026 02:{:02}", row.iteration % 60)),
        "h.csv:2: column \"time\": \"25.10.2026 02:00\" is not a date",
    );
    // Seconds are too coarse for four steps in each.
    refuses(
        &table(&rows, |row| {
            format!("2026-10-25T02:{:02}:{:02}Z", row.iteration / 240, row.iteration / 4 % 60)
        }),
        "h.csv:4: a second row of \"a\" has the time 2026-10-25T02:00:00Z",
    );
    refuses(
        &table(&rows, |row| (row.iteration / 10).to_string()),
        "\"0\" repeats an iteration of its worker, as do 432 of 480 rows",
    );
    // Other hours.
    refuses(
        &table(&rows, |row| format!("{}.5", row.iteration + if row.worker == "b" { 3600 } else { 0 })),
        "only 0 iterations have a row of every worker",
    );
    refuses(&table(&rows, |_| String::new()), "h.csv:2: column \"time\": \"\" is missing");
    let lost: Vec<Row> =
        rows.iter().filter(|row| row.worker == "a" || row.iteration != 100).cloned().collect();
    // Half a step late, the ends of the computes, and whole seconds since 1970.
    let late = |by: f64| {
        table(&rows, |row| format!("{:.3}", 1.0 + seconds(row) + if row.worker == "b" { by } else { 0.0 }))
    };
    refuses(
        &late(0.125),
        "h.csv:3: the row of \"b\" is 0.135000 s after a row of \"a\" and 0.115000 s before the next",
    );
    let ends = |row: &Row| format!("{:.4}", 0.25 * row.iteration as f64 + row.seconds);
    refuses(
        &table(&rows, ends),
        "to align workers by time, they must begin an iteration within a quarter of it",
    );
    let whole = |row: &Row| (1_800_000_000 + row.iteration + usize::from(row.worker == "b")).to_string();
    refuses(
        &table(&rows, whole),
        "h.csv: times without a fraction are too coarse to align iterations of 1 s",
    );
    refuses("time,worker,local_batch,compute_time_s\n", "h.csv: the table has no rows");
    let folder = Folder::to_simulate();
    folder.write("h.csv", &by_iteration(&lost));
    folder.refuses(
        1,
        &format!("--trace h.csv {} --time=", COLUMNS.replace("--time time", "")),
        "\"a\" has 240 rows and \"b\" has 239",
    );
    folder.write("i.csv", &by_seconds(&rows));
    folder.refuses(
        1,
        &format!("--trace h.csv i.csv {COLUMNS}"),
        "h.csv has iterations, but i.csv has times in numbers",
    );
    folder.write("n.csv", "local_batch,compute_time_s\n64,0.1\n64,0.1\n");
    folder.write("j.csv", &by_iteration(&rows).replacen("time", "iteration", 1));
    let columns = COLUMNS.replace("--time time", "");
    folder.refuses(
        1,
        &format!("--trace j.csv n.csv {columns}"),
        "j.csv has iterations, but n.csv has row numbers",
    );
}
