//! `profile`: measures the layers of a network on this machine, as input for burst-parallel plans.
//!
//! Layers are measured in whole iterations of the executor that also runs plans, so that caches and memory
//! behave as in a plan:
//!
//! - By local batch (`--batches`): every worker computes its samples alone, all workers at the same time.
//!   With several workers the network is measured as well (`network`), over the groups of the run, at the
//!   sizes that this model sends and sums.
//! - By GPU count, for one global batch (`--global-batch`): explicit tables of the compute time with gradient
//!   sum, and of the transfers between different counts. Use these tables if workers slow each other down,
//!   for example on a shared memory bus.
//!
//! The compute time of a layer is the sum of its forward, backward and optimizer step. The loss counts as
//! part of the last layer.

mod curves;
mod network;
mod tables;

use std::cell::Cell;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use evenstep_c10d::Group;
use evenstep_protocol::{BurstLayer, BurstProfile};

use crate::burst::measured::{by_layer, middle};
use crate::burst::training_loop::{self, WARM_UP};
use crate::burst::{Executor, LayerTimes, Plan};
use crate::dataset::DataSet;
use crate::network::Layer;
use crate::processes::ProcessArgs;
use crate::processes::{self, Process};
use crate::task::TaskArgs;
use evenstep_report::output::put;
use evenstep_trainer::launch::LaunchOutcome;
use evenstep_trainer::model::{MOMENTUM, device_name};
use evenstep_trainer::plan::GLOBAL_BATCH_MAX;
use evenstep_trainer::progress::Output;
use evenstep_trainer::training::InvalidArgs;

/// Number of measurements per value, of which the median counts; there are [`WARM_UP`] more before them.
const REPEATS: usize = 30;

/// Arguments of `profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Local batches to measure, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256", conflicts_with = "global_batch",
        value_parser = clap::value_parser!(u64).range(1..=GLOBAL_BATCH_MAX))]
    pub batches: Vec<u64>,
    /// Measure tables by GPU count for this global batch instead; use this if workers slow each other
    /// down
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=GLOBAL_BATCH_MAX))]
    pub global_batch: Option<u64>,
    /// Number of worker processes; with two or more, the network between them is measured too
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), env = "EVENSTEP_WORKERS")]
    pub workers: u32,
    /// File for the profile, as JSON
    #[arg(long)]
    pub json: PathBuf,
    /// The worker processes.
    #[command(flatten)]
    pub processes: ProcessArgs,
    /// The network, its data set and the optimizer step.
    #[command(flatten)]
    pub task: TaskArgs,
}

/// Starts the workers, or runs as one of them.
///
/// # Errors
/// Fails if options contradict each other, the file cannot be written, or a worker fails.
pub fn run(args: &ProfileArgs) -> Result<LaunchOutcome> {
    args.task.check()?;
    let workers = args.workers as usize;
    if let Some(batch) = args.global_batch.filter(|&batch| batch < workers as u64) {
        return Err(InvalidArgs(format!(
            "--global-batch {batch}: must be at least the number of workers, {workers}"
        ))
        .into());
    }
    let work = |process| work(Bench::new(args, process)?);
    processes::run((&args.processes, &args.task), workers, "profile", || Ok(()), work)
}

fn work(bench: Bench<'_>) -> Result<()> {
    let args = bench.args;
    let (layers, network) = match args.global_batch {
        Some(global_batch) => (tables::measure(&bench, global_batch)?, None),
        None => {
            let layers = curves::measure(&bench, &args.batches)?;
            let network =
                (args.workers > 1).then(|| network::measure(&bench, &layers, &args.batches)).transpose()?;
            (layers, network)
        }
    };
    bench.world.barrier().context("waiting for the other workers to finish")?;
    bench.world.close()?;
    if bench.process.rank > 0 {
        return Ok(());
    }
    let (model, device) = (Some(args.task.model_name()), Some(device_name(bench.process.device)));
    let profile = BurstProfile { model, device, network, layers };
    put(&args.json, (serde_json::to_string_pretty(&profile)? + "\n").as_bytes())?;
    bench.output.say(&format!("wrote {}", args.json.display()));
    Ok(())
}

/// The state of a measurement on one rank.
struct Bench<'a> {
    args: &'a ProfileArgs,
    process: Process,
    world: Group,
    data: DataSet,
    output: Output,
    /// Number of plans run so far; makes the names of their groups unique.
    plans: Cell<u32>,
}

impl<'a> Bench<'a> {
    fn new(args: &'a ProfileArgs, process: Process) -> Result<Self> {
        let data = args.task.dataset();
        let wanted = args.global_batch.or(args.batches.iter().copied().max()).unwrap_or(1);
        let (name, samples) = (&data.name, data.train.len());
        ensure!(
            wanted <= samples,
            "batch {wanted} exceeds the {samples} samples of {name}; use a smaller batch"
        );
        let world = process.group("world", process.world_size)?;
        let output = Output::new("profile");
        Ok(Self { args, process, world, data, output, plans: Cell::new(0) })
    }

    /// Measures the time of each layer in a plan. With `alone`, each rank runs the plan separately;
    /// otherwise all ranks run it together.
    fn times(&self, plan: &Plan, alone: bool) -> Result<Vec<LayerTimes>> {
        let number = self.plans.replace(self.plans.get() + 1);
        let task = &self.args.task;
        let model = task.network(&self.data, self.process.device);
        let group = |name: &str, size| self.process.group(&format!("{name}-{number}-{size}"), size);
        let world = if alone {
            self.process.alone(&format!("alone-{number}"))?
        } else {
            group("world", self.process.world_size)?
        };
        let (shape, join) = ([self.data.features()], |size| group("first", size));
        let mut executor = Executor::new(plan, model, &shape, MOMENTUM, world, join)?;
        // All ranks start at the same time, also if each runs the plan separately.
        self.world.barrier().context("waiting for the other workers to be ready")?;
        let repeats = WARM_UP + REPEATS;
        let done = training_loop::train(&mut executor, &self.data, task, repeats, || {})?;
        executor.close()?;
        let times =
            done.iter().skip(WARM_UP).map(|iteration| by_layer(&iteration.intervals, plan.layers.len()));
        Ok(middle(&times.collect::<Vec<_>>()))
    }

    /// Returns the layers of the network.
    fn layers(&self) -> Vec<Layer> {
        self.args.task.network(&self.data, self.process.device).into_layers()
    }

    /// Returns the names and sizes of these layers, without measurements.
    fn layer_profiles(&self, layers: &[Layer]) -> Vec<BurstLayer> {
        let mut shape = vec![self.data.features()];
        let words = self.args.task.network.dtype.words();
        let layer_profiles = layers.iter().map(|layer| {
            shape = layer.output_shape(&shape);
            BurstLayer {
                name: layer.name().to_owned(),
                parameters: Some(words * layer.size() as u64),
                outputs: Some(words * shape.iter().product::<i64>() as u64),
                ..BurstLayer::default()
            }
        });
        layer_profiles.collect()
    }

    fn say(&self, words: &str) {
        if self.process.rank == 0 {
            self.output.say(words);
        }
    }
}
