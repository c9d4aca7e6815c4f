//! Persistent storage of the predictor: an SQLite file, or a PostgreSQL database that several predictors
//! share.
//!
//! Writes go through a bounded queue to one writer task. The writer commits all waiting writes in one
//! transaction (group commit) and responds when they are durable ([`Store::write`]). Reads never wait for the
//! writer: those that training needs use a small pool of connections, and views another one ([`View`]). Both databases use the same SQL text wherever possible:
//! `database` has the connections and the macros that expand a query for both, `values` binds many rows.
//! [`tables`] reads and fills whole tables, whatever their columns, for the commands `store check`, `export`,
//! `import` and `vacuum` ([`command`]).
//!
//! Invariants:
//!
//! - No other crate of the predictor uses sqlx.
//! - A change is durable before [`Store::write`] returns.
//! - Every commit is fenced by this predictor's lease.
//! - Every queue is bounded.

mod limits;

mod clock;

mod error;

mod encode;

mod lenient;

mod address;

mod database;

mod values;

mod copy;

mod from_row;

mod timescale;

mod schema;

mod file;

mod log;

mod telemetry;

mod summary;

mod roll_up;

mod change;

mod lease;

mod write;

mod store;

mod read;

mod view;

mod vacuum;

pub mod queries;

pub mod access;

pub mod tables;

pub mod command;

pub use address::Address;
pub use change::{Change, MemberEvent, MemberEventKind, ShownStep};
pub use clock::{Clock, ManualClock, Now};
pub use database::VIEWERS;
pub use error::{Fault, StoreError};
pub use lease::{Owner, Sharing};
pub use read::{
    StoredAllocation, StoredEvent, StoredJob, StoredPast, StoredReport, StoredSegment, StoredWorker,
    read_reports,
};
pub use roll_up::{RollUp, SampleKey};
pub use store::Store;
pub use summary::{HOUR_S, MINUTE_S, NodeStep, NodeSums, Reading, WorkerStep, WorkerSums, step_start};
pub use telemetry::{TelemetryRow, TelemetryRows};
pub use vacuum::{back_up, vacuum};
pub use view::{DiskUse, EveryNth, Measured, StoredSummary, View, unknown_reason};
pub use write::faults::{Fate, Faults};
