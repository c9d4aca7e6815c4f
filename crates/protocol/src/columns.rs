//! The numbers of a report as a table: what all parts that check, store, send or generate reports have in common.

use crate::WorkerReport;

/// A number in a report. The key of a report, its worker and its iteration, is not in the table, nor are its readings.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Name of the column in the store: the field, or the field of the tail after `tail_`.
    pub name: &'static str,
    /// Path of the field in a request: `loss` or `tail.samples`.
    pub path: &'static str,
    /// Bounds of its values. The end of the name gives the unit: `_s`, `_bytes`.
    pub bounds: Bounds,
    /// Access to the number.
    pub number: Number,
}

/// Type of a number, and access to it. `get` returns `None` if a report does not have it.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the same two functions for each type")]
pub enum Number {
    Integer { get: fn(&WorkerReport) -> Option<u64>, set: fn(&mut WorkerReport, u64) },
    Real { get: fn(&WorkerReport) -> Option<f64>, set: fn(&mut WorkerReport, f64) },
}

/// Bounds of one number. Rules about several numbers are not in the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bounds {
    /// 0 to 2^53.
    Count,
    /// 1 or more, as part of another number of the report.
    Part,
    /// Seconds: finite, 0 or more.
    Seconds,
    /// Finite, 0 or more.
    NotNegative,
    /// Finite, above 0, and at most this.
    Positive(f64),
    /// Finite, above 0; without meaning if the worker computed no samples.
    Work,
    /// Finite.
    Finite,
}

/// Maximum number of iterations that a report stands for.
const ITERATIONS_MAX: f64 = 1e6;

macro_rules! column {
    (tail.$field:ident: $kind:ident, $bounds:expr) => {
        Column {
            name: concat!("tail_", stringify!($field)),
            path: concat!("tail.", stringify!($field)),
            bounds: $bounds,
            number: Number::$kind {
                get: |report| report.tail.map(|tail| tail.$field),
                set: |report, value| report.tail.get_or_insert_default().$field = value,
            },
        }
    };
    ($field:ident: $kind:ident, $bounds:expr) => {
        Column {
            name: stringify!($field),
            path: stringify!($field),
            bounds: $bounds,
            number: Number::$kind {
                get: |report| report.$field.into(),
                set: |report, value| report.$field = value.into(),
            },
        }
    };
}

/// The columns, in the order in which they are checked.
pub const COLUMNS: [Column; 16] = [
    column!(local_batch: Integer, Bounds::Count),
    column!(compute_time_s: Real, Bounds::Seconds),
    column!(tail.samples: Integer, Bounds::Part),
    column!(tail.chunks: Integer, Bounds::Part),
    column!(tail.claim_time_s: Real, Bounds::Seconds),
    column!(tail.compute_time_s: Real, Bounds::Seconds),
    column!(micro_batches: Integer, Bounds::Count),
    column!(barrier_wait_s: Real, Bounds::Seconds),
    column!(loader_wait_s: Real, Bounds::Seconds),
    column!(step_time_s: Real, Bounds::Seconds),
    column!(iterations: Real, Bounds::Positive(ITERATIONS_MAX)),
    column!(cost: Real, Bounds::Work),
    column!(gradient_sqr: Real, Bounds::NotNegative),
    column!(global_gradient_sqr: Real, Bounds::NotNegative),
    column!(loss: Real, Bounds::Finite),
    column!(peak_memory_bytes: Integer, Bounds::Count),
];

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::{TailReport, WorkerId};

    /// Every number of a report is in the table, under its own name.
    #[test]
    fn the_table_has_every_number_of_a_report() {
        let mut report = WorkerReport::new(WorkerId::new("node/0").unwrap(), 7, 0, 0.0);
        for (at, column) in (1_u32..).zip(COLUMNS) {
            match column.number {
                Number::Integer { get, set } => {
                    set(&mut report, at.into());
                    assert_eq!(get(&report), Some(at.into()), "{}", column.name);
                }
                Number::Real { get, set } => {
                    set(&mut report, at.into());
                    assert_eq!(get(&report), Some(at.into()), "{}", column.name);
                }
            }
        }
        let json = serde_json::to_value(&report).unwrap();
        for (at, column) in (1_u32..).zip(COLUMNS) {
            let value = json.pointer(&format!("/{}", column.path.replace('.', "/"))).unwrap();
            assert_eq!(value.as_f64(), Some(at.into()), "{}", column.path);
            assert_eq!(column.path.replace('.', "_"), column.name);
        }
        let known = names::<WorkerReport>() + names::<TailReport>();
        let others =
            ["worker", "iteration", "tail", "drivers", "communication_s", "overlapped_communication_s"];
        assert_eq!(known - others.len(), COLUMNS.len());
    }

    /// Returns the number of fields of a type: the error about an unknown one lists them.
    fn names<T: DeserializeOwned>() -> usize {
        let error = serde_json::from_str::<T>(r#"{"?": 0}"#).err().unwrap().to_string();
        error.split("expected").nth(1).unwrap().matches('`').count() / 2
    }
}
