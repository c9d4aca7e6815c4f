//! The binary `evenstep-trainer`; the library `evenstep_trainer_lab` implements its commands.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use evenstep_trainer::launch::cores;
use evenstep_trainer::launch::processes::{LaunchOutcome, TIED};
use evenstep_trainer::training::{WORKER, WorkerProcess};
use evenstep_trainer_lab::burst::{self, BurstArgs};
use evenstep_trainer_lab::cli::{Cli, Command};
use evenstep_trainer_lab::gaps::{self, GapsArgs};
use evenstep_trainer_lab::load::contend;
use evenstep_trainer_lab::profile::{self, ProfileArgs};
use evenstep_trainer_lab::{launch, report, store};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let started = WorkerProcess::from_environment().ok().flatten().map(|worker| worker.rank);
    let (command, rank) = match &cli.command {
        Command::Join(join) => ("join", Some(join.rank)),
        Command::Launch(_) => ("launch", started),
        Command::Profile(ProfileArgs { processes, .. }) => ("profile", processes.rank.or(started)),
        Command::Burst(BurstArgs { processes, .. }) => ("burst", processes.rank.or(started)),
        Command::Gaps(GapsArgs { processes, .. }) => ("gaps", processes.rank.or(started)),
        Command::Store(_) | Command::Contend(_) | Command::Report(_) => ("evenstep-trainer", None),
    };
    let log_prefix = rank.map_or(command.to_owned(), |rank| format!("rank {rank}"));
    match run(&cli.command) {
        Ok(code) => code,
        Err(error) => {
            // One write per message, so that messages of several workers on one terminal do not
            // mix.
            let line = format!("{log_prefix}: error: {error:#}\n");
            // If standard error is closed, the error cannot be reported anywhere.
            let _ = std::io::stderr().write_all(line.as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    if [TIED, WORKER].iter().any(|variable| std::env::var_os(variable).is_some()) {
        cores::end_with_parent()?;
    }
    match command {
        Command::Launch(args) => return launch::run(args).map(code),
        Command::Profile(args) => return profile::run(args).map(code),
        Command::Burst(args) => return burst::run(args).map(code),
        Command::Gaps(args) => return gaps::run(args).map(code),
        Command::Join(args) => launch::join(args)?,
        Command::Store(args) => store::run(args)?,
        Command::Contend(args) => contend::run(args)?,
        Command::Report(args) => report::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn code(ended: LaunchOutcome) -> ExitCode {
    match ended {
        LaunchOutcome::Finished => ExitCode::SUCCESS,
        // The exit status that a shell reports for a process terminated by a signal.
        LaunchOutcome::Stopped(signal) => ExitCode::from(128 + u8::try_from(signal).unwrap_or(0)),
    }
}
