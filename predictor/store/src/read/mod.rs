//! Queries: for loading jobs, for views, for retention, and for repeated requests of old allocations.

mod report_row;

mod job;

mod models;

mod reports;

mod allocations;

mod history;

mod nodes;

mod summaries;

mod disk;

mod ages;

mod expired;

mod expired_iterations;

pub use allocations::StoredAllocation;
pub use disk::DiskUse;
pub use history::{EveryNth, Measured};
pub use job::{StoredJob, StoredWorker};
pub use reports::{StoredReport, read_reports};
pub use summaries::{StoredEvent, StoredPast, StoredSummary};
