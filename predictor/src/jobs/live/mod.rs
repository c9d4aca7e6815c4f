//! Live statistics and log of a job, for pages, terminals and metrics.
//!
//! They have a separate lock that is only held for short moments: readers wait neither for a plan nor for the
//! store, and no plan waits for readers. The account is stored every few seconds. After a restart, or when another predictor
//! takes over the job, it continues with the iterations since then, which are read from the history of the job. The latest
//! iterations are read from there, too. Counters begin from zero.
//!
//! - `status`: the state of the job, since when, and why
//! - `account`: time saved and time lost, over all iterations
//! - `loss`: the mean loss of an iteration
//! - `reported`: the report of a worker, and the step time by the reports of an iteration
//! - `steps`: the latest iterations
//! - `totals`: the account as it is stored
//! - `tally`: totals of each worker
//! - `log`: events of the job, as text
//! - `view`: all of these under one lock
//! - `families`: the metrics of jobs and their workers

mod account;
mod families;
mod log;
mod loss;
mod reported;
mod status;
mod steps;
mod tally;
mod totals;
mod view;

pub use account::{Account, EvenStep, IterationTimes};
pub use families::JobFamilies;
pub use loss::MeanLoss;
pub use reported::{Reported, step_time_s};
pub use status::Facts;
pub use steps::{Steps, Unstored, mean};
pub use totals::Totals;
pub use view::{Cursor, Live, Updates};
