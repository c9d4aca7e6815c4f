//! Arguments of `top`.

use evenstep_client::Servers;
use evenstep_protocol::{DEFAULT_SERVER, JobId};

use crate::client_tls::ClientTlsArgs;

/// Show running jobs in a terminal: speeds, batches, finish times, waits and decisions
///
/// Keys: j k or arrows select, Enter opens a job, Esc goes back, ? shows help, q quits. NO_COLOR turns
/// colours off.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Predictor URLs, comma-separated; the first that responds is used
    #[arg(long, value_name = "URL,..", default_value = DEFAULT_SERVER, env = "EVENSTEP_SERVER")]
    pub(super) server: Servers,
    #[command(flatten)]
    pub(super) tls: ClientTlsArgs,
    /// ID of the job to open at the start
    #[arg(long, value_name = "ID", env = "EVENSTEP_JOB")]
    pub(super) job: Option<JobId>,
    /// Write one frame as text and exit; the default if standard output is not a terminal
    #[arg(long)]
    pub(super) once: bool,
}
