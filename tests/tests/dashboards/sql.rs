//! Runs every shipped SQL query on a real PostgreSQL, under a predictor with a training run.

use std::collections::BTreeSet;

use evenstep_tests::Store;
use evenstep_tests::postgres::{Database, try_rows};
use evenstep_tests::wait::until;

use crate::grafana::{Selection, View};
use crate::shipped::{DashboardQuery, dashboard, list};
use crate::world::{JOB, WIDE, World};

/// Query that has a result only after an out-of-memory error.
const UNAVAILABLE: &str = "job-postgres.json, annotation \"Out of memory\"";

/// Returns the rows of a query as Grafana would receive them, if any; else the fault. The connection is
/// read-only.
pub fn answered(database: &str, view: &View, question: &DashboardQuery) -> Result<Vec<String>, String> {
    let asked = view.sql(&question.text)?;
    // As JSON, so that the test needs no types. NULL alone is not a result.
    let asked = format!("SELECT row_to_json(answer)::text FROM ({asked}) AS answer");
    let rows = try_rows(&format!("{database}?options[default_transaction_read_only]=on"), &asked)
        .map_err(|error| format!("{error}: {asked}"))?;
    let rows: Vec<String> = rows.into_iter().flatten().flatten().collect();
    let has_numbers = rows.iter().any(|row| {
        let row: serde_json::Map<_, _> = serde_json::from_str(row).expect("JSON");
        row.iter().any(|(name, value)| name != "time" && !value.is_null())
    });
    if has_numbers { Ok(rows) } else { Err(format!("nothing: {asked}")) }
}

/// Returns whether a row belongs to a time series: it has a time, numbers, and names of series as text.
fn is_a_series(row: &str) -> bool {
    let row: serde_json::Map<_, _> = serde_json::from_str(row).expect("JSON");
    row.contains_key("time") && row.iter().any(|(name, value)| name != "time" && value.is_number())
}

#[test]
fn every_question_answers() {
    let name = "dashboards::sql::every_question_answers";
    let Some(database) = Database::shared(name) else { return };
    let store = Store::Postgres(database);
    let url = store.address();
    let Some(world) = World::start(name, store, false) else { return };
    let job = dashboard("job-postgres");
    let questions = [job.panel_queries(), job.annotation_queries(), job.variable_queries()].concat();
    assert!(questions.len() > 20, "{}", questions.len());
    world.training.until("training is running", || world.workers().len() == 3);
    let client = world.predictor.client();
    world.training.until("iterations are reported", || client.next_iteration(JOB) > 60);
    for question in questions.iter().filter(|question| question.place != UNAVAILABLE) {
        for all_workers in [true, false] {
            let rows = until(&question.place, || match answered(&url, &world.view(all_workers), question) {
                Ok(rows) => Some(rows),
                // A query without rows is repeated; any other fault is final.
                Err(wrong) if wrong.starts_with("nothing") => None,
                Err(wrong) => panic!("{}: {wrong}", question.place),
            });
            if list(&question.part["targets"]).iter().any(|target| target["format"] == "time_series") {
                // The first seconds of a job may have no forecast.
                assert!(rows.iter().any(|row| is_a_series(row)), "{}: {}", question.place, rows[0]);
            }
        }
    }
    few_lines(&url, &world, &questions);
    allocations_are_parsed_once(&url, &world, &questions);
    matches_the_service(&url, &world, &questions);
    skips_iterations_without_a_decision(&url, &world, &questions);
    faults(&url, &world, &questions);
}

/// With many workers, a chart has quantiles and a few workers, never a line for each.
fn few_lines(url: &str, world: &World, questions: &[DashboardQuery]) {
    world.wide_until_slow();
    let mut charts = 0;
    for question in questions.iter().filter(|question| question.text.contains("percentile_cont(0.1)")) {
        // The made-up reports have no drivers.
        let Ok(rows) = answered(url, &world.wide_view(), question) else { continue };
        let metric = |row: &String| {
            serde_json::from_str::<serde_json::Value>(row).expect("JSON")["metric"]
                .as_str()
                .map(str::to_owned)
        };
        let lines: BTreeSet<_> = rows.iter().filter_map(metric).collect();
        assert!((4..=8).contains(&lines.len()) && lines.contains("median"), "{}: {lines:?}", question.place);
        charts += 1;
    }
    assert!(charts >= 7, "{charts}");
}

