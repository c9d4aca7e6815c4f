//! A measurement on one rank.

use std::cell::Cell;

use anyhow::{Context, Result, ensure};
use evenstep_c10d::Group;
use evenstep_protocol::BurstLayer;

use super::args::ProfileArgs;
use crate::burst::measured::{by_layer, middle};
use crate::burst::training_loop::{self, WARM_UP};
use crate::burst::{BurstPlan, Executor, LayerTimes};
use crate::dataset::DataSet;
use crate::network::Layer;
use crate::processes::Process;
use evenstep_trainer::model::MOMENTUM;
use evenstep_trainer::progress::Output;

/// Number of measurements per value, of which the median counts; there are [`WARM_UP`] more before them.
pub const REPEATS: usize = 30;

/// The state of a measurement on one rank.
pub struct Bench<'a> {
    pub args: &'a ProfileArgs,
    pub process: Process,
    pub world: Group,
    data: DataSet,
    pub output: Output,
    /// Number of plans run so far; makes the names of their groups unique.
    plans: Cell<u32>,
}

impl<'a> Bench<'a> {
    /// Prepares a measurement.
    ///
    /// # Errors
    /// Fails if the data set has too few samples, or the group of the workers cannot be formed.
    pub fn new(args: &'a ProfileArgs, process: Process) -> Result<Self> {
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
    ///
    /// # Errors
    /// Fails if a worker is lost.
    pub fn times(&self, plan: &BurstPlan, alone: bool) -> Result<Vec<LayerTimes>> {
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
    pub fn layers(&self) -> Vec<Layer> {
        self.args.task.network(&self.data, self.process.device).into_layers()
    }

    /// Returns the names and sizes of these layers, without measurements.
    pub fn layer_profiles(&self, layers: &[Layer]) -> Vec<BurstLayer> {
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

    /// Prints a line on rank 0.
    pub fn say(&self, words: &str) {
        if self.process.rank == 0 {
            self.output.say(words);
        }
    }
}
