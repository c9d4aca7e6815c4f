//! Whole tables of a store, whatever their columns: for checking, exporting and moving them.
//!
//! The database says what columns there are, so a later schema needs nothing here but the names of its tables.

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
pub use table::{Cell, Column, Kind, Row, Table};
pub use target::Target;
