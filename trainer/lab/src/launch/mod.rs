//! Starting the workers of one machine, and ending all of them when one fails.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use evenstep_c10d::Store;

use crate::board::Shown;
use crate::cli::{JoinArgs, LaunchArgs};
use crate::contend::clock_s;
use crate::crew::{Crew, Ended, TIED, quiet, signals};
use crate::load::Load;
use crate::output::Output;
use crate::pin;
use crate::supervise::{Bounds, Supervisor};

/// The store waits this long for its own port.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);
/// Starts the workers and waits for them. `matches` are the raw arguments of `launch`.
///
/// # Errors
/// Values that do not go together, or a worker that failed.
pub fn run(args: &LaunchArgs, matches: &ArgMatches) -> Result<Ended> {
    let workers = args.workers as usize;
    args.train.check(workers)?;
    let cores = placement(args, &pin::cores()?)?;
    let output = Output::new("launch");
    let signals = signals()?;
    // Hosted here and not in a worker, so that it outlives whichever worker is lost.
    let store = Store::host("127.0.0.1", 0, STORE_TIMEOUT)?;
    let mut load = Crew::default();
    let mut loaded = Vec::new();
    let since_s = clock_s();
    if args.contend.is_some() || args.train.sway.is_some() {
        loaded.push(format!("--loaded-since={since_s}"));
    }
    if let Some(kind) = args.contend {
        for (rank, &core) in cores.iter().flatten().enumerate() {
            load.start(contender(core, Load::beside(rank, kind, args.train.task.seed), since_s)?)?;
        }
        loaded.push(format!("--contended={kind}"));
        output.say(&format!(
            "a competing load of our own ({kind}) runs on the cores {:?}",
            cores.as_deref().unwrap_or(&[])
        ));
    }
    let shown = Shown::start(args, &output)?;
    let board = shown.as_ref().map(|shown| shown.board.clone()).unwrap_or_default();
    let passed = passed_on(matches);
    let worker = |rank: usize, life: Option<u32>| -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["join".into(), format!("--rank={rank}"), format!("--world-size={workers}")]);
        command.arg(format!("--store=127.0.0.1:{}", store.port()));
        command.args(cores.as_ref().map(|cores| format!("--core={}", cores[rank])));
        command.args(life.map(|life| format!("--life={life}")));
        command.args(&loaded);
        command.args(&passed).env(TIED, "1");
        match &shown {
            Some(shown) => command.arg("--tells").stdin(shown.voice()?),
            None => command.stdin(Stdio::null()),
        };
        quiet(&mut command);
        Ok(command)
    };
    if args.train.elastic {
        let bounds = Bounds { max_restarts: args.max_restarts, min_workers: args.train.min_workers as usize };
        let next = |slot, life| worker(slot, Some(life));
        return Supervisor::start(workers, &next, &store, bounds, &output, &board)?.watch(&signals);
    }
    let mut crew = Crew::default();
    for rank in 0..workers {
        crew.start(worker(rank, None)?)?;
    }
    crew.watch(&signals, &output, &board)
}

/// The core of each worker, where workers are pinned.
fn placement(args: &LaunchArgs, allowed: &[usize]) -> Result<Option<Vec<usize>>> {
    let workers = args.workers as usize;
    if let Some(cores) = &args.pin {
        return pin::chosen(cores, workers, allowed).map(Some);
    }
    if args.contend.is_none() {
        return Ok(None);
    }
    ensure!(
        workers <= allowed.len(),
        "--contend with {workers} workers on {} cores: workers that share a core slow each other down alike and hide \
         the load; take at most {} workers",
        allowed.len(),
        allowed.len()
    );
    Ok(Some(allowed[..workers].to_vec()))
}

/// The arguments of `launch` that `join` knows too, as they were given; what came from the environment or is a default
/// reaches the workers by itself.
fn passed_on(matches: &ArgMatches) -> Vec<OsString> {
    let join = JoinArgs::augment_args(clap::Command::new("join"));
    let mut passed = Vec::new();
    for argument in join.get_arguments() {
        let (id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        let here = matches.try_contains_id(id).is_ok();
        if !here || matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let values: Vec<_> = matches.get_raw(id).into_iter().flatten().collect();
        let mut flag = OsString::from(format!("--{long}"));
        if argument.get_action().takes_values() && !values.is_empty() {
            flag.push("=");
            flag.push(values.join(&OsString::from(",")));
        }
        passed.push(flag);
    }
    passed
}

fn contender(core: usize, load: Load, since_s: f64) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["contend", "--until-stdin-closes", &format!("--core={core}")]);
    command.args([format!("--load={}", load.kind), format!("--seed={}", load.seed)]);
    command.arg(format!("--since={since_s}"));
    command.stdin(Stdio::piped()).env(TIED, "1");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse_launch;

    fn launch(extra: &[&str]) -> (LaunchArgs, ArgMatches) {
        parse_launch(extra).unwrap()
    }

    #[test]
    fn what_was_given_reaches_the_workers_and_nothing_else() {
        let (_, matches) = launch(&[
            "--pin=0,1",
            "--contend",
            "--pace",
            "1,2",
            "--lr=0.1",
            "--verify-gradient",
            "--hidden",
            "8,4",
        ]);
        let passed = passed_on(&matches);
        let expected = ["--hidden=8,4", "--lr=0.1", "--pace=1,2", "--verify-gradient=50"];
        let mut passed: Vec<_> = passed.iter().map(|flag| flag.to_str().unwrap()).collect();
        passed.sort_unstable();
        assert_eq!(passed, expected);
    }

    #[test]
    fn a_load_needs_a_core_for_each_worker() {
        assert_eq!(placement(&launch(&[]).0, &[0, 1]).unwrap(), None);
        assert_eq!(placement(&launch(&["--contend"]).0, &[2, 3, 4]).unwrap(), Some(vec![2, 3]));
        assert!(placement(&launch(&["--contend"]).0, &[0]).is_err());
        assert_eq!(placement(&launch(&["--pin=1,1"]).0, &[0, 1]).unwrap(), Some(vec![1, 1]));
        assert!(placement(&launch(&["--pin=1,2"]).0, &[0, 1]).is_err());
        assert!(placement(&launch(&["--pin=1"]).0, &[0, 1]).is_err());
    }
}
