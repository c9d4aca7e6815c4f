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
//! - `seen`: all of these
//! - `live`: the lock around them, and the records of changes
//! - `stored`: the part of them that is stored
//! - `view`: the only maker of a job's views
//! - `shown`: an iteration as charts show it
//! - `stragglers`: the stragglers of all jobs, for the health of nodes and for the webhook
//! - `families`: the metrics of jobs and their workers
//! - `read`: reads of views, from memory and from the store

mod account;
mod families;
mod live;
mod log;
mod loss;
mod read;
mod reported;
mod seen;
mod shown;
mod status;
mod steps;
mod stored;
mod stragglers;
mod tally;
mod totals;
pub mod view;

pub use families::JobFamilies;
pub use live::Live;
pub use read::{Period, Sampled, workers_before};
pub use shown::Shown;
pub use steps::{Steps, Unstored};
pub use stragglers::Stragglers;
pub use totals::Totals;
