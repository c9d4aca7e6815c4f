//! Live statistics and log of a job, for pages, terminals and metrics.
//!
//! They have a separate lock that is only held for short moments: readers wait neither for a plan nor for the
//! store, and no plan waits for readers. They are not stored: when another predictor takes over the job, they
//! begin from zero.
//!
//! - `steps`: the latest iterations
//! - `tally`: totals of each worker
//! - `log`: events of the job, as text
//! - `view`: all of these under one lock
//! - `families`: the metrics of jobs and their workers

mod families;
mod log;
mod steps;
mod tally;
mod view;

pub use families::JobFamilies;
pub use view::{Cursor, Live, Updates};
