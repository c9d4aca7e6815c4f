//! What is asked: layers, GPUs, the network between them, and rules.

use std::collections::BTreeMap;

pub use evenstep_protocol::BurstAllReduce as AllReduce;

/// The most layers of a plan.
pub const LAYERS_MAX: usize = 4096;
/// The most GPUs of a plan.
pub const GPUS_MAX: usize = 65_536;
/// The most GPU counts that a layer can choose from.
pub const COUNTS_MAX: usize = 32;
/// The most layers that one layer reads.
pub const INPUTS_MAX: usize = 64;
/// The most edges between layers.
pub const EDGES_MAX: usize = 16_384;
/// The longest time that is taken, in microseconds: 11 days.
pub const US_MAX: f64 = 1e12;
/// The largest size that is taken, in bytes.
pub const BYTES_MAX: f64 = 1e15;
/// The most outputs of a sample, or parameters, that a layer can have.
pub const VALUES_MAX: f64 = 1e15;

/// A model, the machines and the rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// In the order in which they run; a layer reads only layers before it. Forward and backward count together.
    pub layers: Vec<Layer>,
    /// Samples of an iteration, over all GPUs; at least 1.
    pub global_batch: u64,
    /// A speed for each GPU, relative to the one that costs were measured on (1); positive.
    pub speeds: Vec<f64>,
    /// GPU counts that a layer may have; `None`: the powers of two up to the number of GPUs.
    pub counts: Option<Vec<usize>>,
    /// How many times its GPU time on one GPU a layer may cost; `None`: any.
    pub limit: Option<Limit>,
    /// What a GPU may hold; `None`: anything.
    pub memory: Option<Memory>,
    /// Needed where transfers or gradient sums are made from sizes.
    pub network: Option<Network>,
}

/// One layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// For people, and in errors.
    pub name: String,
    /// What it reads; none: the samples themselves, which are everywhere.
    pub inputs: Vec<Input>,
    /// What it costs.
    pub cost: Cost,
    /// Values (of four bytes) that it hands on for each sample; needed where an edge to its reader is made from it.
    pub outputs: Option<f64>,
    /// Parameters: they are summed where the cost is a [`Cost::Profile`], and held in memory.
    pub parameters: f64,
    /// Bytes of activations by rising local batch; empty: none. Read as the points of a [`Cost::Profile`] are.
    pub activation_bytes: Vec<(u64, f64)>,
}

/// What a layer reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Its place in the list of layers, from 0.
    pub layer: usize,
    /// Microseconds by (GPUs there, GPUs here). Every change of the count that is possible must be there; where the count stays it may be
    /// left out, and costs nothing. `None`: made from the outputs of the layer that is read.
    pub edge_us: Option<BTreeMap<(usize, usize), f64>>,
}

/// What a layer costs, forward and backward.
#[derive(Debug, Clone, PartialEq)]
pub enum Cost {
    /// Compute and gradient sum together, in microseconds, by GPU count, on GPUs of speed 1. Other counts are not possible.
    /// On n GPUs with the sum of speeds S it takes n / S times as long: what is gradient sum in it, the table does not say.
    Table(BTreeMap<usize, f64>),
    /// Compute in microseconds by rising local batch, on a GPU of speed 1, without gradient sum. Straight lines between the points; beyond
    /// the last one the last line goes on (through nothing, where there is only one point); below the first one it takes as long as there.
    Profile(Vec<(u64, f64)>),
}

/// How much GPU time a layer may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// `layer time * GPUs / (compute and gradient sum on one GPU)` must not be more; at least 1. Compared with a relative
    /// tolerance of 1e-9, as ratios of decimals are not decimal.
    pub amplification: f64,
    /// Layers that cost less than this on one GPU are free to choose, in microseconds.
    pub exempt_below_us: f64,
}

/// What a GPU may hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// The cap: all layers that a GPU takes part in are held at once.
    pub bytes_per_gpu: u64,
    /// Weights, gradients and optimizer state: 8 for SGD, 12 with momentum, 16 for Adam, in float32.
    pub bytes_per_parameter: f64,
}

/// What connects the GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// Of one GPU, in each direction; positive.
    pub bandwidth_bytes_per_s: f64,
    /// Of one message, in microseconds.
    pub latency_us: f64,
    /// How gradients are summed.
    pub all_reduce: AllReduce,
}

impl Layer {
    /// A layer of a chain with an explicit table; `previous` is the layer before, with its edge costs.
    pub fn table(name: impl Into<String>, previous: Option<Input>, cost_us: BTreeMap<usize, f64>) -> Self {
        Self {
            name: name.into(),
            inputs: previous.into_iter().collect(),
            cost: Cost::Table(cost_us),
            outputs: None,
            parameters: 0.0,
            activation_bytes: Vec::new(),
        }
    }
}

impl Problem {
    /// These layers on so many GPUs alike, in powers of two, without limit, cap or network.
    pub fn new(layers: Vec<Layer>, gpus: usize, global_batch: u64) -> Self {
        let speeds = vec![1.0; gpus.min(GPUS_MAX + 1)];
        Self { layers, global_batch, speeds, counts: None, limit: None, memory: None, network: None }
    }

    /// The GPU counts that a layer may have, rising, each once.
    pub(super) fn allowed(&self) -> Vec<usize> {
        let powers = || std::iter::successors(Some(1usize), |count| count.checked_mul(2));
        let mut counts = match &self.counts {
            Some(counts) => counts.clone(),
            None => powers().take_while(|count| *count <= self.speeds.len()).collect(),
        };
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}
