//! A row of `report`.

use evenstep_protocol::WorkerReport;
use evenstep_protocol::columns::{COLUMNS, Column, Number};
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};

use crate::encode::{Json, id};
use crate::error::StoreError;
use crate::from_row::{from_row, or_default};

/// A row of `report`.
pub(crate) struct ReportRow {
    pub iteration: i64,
    worker: String,
    drivers_text: Json,
    numbers: Numbers,
}

from_row!(ReportRow { iteration, worker, drivers_text; whole: numbers });

/// The numbers of a report, in the order of the table. A database with an older schema, read offline without a migration,
/// lacks newer columns.
struct Numbers(Vec<Stored>);

enum Stored {
    Integer(Option<i64>),
    Real(Option<f64>),
}

impl<'r, R: Row> FromRow<'r, R> for Numbers
where
    &'static str: ColumnIndex<R>,
    Option<i64>: Decode<'r, R::Database> + Type<R::Database>,
    Option<f64>: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> sqlx::Result<Self> {
        let read = |column: &Column| match column.number {
            Number::Integer { .. } => or_default(row.try_get(column.name)).map(Stored::Integer),
            Number::Real { .. } => or_default(row.try_get(column.name)).map(Stored::Real),
        };
        COLUMNS.iter().map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl TryFrom<ReportRow> for WorkerReport {
    type Error = StoreError;

    fn try_from(row: ReportRow) -> Result<Self, StoreError> {
        let mut report = Self::new(id(row.worker)?, row.iteration.cast_unsigned(), 0, 0.0);
        for (column, stored) in COLUMNS.iter().zip(row.numbers.0) {
            match (column.number, stored) {
                (Number::Integer { set, .. }, Stored::Integer(Some(value))) => {
                    set(&mut report, value.cast_unsigned());
                }
                (Number::Real { set, .. }, Stored::Real(Some(value))) => set(&mut report, value),
                _ => {}
            }
        }
        // A driver that cannot be read is missing, like one that the worker did not report.
        report.drivers = row.drivers_text.read_entries();
        Ok(report)
    }
}
