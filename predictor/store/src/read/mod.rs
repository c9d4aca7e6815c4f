//! Reads that serve training and retention: they load jobs, and answer repeated requests of old allocations. What only
//! views need is in `view`.

mod report_row;

pub(crate) mod job;

mod models;

pub(crate) mod reports;

pub(crate) mod allocations;

pub(crate) mod past;

pub(crate) mod segments;

pub(crate) mod ages;

pub(crate) mod expired;

pub(crate) mod expired_iterations;

mod tokens;

pub(crate) use allocations::{ANSWERS, stored};
pub(crate) use report_row::ReportRow;
pub(crate) use tokens::TOKENS;

pub use allocations::StoredAllocation;
pub use job::{StoredJob, StoredWorker};
pub(crate) use past::{PAST, PASTS, PastRow};
pub use past::{StoredEvent, StoredPast};
pub use reports::{StoredReport, read_reports};
pub use segments::StoredSegment;
pub(crate) use segments::{ALL_SEGMENTS, SEGMENTS, SegmentRow};