/// No query parses the JSON of an allocation once for each report, also without statistics of the tables. The time of such a query
/// grows with the square of the number of workers.
fn allocations_are_parsed_once(url: &str, world: &World, questions: &[DashboardQuery]) {
    let lines = |text: &str| -> Vec<String> {
        try_rows(url, text).expect("rows").into_iter().flatten().flatten().collect()
    };
    let allocations = format!("SELECT count(*)::text FROM allocation WHERE job_id = '{WIDE}'");
    let allocations: u64 = lines(&allocations)[0].parse().expect("a number");
    let mut scans = 0;
    for question in questions.iter().filter(|question| question.text.contains("worker_speed")) {
        let asked = world.wide_view().sql(&question.text).expect("SQL");
        for line in lines(&format!("EXPLAIN (ANALYZE, TIMING FALSE) {asked}")) {
            let Some((_, actual)) = line.split_once("Function Scan on json_array_elements") else { continue };
            let loops =
                actual.split_once("loops=").and_then(|(_, rest)| rest.split(')').next()?.parse::<u64>().ok());
            let loops = loops.unwrap_or_else(|| panic!("no loops: {line}"));
            assert!(loops <= allocations, "{}: {loops} scans of {allocations} allocations", question.place);
            scans += 1;
        }
    }
    assert!(scans >= 7, "{scans}");
}

/// The audit of a decision matches the allocation that was returned.
fn matches_the_service(url: &str, world: &World, questions: &[DashboardQuery]) {
    let find =
        |place: &str| questions.iter().find(|question| question.place.contains(place)).expect("the question");
    let rows = answered(url, &world.view(true), find("\"Decision details\"")).expect("rows");
    let rows: Vec<serde_json::Value> =
        rows.iter().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    let answer: evenstep_protocol::AllocateResponse =
        world.predictor.client().allocated(JOB, rows[0]["Iteration"].as_u64().expect("a number")).json();
    assert_eq!(rows.len(), answer.allocations.len());
    for (row, share) in rows.iter().zip(&answer.allocations) {
        assert_eq!(row["Worker"], share.worker.as_str());
        assert_eq!((&row["Rank"], &row["Given"]), (&share.rank.into(), &share.local_batch.into()));
        assert_eq!(row["Predicted"].as_f64(), share.predicted_speed_samples_per_s);
    }
    let variable_values = answered(url, &world.view(true), find("variable \"worker\"")).expect("rows");
    assert_eq!(variable_values.len(), world.workers().len());
}

/// Without a selected iteration, the audit shows the latest reported one that has a decision.
fn skips_iterations_without_a_decision(url: &str, world: &World, questions: &[DashboardQuery]) {
    let audit =
        questions.iter().find(|question| question.place.contains("\"Decision details\"")).expect("the audit");
    let job = world.asks_out_of_turn();
    let mut view = world.view(true);
    view.selections.insert("job_id".to_owned(), Selection::One(job.to_owned()));
    let rows = answered(url, &view, audit).expect("rows");
    let row: serde_json::Value = serde_json::from_str(&rows[0]).expect("JSON");
    assert_eq!((rows.len(), &row["Iteration"]), (1, &0.into()));
}

fn faults(url: &str, world: &World, questions: &[DashboardQuery]) {
    let panel = questions.iter().find(|question| {
        question.place.contains("\"Predicted and actual speed, ${unit} per second\", query A")
    });
    let panel = panel.expect("the panel");
    for (from, to, wrong) in [
        ("worker_speed", "worker_sped", "does not exist"),
        ("avg(actual)", "avg(actuel)", "does not exist"),
        ("GROUP BY", "GRUOP BY", "syntax error"),
        ("$__timeFilter", "$__timeFliter", "no such macro"),
        ("${job_id:sqlstring}", "'another'", "nothing"),
        ("FROM worker_speed", "FROM worker_speed WHERE false; DELETE FROM job; SELECT", "syntax error"),
    ] {
        assert!(panel.text.contains(from), "{from}");
        let broken = DashboardQuery { text: panel.text.replace(from, to), ..panel.clone() };
        let found = answered(url, &world.view(true), &broken);
        assert!(found.as_ref().is_err_and(|found| found.contains(wrong)), "{from} -> {to}: {found:?}");
    }
}
