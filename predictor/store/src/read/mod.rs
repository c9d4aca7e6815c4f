//! What is read back: when a job is loaded, for views, for retention, and when an old allocation is requested again.

mod report_row;

mod job;

mod models;

mod reports;

mod allocations;

mod history;

mod nodes;

mod disk;

mod ages;

mod expired;

mod expired_iterations;

pub use allocations::StoredAnswer;
pub use disk::DiskUse;
pub use history::{EveryNth, Measured};
pub use job::{StoredJob, StoredWorker};
pub use reports::{StoredReport, read_reports};
