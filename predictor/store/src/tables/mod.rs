//! Access to whole tables of a store, whatever their columns: for checking, exporting and importing.
//!
//! The columns are read from the database, so a new schema requires a change here only if it adds a table.

mod table;

mod discover;

pub(crate) mod session;

mod rows;

mod snapshot;

mod faults;

mod target;

pub use faults::TableFault;
pub use rows::Rows;
pub use session::Backend;
pub use snapshot::Snapshot;
pub(crate) use table::TABLES;
pub use table::{Cell, Column, Kind, Row, Table};
pub use target::Target;
