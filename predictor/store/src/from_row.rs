//! Conversion of query rows into types of this crate.

use sqlx::error::Error;

/// Implements `FromRow` for a type, for both databases: each field is read from the column of its name.
///
/// A column named under `later` may be missing; its field then has its default. A field under `whole` is
/// itself read from the row. sqlx's derive macro would compile both drivers a second time, for the host.
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

/// Returns the default value if the row has no such column.
///
/// # Errors
/// If the column exists and cannot be read.
pub(crate) fn or_default<T: Default>(value: sqlx::Result<T>) -> sqlx::Result<T> {
    match value {
        Err(Error::ColumnNotFound(_)) => Ok(T::default()),
        value => value,
    }
}
