//! The only maker of a job's views: every field of a view is filled here.
//!
//! - `job`: a job as a whole
//! - `workers`: its workers and their forecasts
//! - `step`: an iteration and its workers
//! - `history`: iterations in columns
//! - `summary`: what the job gained, and slow workers
//! - `verdict`: in words, whether planned shares pay, who is slow, and how good the forecast is
//! - `updates`: what changed since a reader's last read

mod history;
mod job;
pub(super) mod step;
mod summary;
mod updates;
mod verdict;
mod workers;

pub use history::history;
pub use job::{job, stored, summary};
pub use step::{speeds, step_view};
pub use summary::{SummaryInputs, Told, summarize};
pub use updates::Cursor;
pub use verdict::verdict;
pub use workers::{curves, forecast, workers};
