//! Starts the loads and workers of a run, or runs one of its workers.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use evenstep_trainer::launch::processes::{LaunchOutcome, TIED, WorkerProcesses};
use evenstep_trainer::launch::{cores, enter, from_environment, launch, train};
use evenstep_trainer::progress::Output;
use evenstep_trainer::training::{Training, WorkerProcess};
use tch::Device;

use super::args::{JoinArgs, LaunchArgs, TrainArgs};
use super::conditions::Conditions;
use super::observer::hooks;
use crate::dataset::Samples;
use crate::load::{Load, clock_s, clock_seconds};

/// Environment variable with the start of the load, in seconds on the machine's monotonic clock; the launcher
/// sets it for the workers.
const LOADED_SINCE: &str = "EVENSTEP_LAB_LOADED_SINCE";

/// Runs the command `launch`. The launcher starts the loads and the workers and waits for them. A process
/// that the launcher started runs as that worker.
///
/// # Errors
/// Fails if options contradict each other or a worker fails.
pub fn run(args: &LaunchArgs) -> Result<LaunchOutcome> {
    if let Some(process) = from_environment()? {
        let since = std::env::var(LOADED_SINCE).ok();
        let loaded_since = since.map(|since| clock_seconds(&since)).transpose();
        let loaded_since = loaded_since.map_err(|why| anyhow::anyhow!("{LOADED_SINCE}: {why}"))?;
        work(Conditions { train: args.train.clone(), process, contended: args.contend, loaded_since })?;
        return Ok(LaunchOutcome::Finished);
    }
    args.train.check(args.launch.workers as usize)?;
    let (since_s, mut variables) = (clock_s(), Vec::new());
    if args.contend.is_some() || args.train.vary_pace {
        variables.push((LOADED_SINCE, since_s.to_string()));
    }
    let cores = placement(args, &cores::allowed()?)?;
    let mut loads = WorkerProcesses::default();
    if let Some(kind) = args.contend {
        for (rank, &core) in cores.iter().enumerate() {
            let load = Load::for_worker(rank, kind, args.train.options.step.seed);
            loads.start(contend_command(core, load, since_s)?)?;
        }
        Output::new("launch").say(&format!("competing load ({kind}) runs on cores {cores:?}"));
    }
    launch(&args.train.options, &args.launch, &cores, &variables)
}

/// Runs the command `join`: runs one worker, on this or another machine.
///
/// # Errors
/// Fails if options contradict each other, the data cannot be used, or the worker fails.
pub fn join(args: &JoinArgs) -> Result<()> {
    let process = WorkerProcess {
        rank: args.rank,
        world_size: args.workers,
        store: args.store.clone(),
        interface: args.interface.clone(),
        core: None,
        life: None,
    };
    if args.rank >= args.workers && !args.train.options.elastic {
        bail!("--rank {}: must be below --workers {}", args.rank, args.workers);
    }
    enter(process.core)?;
    work(Conditions { train: args.train.clone(), process, contended: None, loaded_since: None })
}

/// Trains a built-in network as one worker.
fn work(conditions: Conditions) -> Result<()> {
    let (process, train_args) = (conditions.process.clone(), &conditions.train);
    train_args.check(process.world_size)?;
    let training = training(train_args)?;
    train(&training, &process, hooks(conditions)?)
}

/// Returns the built-in network and its data as a [`Training`].
fn training(args: &TrainArgs) -> Result<Training> {
    let (task, kind) = (args.task(), args.network.dtype.kind());
    let data = task.dataset();
    let (architecture, shape, classes) = (args.network.architecture(), data.shape, data.classes);
    let model = move |device: Device| -> Result<Box<dyn evenstep_trainer::Model>> {
        Ok(Box::new(crate::network::Network::new(
            &architecture,
            shape,
            classes,
            task.step.seed,
            kind,
            device,
        )))
    };
    let mut options = args.options.clone();
    options.background = args.background.wanted();
    let name = data.name;
    Ok(Training {
        options,
        model: Box::new(model),
        model_name: args.network.model_name(),
        held_out: Some(Box::new(Samples { name: name.clone(), split: data.held_out, kind })),
        data: Box::new(Samples { name, split: data.train, kind }),
    })
}

/// Returns the core of each worker; none if workers are not pinned.
fn placement(args: &LaunchArgs, allowed: &[usize]) -> Result<Vec<usize>> {
    let workers = args.launch.workers as usize;
    if args.contend.is_none() {
        return Ok(Vec::new());
    }
    ensure!(
        workers <= allowed.len(),
        "--contend with {workers} workers on {} cores: workers on the same core hide the load, as they slow each \
                 other down equally; use at most {} workers",
        allowed.len(),
        allowed.len()
    );
    Ok(allowed[..workers].to_vec())
}

fn contend_command(core: usize, load: Load, since_s: f64) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["contend", &format!("--core={core}")]);
    command.args([format!("--load={}", load.kind), format!("--seed={}", load.seed)]);
    command.arg(format!("--since={since_s}"));
    command.stdin(Stdio::piped()).env(TIED, "1");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::args::tests::parse_launch;

    fn parsed(extra: &[&str]) -> LaunchArgs {
        parse_launch(extra).unwrap()
    }

    #[test]
    fn a_load_needs_a_core_for_each_worker() {
        assert_eq!(placement(&parsed(&[]), &[0, 1]).unwrap(), [0; 0]);
        assert_eq!(placement(&parsed(&["--contend"]), &[2, 3, 4]).unwrap(), [2, 3]);
        assert!(placement(&parsed(&["--contend"]), &[0]).is_err());
    }
}
