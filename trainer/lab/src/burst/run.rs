//! `burst`: runs a plan with worker processes and compares its times with the prediction.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use evenstep_report::output::put;
use tch::{Device, Tensor};

use super::exchange;
use super::executor::Executor;
use super::measured::{by_layer, median};
use super::page;
use super::plan::BurstPlan;
use super::result::Measured;
use super::timeline::Timeline;
use super::training_loop::{self, WARM_UP};
use super::watch::PhaseInterval;
use crate::dataset::DataSet;
use crate::network::Network;
use crate::processes::ProcessArgs;
use crate::processes::{self, Process};
use crate::task::TaskArgs;
use evenstep_trainer::launch::LaunchOutcome;
use evenstep_trainer::model::{MOMENTUM, reduce_device};
use evenstep_trainer::progress::Progress;

/// Maximum number of iterations. The measurements of all iterations are held in memory.
const ITERATIONS_MAX: usize = 100_000;

/// Arguments of `burst`.
#[derive(Debug, Args)]
pub struct BurstArgs {
    /// File with the plan from `evenstep-predictor plan --json`
    #[arg(long)]
    pub plan: PathBuf,
    /// Number of measured iterations, after 5 iterations of warm-up
    #[arg(long, default_value_t = 50, value_parser = steps)]
    pub steps: usize,
    /// Number of worker processes [default: the number of GPUs in the plan]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024), env = "EVENSTEP_WORKERS")]
    pub workers: Option<u32>,
    /// File for the results, as JSON
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// File for a page with the planned and measured timelines
    #[arg(long)]
    pub html: Option<PathBuf>,
    /// The worker processes.
    #[command(flatten)]
    pub processes: ProcessArgs,
    /// The network, its data set and the optimizer step.
    #[command(flatten)]
    pub task: TaskArgs,
}

fn steps(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=ITERATIONS_MAX).contains(count))
        .ok_or(format!("must be from 1 to {ITERATIONS_MAX}"))
}

/// Starts the workers, or runs as one of them.
///
/// # Errors
/// Fails if the plan cannot be run here or a worker fails.
pub fn run(args: &BurstArgs) -> Result<LaunchOutcome> {
    args.task.check()?;
    let plan = BurstPlan::read(&args.plan)?;
    let workers = args.workers.map_or(plan.gpus, |workers| workers as usize);
    // The launcher checks once, so that not every worker reports the same error.
    let check = || prepare(args, &plan, workers, Device::Cpu).map(drop);
    processes::run((&args.processes, &args.task), workers, "burst", check, |process| {
        work(args, &plan, &process)
    })
}

/// Returns the data and the network, after checking that the plan fits them.
fn prepare(args: &BurstArgs, plan: &BurstPlan, workers: usize, device: Device) -> Result<(DataSet, Network)> {
    let data = args.task.dataset();
    let model = args.task.network(&data, device);
    plan.check(model.layers(), workers).with_context(|| format!("plan {}", args.plan.display()))?;
    let (batch, samples) = (plan.global_batch, data.train.len());
    ensure!(
        batch <= samples,
        "global batch {batch} of the plan exceeds the {samples} samples of {}; use a larger data set or another plan",
        data.name
    );
    Ok((data, model))
}

fn work(args: &BurstArgs, plan: &BurstPlan, process: &Process) -> Result<()> {
    let (rank, workers) = (process.rank, process.world_size);
    let (data, model) = prepare(args, plan, workers, process.device)?;
    let join = |size| process.group(&format!("first-{size}"), size);
    let shape = [data.features()];
    let world = process.group("world", workers)?;
    let mut executor = Executor::new(plan, model, &shape, MOMENTUM, world, join)?;
    let total = WARM_UP + args.steps;
    let mut progress = (rank == 0).then(|| Progress::new("burst", total as u64).0);
    let trained = training_loop::train(&mut executor, &data, &args.task, total, || {
        if let Some(progress) = &mut progress {
            progress.advance(Instant::now(), || "iterations".to_owned());
        }
    })?;
    if let Some(progress) = &progress {
        progress.finish();
    }
    let losses: Vec<f64> = trained.iter().map(|iteration| iteration.loss).collect();
    let measured: Vec<&[PhaseInterval]> = trained.iter().map(|iteration| &*iteration.intervals).collect();
    let on = reduce_device(process.device);
    let loss = sum(&executor, &losses, on)?;
    // All ranks show the same iteration: the median one on rank 0.
    let lengths = lengths_s(&measured);
    let middle = median(&lengths);
    let chosen = lengths.iter().position(|&length| length == middle).unwrap_or(0) as i64;
    let mut chosen = Tensor::from_slice(&[chosen]).to_device(on);
    executor.world().broadcast(&mut chosen, 0)?;
    let shown = measured.get(WARM_UP + chosen.int64_value(&[0]) as usize).copied().unwrap_or(&[]);
    let own = Timeline::encode(shown, rank, workers, plan.layers.len());
    let timeline = Timeline::decode(&sum(&executor, &own, on)?, workers, plan.layers.len());
    executor.close()?;
    if rank > 0 {
        return Ok(());
    }
    let times = measured.iter().skip(WARM_UP).map(|intervals| by_layer(intervals, plan.layers.len()));
    let times: Vec<_> = times.collect();
    let measured = Measured::new(plan, workers, &lengths, &times, &loss, args.task.model_name());
    if let Some(path) = &args.json {
        put(path, (serde_json::to_string_pretty(&measured)? + "\n").as_bytes())?;
    }
    if let Some(path) = &args.html {
        put(path, page::report(&measured, plan, &timeline).to_html().as_bytes())?;
    }
    io::stdout().lock().write_all(measured.text().as_bytes()).context("writing the table")
}

/// Returns the durations of the measured iterations in seconds, each from the end of the previous iteration,
/// so that no time is left out.
fn lengths_s(iterations: &[&[PhaseInterval]]) -> Vec<f64> {
    let ends: Vec<f64> = iterations.iter().filter_map(|intervals| Some(intervals.last()?.to_s)).collect();
    let lengths = ends.iter().zip(ends.iter().skip(1)).map(|(before, end)| end - before);
    lengths.skip(WARM_UP - 1).collect()
}

/// Sums the values over all ranks.
fn sum(executor: &Executor, values: &[f64], on: Device) -> Result<Vec<f64>> {
    let tensor = Tensor::from_slice(values).to_device(on);
    let tensor = exchange::sum(executor.world(), &tensor).context("exchanging measurements")?;
    let tensor = tensor.to_device(Device::Cpu);
    Vec::<f64>::try_from(&tensor).context("reading the exchanged measurements")
}
