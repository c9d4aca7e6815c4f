//! What can be asked of `top`.

use evenstep_client::Servers;
use evenstep_protocol::{DEFAULT_SERVER, JobId};

/// Watch jobs in a terminal: speeds, batches, finish times, waits and decisions as they happen
///
/// Keys: j k or arrows choose, Enter opens a job, Esc goes back, ? helps, q ends. Colours are left out where NO_COLOR is set.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The predictor; several over one store, separated by commas: one that answers is asked
    #[arg(long, value_name = "URL,..", default_value = DEFAULT_SERVER, env = "EVENSTEP_SERVER")]
    pub(super) server: Servers,
    /// Open this job at once
    #[arg(long, value_name = "ID", env = "EVENSTEP_JOB")]
    pub(super) job: Option<JobId>,
    /// Write one frame as text and end; so it is also where standard output is no terminal
    #[arg(long)]
    pub(super) once: bool,
}
