//! What happens in a job while it runs: for pages, terminals and metrics.
//!
//! It is kept beside the job's state under a lock of its own that is held for moments only: readers wait neither for a plan nor for
//! the store, and no plan waits for readers. Nothing of it is stored: it begins anew with each predictor that takes the job.
//!
//! - `steps`: the latest iterations
//! - `tally`: what each worker has done
//! - `log`: what happened to the job, as text
//! - `view`: all of it together
//! - `families`: the metrics of jobs and their workers

mod families;
mod log;
mod steps;
mod tally;
mod view;

pub use families::JobFamilies;
pub use view::{Cursor, Live, Updates};
