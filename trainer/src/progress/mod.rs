//! Progress output of a run.
//!
//! - `lines`: the iteration, regrouping and end lines of rank 0
//! - `statistics`: statistics of one policy's iterations
//! - `output`: lines on the terminal and the progress bar
//! - `log`: rank 0's progress log, which writes to all of these

mod lines;
mod log;
mod output;
pub mod statistics;

pub use lines::{EndLine, IterationLine, RegroupLine, WorkerLine};
pub use log::{CompletedStep, PolicyJob, ProgressLog};
pub use output::{Output, Progress};
