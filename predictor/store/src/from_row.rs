//! Rows of a query as values of a type of ours.

use sqlx::error::Error;

/// Reads a type from rows of both databases: each field from the column of its name.
///
/// A column named under `later` may be missing: its field then has its default. A field under `whole` is itself read from the
/// row. Written out here because sqlx's own derive would build both of its drivers a second time, for the compiler.
macro_rules! from_row {
    ($name:ident { $($field:ident),* $(; later: $($later:ident),*)? $(; whole: $($whole:ident),*)? }) => {
        $crate::from_row::from_row!(@ sqlx::sqlite::SqliteRow, $name, [$($field)*] [$($($later)*)?] [$($($whole)*)?]);
        $crate::from_row::from_row!(@ sqlx::postgres::PgRow, $name, [$($field)*] [$($($later)*)?] [$($($whole)*)?]);
    };
    (@ $row:ty, $name:ident, [$($field:ident)*] [$($later:ident)*] [$($whole:ident)*]) => {
        impl<'r> sqlx::FromRow<'r, $row> for $name {
            fn from_row(row: &'r $row) -> sqlx::Result<Self> {
                use sqlx::Row as _;
                Ok(Self {
                    $($field: row.try_get(stringify!($field))?,)*
                    $($later: $crate::from_row::or_default(row.try_get(stringify!($later)))?,)*
                    $($whole: sqlx::FromRow::from_row(row)?,)*
                })
            }
        }
    };
}

pub(crate) use from_row;

/// The default where the row has no such column.
///
/// # Errors
/// Where the column is there and cannot be read.
pub(crate) fn or_default<T: Default>(value: sqlx::Result<T>) -> sqlx::Result<T> {
    match value {
        Err(Error::ColumnNotFound(_)) => Ok(T::default()),
        value => value,
    }
}
