//! The planning problem: layers, GPUs, the network between them, and limits.

use std::collections::BTreeMap;

pub use evenstep_protocol::BurstAllReduce as AllReduce;

/// Maximum number of layers.
pub const LAYERS_MAX: usize = 4096;
/// Maximum number of GPUs.
pub const GPUS_MAX: usize = 65_536;
/// Maximum number of allowed GPU counts.
pub const COUNTS_MAX: usize = 32;
/// Maximum number of inputs of a layer.
pub const INPUTS_MAX: usize = 64;
/// Maximum number of edges between layers.
pub const EDGES_MAX: usize = 16_384;
/// Maximum time, in microseconds: 11 days.
pub const US_MAX: f64 = 1e12;
/// Maximum size, in bytes.
pub const BYTES_MAX: f64 = 1e15;
/// Maximum number of outputs per sample, or of parameters, of a layer.
pub const VALUES_MAX: f64 = 1e15;

/// A model, the GPUs and the limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Layers in execution order; a layer reads only earlier layers. Forward and backward are one cost.
    pub layers: Vec<Layer>,
    /// Samples per iteration over all GPUs; at least 1.
    pub global_batch: u64,
    /// Speed of each GPU, relative to the profiled GPU (1); positive.
    pub speeds: Vec<f64>,
    /// Allowed GPU counts; `None` means the powers of two up to the number of GPUs.
    pub counts: Option<Vec<usize>>,
    /// Amplification limit; `None` means no limit.
    pub limit: Option<Limit>,
    /// Memory cap; `None` means no cap.
    pub memory: Option<Memory>,
    /// The network; required if transfers or gradient sums are computed from sizes.
    pub network: Option<Network>,
}

/// One layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Name, for output and errors.
    pub name: String,
    /// Layers that it reads. A layer without inputs reads the samples, which are available on every GPU.
    pub inputs: Vec<Input>,
    /// Cost of the layer.
    pub cost: Cost,
    /// Output values (4 bytes each) per sample; required if the cost of an edge is computed from them.
    pub outputs: Option<f64>,
    /// Number of parameters. They count as memory; with a [`Cost::Profile`], their gradients are also summed
    /// over the GPUs.
    pub parameters: f64,
    /// Bytes of activations by ascending local batch, interpolated as in [`Cost::Profile`]; empty means none.
    pub activation_bytes: Vec<(u64, f64)>,
}

/// An input of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Index of the layer that is read, from 0.
    pub layer: usize,
    /// Transfer time in microseconds by (GPUs of the input, GPUs of the reader). Every possible change of the
    /// count must be present. A missing entry for an unchanged count costs 0. `None`: computed from the
    /// outputs of the layer that is read.
    pub edge_us: Option<BTreeMap<(usize, usize), f64>>,
}

/// Cost of a layer, forward and backward.
#[derive(Debug, Clone, PartialEq)]
pub enum Cost {
    /// Compute and gradient sum together, in microseconds, by GPU count, on GPUs of speed 1. Other counts are
    /// not possible. On n GPUs with a sum of speeds S, the whole time is scaled by n / S, because the table
    /// does not separate the gradient sum.
    Table(BTreeMap<usize, f64>),
    /// Compute without gradient sum, in microseconds by ascending local batch, on a GPU of speed 1. Times are
    /// interpolated linearly between points. Above the last point, the last segment is extended; a single
    /// point is extended from the origin. Below the first point, the time is constant.
    Profile(Vec<(u64, f64)>),
}

/// Limit on the GPU time of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// Maximum of `layer time * GPUs / (compute and gradient sum on one GPU)`; at least 1. The comparison has
    /// a relative tolerance of 1e-9, because ratios of decimal numbers are not exact in binary.
    pub amplification: f64,
    /// Layers that take less than this on one GPU are exempt from the limit, in microseconds.
    pub exempt_below_us: f64,
}

/// Memory cap of a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// Cap in bytes; all layers that a GPU runs are in memory at once.
    pub bytes_per_gpu: u64,
    /// Bytes of weight, gradient and optimizer state per parameter: 8 for SGD, 12 with momentum, 16 for Adam,
    /// in float32.
    pub bytes_per_parameter: f64,
}

/// The network between the GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// Bandwidth of one GPU in each direction; positive.
    pub bandwidth_bytes_per_s: f64,
    /// Latency of one message, in microseconds.
    pub latency_us: f64,
    /// All-reduce algorithm for gradients.
    pub all_reduce: AllReduce,
}

impl Layer {
    /// Returns a layer of a chain with an explicit table; `previous` is the previous layer with its edge
    /// costs.
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
    /// Returns a problem with `gpus` equal GPUs, powers of two as counts, and no limit, cap or network.
    pub fn new(layers: Vec<Layer>, gpus: usize, global_batch: u64) -> Self {
        let speeds = vec![1.0; gpus.min(GPUS_MAX + 1)];
        Self { layers, global_batch, speeds, counts: None, limit: None, memory: None, network: None }
    }

    /// Returns the allowed GPU counts in ascending order, without duplicates.
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
