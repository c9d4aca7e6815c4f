//! Plans as written by `evenstep-predictor plan --json`, and the checks that a plan fits the model and the
//! ranks.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::network::Layer;
use evenstep_trainer::plan::GLOBAL_BATCH_MAX;

/// Maximum size of a plan, in bytes.
const BYTES_MAX: u64 = 64 << 20;
/// Maximum number of GPUs of a plan.
pub const GPUS_MAX: usize = 1024;

/// A burst-parallel plan. Its times are in microseconds and only serve the comparison with the measurement.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct BurstPlan {
    /// Number of GPUs.
    pub gpus: usize,
    /// Samples per iteration.
    pub global_batch: u64,
    /// Predicted time of an iteration.
    pub iteration_us: f64,
    /// Layers in the order in which they run.
    pub layers: Vec<PlannedLayer>,
}

/// One layer of a plan.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PlannedLayer {
    /// Name of the layer in the model.
    pub name: String,
    /// Number of GPUs; the layer runs on ranks `0..gpus`.
    pub gpus: usize,
    /// Number of samples of each of these ranks.
    pub samples: Vec<u64>,
    /// Start time in the iteration.
    #[serde(default)]
    pub start_us: f64,
    /// Time of moving its inputs to its ranks, and their gradients back.
    #[serde(default)]
    pub transfer_us: f64,
    /// Time of forward, backward and step. Includes the gradient sum if `sync_us` is absent.
    #[serde(default)]
    pub compute_us: f64,
    /// Time of summing its gradient.
    #[serde(default)]
    pub sync_us: Option<f64>,
}

impl BurstPlan {
    /// Reads a plan from a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is not a plan, or violates a rule of plans.
    pub fn read(path: &Path) -> Result<Self> {
        let named = || format!("plan {}", path.display());
        let mut text = String::new();
        let file = File::open(path).with_context(named)?;
        file.take(BYTES_MAX + 1).read_to_string(&mut text).with_context(named)?;
        ensure!(text.len() as u64 <= BYTES_MAX, "{}: the file must have at most {BYTES_MAX} bytes", named());
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

    /// Returns a plan without times that assigns a number of GPUs to each layer, with even shares. The
    /// first GPUs get one of the remaining samples each.
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

    /// Checks that `world_size` ranks can run the plan on these layers.
    ///
    /// # Errors
    /// Returns the first violated rule.
    pub fn check(&self, layers: &[Layer], world_size: usize) -> Result<()> {
        ensure!(
            self.gpus <= world_size,
            "the plan requires {} workers, one per GPU, but the run has {world_size} workers; raise --workers",
            self.gpus
        );
        let planned: Vec<&str> = self.layers.iter().map(|layer| layer.name.as_str()).collect();
        let ours: Vec<&str> = layers.iter().map(Layer::name).collect();
        let differs = (0..planned.len().max(ours.len())).find(|&at| planned.get(at) != ours.get(at));
        if let Some(at) = differs {
            let said = |layer: Option<&&str>| layer.map_or("no layer".to_owned(), |name| format!("{name:?}"));
            bail!(
                "the plan is for another model: at layer {at} the plan has {}, but the model has {}; profile this model and plan again",
                said(planned.get(at)),
                said(ours.get(at))
            );
        }
        Ok(())
    }
}

impl PlannedLayer {
    /// Returns the total time of transfers, compute and gradient sum.
    pub fn all_us(&self) -> f64 {
        self.transfer_us + self.compute_us + self.sync_us.unwrap_or(0.0)
    }

    fn check(&self, gpus: usize, global_batch: u64) -> Result<()> {
        ensure!(
            (1..=gpus).contains(&self.gpus),
            "gpus {}: must be from 1 to {gpus}, the GPUs of the plan",
            self.gpus
        );
        let (parts, count) = (self.samples.len(), self.gpus);
        ensure!(parts == count, "samples has {parts} entries: must have one for each of the {count} GPUs");
        let sum = self.samples.iter().try_fold(0_u64, |sum, part| sum.checked_add(*part));
        ensure!(
            sum == Some(global_batch),
            "samples {:?}: the sum must equal the global batch {global_batch}",
            self.samples
        );
        Ok(())
    }
}
