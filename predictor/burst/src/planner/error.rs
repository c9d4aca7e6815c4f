//! Errors of the planner.

use super::problem::{
    BYTES_MAX, COUNTS_MAX, EDGES_MAX, GPUS_MAX, INPUTS_MAX, LAYERS_MAX, US_MAX, VALUES_MAX,
};

/// An invalid or infeasible problem. `layer` is the name of a layer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BurstError {
    /// The number of layers is 0 or too large.
    #[error("{0} layers: the number must be 1 to {LAYERS_MAX}")]
    Layers(usize),
    /// The number of GPUs is 0 or too large.
    #[error("{0} GPUs: the number must be 1 to {GPUS_MAX}")]
    Gpus(usize),
    /// The speed of a GPU is not positive and finite.
    #[error("GPU {gpu}: relative speed {speed} must be positive and finite")]
    Speed {
        /// Index into the list of speeds.
        gpu: usize,
        /// The given speed.
        speed: f64,
    },
    /// The number of allowed GPU counts is 0 or too large.
    #[error("{0} allowed GPU counts: the number must be 1 to {COUNTS_MAX}")]
    Counts(usize),
    /// An allowed count is 0 or exceeds the number of GPUs.
    #[error("allowed GPU count {count} must be 1 to {gpus}, the number of GPUs")]
    Count {
        /// The given count.
        count: usize,
        /// Number of GPUs.
        gpus: usize,
    },
    /// The global batch is 0.
    #[error("global batch is 0; it must be at least 1")]
    GlobalBatch,
    /// The amplification limit is below 1 or not finite.
    #[error("amplification limit {0} must be finite and at least 1")]
    Limit(f64),
    /// A number of the problem violates its rule.
    #[error("{what} {value} must be finite and {rule}")]
    Value {
        /// Name of the number.
        what: &'static str,
        /// The given value.
        value: f64,
        /// The rule, besides being finite.
        rule: &'static str,
    },
    /// A time, size or number of values of a layer is out of range.
    #[error(
        "layer {layer}: {what} {value} is out of range: times must be 0 to {US_MAX:e} us, sizes 0 to {BYTES_MAX:e} bytes, \
         values and parameters 0 to {VALUES_MAX:e}"
    )]
    Measured {
        /// The layer.
        layer: String,
        /// Name of the number.
        what: &'static str,
        /// The given value.
        value: f64,
    },
    /// Points by local batch are missing or not in ascending order.
    #[error("layer {layer}: {what} needs at least one point, with ascending local batches from 1")]
    Points {
        /// The layer.
        layer: String,
        /// Name of the points.
        what: &'static str,
    },
    /// A layer reads itself or a later layer. Inputs must come before their readers, so there are no cycles.
    #[error("layer {layer} reads layer number {from}, which does not come before it")]
    Input {
        /// The reader.
        layer: String,
        /// Index of the layer that it reads, from 0.
        from: usize,
    },
    /// A layer has too many inputs.
    #[error("layer {layer} reads {inputs} layers, the maximum is {INPUTS_MAX}")]
    Inputs {
        /// The reader.
        layer: String,
        /// Number of inputs.
        inputs: usize,
    },
    /// The problem has too many edges.
    #[error("{0} edges between layers, the maximum is {EDGES_MAX}")]
    Edges(usize),
    /// An explicit edge table lacks a possible change of the GPU count.
    #[error("layer {layer}: edge from {input} has no cost for {from}->{to}; add it to edge_us")]
    MissingEdge {
        /// The reader.
        layer: String,
        /// The layer that it reads.
        input: String,
        /// GPUs of the input.
        from: usize,
        /// GPUs of the reader.
        to: usize,
    },
    /// An edge has neither explicit costs nor the outputs to compute them from.
    #[error("layer {layer}: edge from {input} has no cost; give edge_us, or outputs of {input}")]
    MissingOutputs {
        /// The reader.
        layer: String,
        /// The layer that it reads.
        input: String,
    },
    /// A transfer or gradient sum must be computed, but the problem has no network.
    #[error(
        "layer {layer}: transfers and gradient sums need the network: --bandwidth and --latency-us, or \"network\" in the profile"
    )]
    MissingNetwork {
        /// The layer.
        layer: String,
    },
    /// A layer has no cost on one GPU, so its amplification is undefined.
    #[error("layer {layer} has no cost on 1 GPU, which the amplification limit requires")]
    MissingOneGpu {
        /// The layer.
        layer: String,
    },
    /// The graph is not series-parallel.
    #[error(
        "layer {layer} belongs to crossing branches; the graph must be series-parallel (chains and blocks of branches)"
    )]
    NotSeriesParallel {
        /// The first of these layers.
        layer: String,
    },
    /// No plan satisfies all limits.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
}

/// The limits that no plan satisfies.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Infeasible {
    /// A layer has no possible GPU count.
    #[error(
        "layer {layer} can run on none of the allowed GPU counts {allowed:?}: its costs cover the counts {known:?}, and a \
         profiled layer cannot use more GPUs than the global batch of {global_batch} samples"
    )]
    NoCount {
        /// The layer.
        layer: String,
        /// The allowed counts.
        allowed: Vec<usize>,
        /// The counts in its table; all counts if its costs come from a profile.
        known: Vec<usize>,
        /// The global batch; a profiled layer cannot run on more GPUs than this.
        global_batch: u64,
    },
    /// A layer exceeds the amplification limit at every GPU count, whatever the counts of the layers before
    /// it.
    #[error(
        "layer {layer} exceeds the amplification limit of {limit} at every possible GPU count: its amplification is at least \
         {least:.3} before transfers; raise the limit or allow a count of 1"
    )]
    Limit {
        /// The first layer at which no plan is left.
        layer: String,
        /// The limit.
        limit: f64,
        /// Its smallest amplification over the allowed counts, without transfers.
        least: f64,
    },
    /// The layers exceed the memory cap of the fastest GPU, which runs all of them.
    #[error(
        "the layers need at least {needed_bytes} bytes on the fastest GPU, the cap is {cap_bytes}; layer {layer} needs the \
         most, {layer_bytes}"
    )]
    Memory {
        /// Minimum memory of all layers on the fastest GPU.
        needed_bytes: u64,
        /// The cap.
        cap_bytes: u64,
        /// The layer that needs the most.
        layer: String,
        /// Minimum memory of that layer.
        layer_bytes: u64,
    },
    /// Plans satisfy either limit, but none satisfies both.
    #[error(
        "no plan satisfies both the amplification limit of {limit} and the memory cap of {cap_bytes} bytes; raise one of them"
    )]
    LimitAndMemory {
        /// The limit.
        limit: f64,
        /// The cap.
        cap_bytes: u64,
    },
    /// The search found no plan, but had to drop candidates.
    #[error(
        "found no plan within the memory cap of {cap_bytes} bytes, but one may exist: the search had to drop candidates; \
         raise the cap"
    )]
    Undecided {
        /// The cap.
        cap_bytes: u64,
    },
}
