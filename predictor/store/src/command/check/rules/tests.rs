use proptest::prelude::*;

use super::*;
use crate::tables::{Column, Kind};

const FORMAT: u32 = 7;

const READERS: ModelReaders = ModelReaders {
    format: FORMAT,
    job: |_, _| Ok(()),
    device: |_| Err("no models".into()),
    learning_rate: |_| Ok(()),
};

/// Judges one row of a table with these columns; the first column is the key.
fn judged(name: &str, values: &[(&str, Cell)]) -> Result<(), Remark> {
    let column = |(name, cell): &(&str, Cell)| {
        let kind = match cell {
            Cell::Integer(_) => Kind::Integer,
            Cell::Real(_) => Kind::Real,
            Cell::Bytes(_) => Kind::Bytes,
            Cell::Text(_) | Cell::Null => Kind::Text,
        };
        Column { name: (*name).to_owned(), kind }
    };
    let columns = values.iter().map(column).collect();
    let table = Table { name: name.to_owned(), columns, key: vec![0] };
    judge(&table, &values.iter().map(|(_, cell)| cell.clone()).collect::<Vec<_>>(), &READERS)
}

fn text(text: impl Into<String>) -> Cell {
    Cell::Text(text.into())
}

fn fault(outcome: Result<(), Remark>) -> String {
    match outcome {
        Err(Remark::Fault(rule)) => rule,
        other => panic!("{other:?}"),
    }
}

fn node_summary_of(at: i64, samples: i64, readings: &str) -> Result<(), Remark> {
    judged(
        "node_summary",
        &[
            ("node", text("node-a")),
            ("step_s", Cell::Integer(60)),
            ("at_unix_ms", Cell::Integer(at)),
            ("samples", Cell::Integer(samples)),
            ("readings", text(readings)),
        ],
    )
}

proptest! {
    /// Summaries of actual samples have no fault; a sum that no samples within the bounds can have is a
    /// fault.
    #[test]
    fn summaries_of_samples_are_correct(samples in prop::collection::vec(-1e6..1e6_f64, 1..50), minute in -9_i64..9_000_000) {
        let (sum, least, most) = (
            samples.iter().sum::<f64>(),
            samples.iter().copied().fold(f64::INFINITY, f64::min),
            samples.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        );
        let readings = |sum: f64| serde_json::json!({"load": [samples.len(), sum, least, most]}).to_string();
        let count = samples.len() as i64;
        prop_assert_eq!(node_summary_of(minute * 60_000, count, &readings(sum)), Ok(()));
        let beyond = sum + count as f64 * (most - least + 1.0);
        prop_assert!(fault(node_summary_of(minute * 60_000, count, &readings(beyond))).contains("load"));
        prop_assert!(fault(node_summary_of(minute * 60_000, count - 1, &readings(sum))).contains("load"));
        prop_assert!(fault(node_summary_of(minute * 60_000 + 1, count, &readings(sum))).contains("not a multiple"));
    }
}

#[test]
fn a_summary_of_a_worker_counts_what_it_can() {
    let summary = |reports: i64, predicted: i64, compute_time_s: f64| {
        judged(
            "worker_summary",
            &[
                ("job_id", text("job")),
                ("worker", text("node/0")),
                ("step_s", Cell::Integer(3600)),
                ("at_unix_ms", Cell::Integer(7_200_000)),
                ("reports", Cell::Integer(reports)),
                ("samples", Cell::Integer(9)),
                ("compute_time_s", Cell::Real(compute_time_s)),
                ("barrier_wait_s", Cell::Real(0.0)),
                ("loader_wait_s", Cell::Real(0.0)),
                ("predicted", Cell::Integer(predicted)),
                ("predicted_time_s", Cell::Real(0.0)),
            ],
        )
    };
    assert_eq!(summary(3, 3, 1.5), Ok(()));
    assert!(fault(summary(3, 4, 1.5)).contains("4 of its 3 reports"));
    assert!(fault(summary(0, 0, 1.5)).contains("0 of its 0 reports"));
    assert!(fault(summary(3, 3, f64::NAN)).contains("compute_time_s NaN"));
    assert!(fault(summary(-3, 3, 1.0)).contains("reports -3 is negative"));
}

#[test]
fn names_are_checked_in_every_position() {
    assert!(fault(judged("event", &[("job_id", text("a b"))])).contains("job id \"a b\""));
    assert!(fault(judged("event", &[("worker", text(""))])).contains("worker id"));
    assert_eq!(judged("later", &[("job_id", text("a b"))]), Ok(()), "an unknown table has no rules");
}

#[test]
fn models_of_another_format_are_a_note() {
    let models = |format: u32| {
        judged(
            "device_model",
            &[
                ("device", text("cpu")),
                ("format", Cell::Integer(format.into())),
                ("state", Cell::Bytes(vec![0xff])),
            ],
        )
    };
    assert_eq!(models(FORMAT + 1), Err(Remark::Note(OTHER_FORMAT)));
    assert!(fault(models(FORMAT)).contains("its models cannot be read"));
}

#[test]
fn options_of_a_newer_version_are_a_note() {
    let job = |spec: &str| {
        judged(
            "job",
            &[
                ("job_id", text("job")),
                ("spec", text(spec)),
                ("generation", Cell::Integer(0)),
                ("departed_generation", Cell::Integer(0)),
            ],
        )
    };
    assert_eq!(job(r#"{"global_batch": 64}"#), Ok(()));
    assert_eq!(job(r#"{"global_batch": 64, "new": 1}"#), Err(Remark::Note(UNKNOWN_OPTIONS)));
    assert!(fault(job(r#"{"global_batch": 0, "new": 1}"#)).contains("global_batch 0"));
}
