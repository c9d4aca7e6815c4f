//! The commands of `evenstep-trainer`.

use clap::{Parser, Subcommand};

use crate::burst::BurstArgs;
use crate::gaps::GapsArgs;
use crate::launch::{JoinArgs, LaunchArgs};
use crate::load::contend::ContendArgs;
use crate::profile::ProfileArgs;
use crate::report::ReportArgs;
use crate::store::StoreArgs;

/// Data-parallel training that asks the evenstep predictor for its batches.
#[derive(Debug, Parser)]
#[command(name = "evenstep-trainer", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train with several workers on this machine
    Launch(LaunchArgs),
    /// Take part in a training as one worker, on this or another machine
    Join(JoinArgs),
    /// Measure the layers of a network, and the network between workers, for burst-parallel plans
    Profile(ProfileArgs),
    /// Run a burst-parallel plan, and compare it with what was planned
    Burst(BurstArgs),
    /// Measure what background jobs make of the gaps of a burst-parallel training, and what they cost it
    Gaps(GapsArgs),
    /// Draw up records of runs: a table, a page with charts, figures as JSON
    Report(ReportArgs),
    /// Host the store through which workers that join by hand find each other
    Store(StoreArgs),
    /// Load a core as other tenants of a machine would; runs until its standard input closes
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
}
