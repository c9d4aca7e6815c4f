//! A plan as `evenstep-predictor plan --json` writes it, and the rules that make it one for this model and these ranks.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::network::Layer;
use evenstep_trainer::plan::GLOBAL_BATCH_MAX;

/// The longest plan that is read, in bytes.
const BYTES_MAX: u64 = 64 << 20;
/// The most GPUs of a plan that is run.
pub const GPUS_MAX: usize = 1024;

/// What each layer runs on. Times are in microseconds, and only there to be compared with what is measured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Plan {
    /// GPUs that it was made for.
    pub gpus: usize,
    /// Samples of an iteration.
    pub global_batch: u64,
    /// An iteration.
    pub iteration_us: f64,
    /// In the order in which they run.
    pub layers: Vec<PlannedLayer>,
}

/// One layer of a plan.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PlannedLayer {
    /// As the model calls it.
    pub name: String,
    /// It runs on the ranks `0..gpus`.
    pub gpus: usize,
    /// How many samples each of them has.
    pub samples: Vec<u64>,
    /// When it begins.
    #[serde(default)]
    pub start_us: f64,
    /// Bringing its inputs to its ranks, and their gradients back.
    #[serde(default)]
    pub transfer_us: f64,
    /// Forward, backward and step; with the gradient sum where that is not told apart.
    #[serde(default)]
    pub compute_us: f64,
    /// Summing its gradient.
    #[serde(default)]
    pub sync_us: Option<f64>,
}

impl Plan {
    /// Reads a plan from a file.
    ///
    /// # Errors
    /// The file cannot be read, is no plan, or breaks a rule of its own.
    pub fn read(path: &Path) -> Result<Self> {
        let named = || format!("plan {}", path.display());
        let mut text = String::new();
        let file = File::open(path).with_context(named)?;
        file.take(BYTES_MAX + 1).read_to_string(&mut text).with_context(named)?;
        ensure!(text.len() as u64 <= BYTES_MAX, "{}: must have at most {BYTES_MAX} bytes", named());
        Self::parse(&text).with_context(named)
    }

    fn parse(text: &str) -> Result<Self> {
        let plan: Self = serde_json::from_str(text)?;
        let (gpus, global_batch) = (plan.gpus, plan.global_batch);
        ensure!((1..=GPUS_MAX).contains(&gpus), "gpus {gpus}: must be from 1 to {GPUS_MAX}");
        ensure!(
            (1..=GLOBAL_BATCH_MAX).contains(&global_batch),
            "global_batch {global_batch}: must be from 1 to {GLOBAL_BATCH_MAX}"
        );
        for layer in &plan.layers {
            layer.check(gpus, global_batch).with_context(|| format!("layer {:?}", layer.name))?;
        }
        Ok(plan)
    }

    /// A plan without times that gives each of these layers so many GPUs, which share the samples evenly: of what is left over each of
    /// the first has one.
    pub fn even(layers: &[Layer], gpus: &[usize], global_batch: u64) -> Self {
        let planned = layers.iter().zip(gpus).map(|(layer, &gpus)| {
            let (each, more) = (global_batch / gpus.max(1) as u64, global_batch % gpus.max(1) as u64);
            PlannedLayer {
                name: layer.name().to_owned(),
                gpus,
                samples: (0..gpus as u64).map(|gpu| each + u64::from(gpu < more)).collect(),
                start_us: 0.0,
                transfer_us: 0.0,
                compute_us: 0.0,
                sync_us: None,
            }
        });
        let most = gpus.iter().copied().max().unwrap_or(1);
        Self { gpus: most, global_batch, iteration_us: 0.0, layers: planned.collect() }
    }

    /// Whether it can be run by so many ranks on these layers.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self, layers: &[Layer], world_size: usize) -> Result<()> {
        ensure!(
            self.gpus <= world_size,
            "the plan is for {} GPUs and there are {world_size} workers: each GPU of a plan needs a worker",
            self.gpus
        );
        let planned: Vec<&str> = self.layers.iter().map(|layer| layer.name.as_str()).collect();
        let ours: Vec<&str> = layers.iter().map(Layer::name).collect();
        let differs = (0..planned.len().max(ours.len())).find(|&at| planned.get(at) != ours.get(at));
        if let Some(at) = differs {
            let said = |layer: Option<&&str>| layer.map_or("nothing".to_owned(), |name| format!("{name:?}"));
            bail!(
                "the plan is for another model: its layer {at} is {}, that of the model is {}; the layers must be the same, in \
                 the same order",
                said(planned.get(at)),
                said(ours.get(at))
            );
        }
        Ok(())
    }
}

impl PlannedLayer {
    /// Transfers, compute and gradient sum.
    pub fn all_us(&self) -> f64 {
        self.transfer_us + self.compute_us + self.sync_us.unwrap_or(0.0)
    }

    fn check(&self, gpus: usize, global_batch: u64) -> Result<()> {
        ensure!((1..=gpus).contains(&self.gpus), "gpus {}: must be from 1 to the plan's {gpus}", self.gpus);
        let (parts, count) = (self.samples.len(), self.gpus);
        ensure!(parts == count, "samples has {parts} entries: must have one for each of its {count} GPUs");
        let sum = self.samples.iter().try_fold(0_u64, |sum, part| sum.checked_add(*part));
        ensure!(
            sum == Some(global_batch),
            "samples {:?}: must sum up to the global batch of {global_batch}",
            self.samples
        );
        Ok(())
    }
}
