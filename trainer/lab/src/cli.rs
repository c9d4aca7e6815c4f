//! The commands of `evenstep-trainer`.

use clap::{Parser, Subcommand};

use crate::burst::BurstArgs;
use crate::gaps::GapsArgs;
use crate::launch::{JoinArgs, LaunchArgs};
use crate::load::contend::ContendArgs;
use crate::profile::ProfileArgs;
use crate::report::ReportArgs;
use crate::store::StoreArgs;

/// Data-parallel training with batch sizes allocated by the evenstep predictor.
#[derive(Debug, Parser)]
// The value of a variable may be a secret, such as a password in a URL.
#[command(name = "evenstep-trainer", version, mut_subcommands = |command| command.mut_args(|arg| arg.hide_env_values(true)))]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `evenstep-trainer`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train with several workers on this machine
    Launch(LaunchArgs),
    /// Join a training run as one worker, on this or another machine
    Join(JoinArgs),
    /// Measure the layers of a model and the network between workers, as input for burst-parallel plans
    Profile(ProfileArgs),
    /// Run a burst-parallel plan and compare its times with the prediction
    Burst(BurstArgs),
    /// Measure the throughput and the cost of background jobs in the gaps of burst-parallel training
    Gaps(GapsArgs),
    /// Summarize records of runs as a table, a page with charts, or JSON
    Report(ReportArgs),
    /// Host the store for workers that are started with `join`
    Store(StoreArgs),
    /// Load a core until standard input closes; `launch --contend` starts it
    #[command(hide = true)]
    Contend(ContendArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_shows_no_value_of_a_variable() {
        let command = Cli::command();
        let arguments = || command.get_subcommands().flat_map(clap::Command::get_arguments);
        let from_variables = || arguments().filter(|arg| arg.get_env().is_some());
        assert!(from_variables().any(|arg| arg.get_id() == "server"));
        assert!(from_variables().all(clap::Arg::is_hide_env_values_set));
    }
}
