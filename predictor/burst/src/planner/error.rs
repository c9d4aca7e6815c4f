//! Why there is no plan.

use super::problem::{
    BYTES_MAX, COUNTS_MAX, EDGES_MAX, GPUS_MAX, INPUTS_MAX, LAYERS_MAX, US_MAX, VALUES_MAX,
};

/// A problem that says something impossible, or that no plan solves. `layer` is a layer's name.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BurstError {
    /// None, or too many.
    #[error("{0} layers: a plan takes 1 to {LAYERS_MAX}")]
    Layers(usize),
    /// None, or too many.
    #[error("{0} GPUs: a plan takes 1 to {GPUS_MAX}")]
    Gpus(usize),
    /// No speed of a GPU.
    #[error("GPU {gpu} has the relative speed {speed}: it must be positive and finite")]
    Speed {
        /// Its place in the list of speeds.
        gpu: usize,
        /// What was given.
        speed: f64,
    },
    /// None, or too many.
    #[error("{0} allowed GPU counts: a plan takes 1 to {COUNTS_MAX}")]
    Counts(usize),
    /// More GPUs than there are, or none.
    #[error("{count} is no GPU count that can be allowed: there are 1 to {gpus} GPUs")]
    Count {
        /// What was given.
        count: usize,
        /// How many GPUs there are.
        gpus: usize,
    },
    /// Nothing to train on.
    #[error("a global batch of 0 samples: it must be at least 1")]
    GlobalBatch,
    /// No amplification limit.
    #[error("an amplification limit of {0}: it must be finite and at least 1")]
    Limit(f64),
    /// A number of the problem itself.
    #[error("{what} is {value}: it must be finite and {rule}")]
    Value {
        /// Which number.
        what: &'static str,
        /// What was given.
        value: f64,
        /// What else it must be.
        rule: &'static str,
    },
    /// A time, a size or a number of values that a layer cannot have.
    #[error(
        "layer {layer}: {what} is {value}: times are 0 to {US_MAX:e} us, sizes 0 to {BYTES_MAX:e} bytes, values and \
         parameters 0 to {VALUES_MAX:e}"
    )]
    Measured {
        /// Whose.
        layer: String,
        /// Which number.
        what: &'static str,
        /// What was given.
        value: f64,
    },
    /// Points by local batch that no line can be drawn through.
    #[error("layer {layer}: {what} needs at least one point, and its local batches rising from 1")]
    Points {
        /// Whose.
        layer: String,
        /// Which points.
        what: &'static str,
    },
    /// A layer that reads what is not there yet: inputs come before their readers, so there are no cycles.
    #[error("layer {layer} reads layer number {from}, which does not come before it")]
    Input {
        /// The reader.
        layer: String,
        /// What it reads: a place in the list of layers, from 0.
        from: usize,
    },
    /// Too many inputs.
    #[error("layer {layer} reads {inputs} layers: {INPUTS_MAX} is the most")]
    Inputs {
        /// The reader.
        layer: String,
        /// How many.
        inputs: usize,
    },
    /// Too many edges.
    #[error("{0} edges between layers: {EDGES_MAX} is the most")]
    Edges(usize),
    /// A change of the GPU count that an explicit table leaves out.
    #[error("layer {layer}: its edge from {input} has no cost for {from}->{to}")]
    MissingEdge {
        /// The reader.
        layer: String,
        /// What it reads.
        input: String,
        /// GPUs of the input.
        from: usize,
        /// GPUs of the reader.
        to: usize,
    },
    /// Neither an explicit edge nor what it could be made from.
    #[error("layer {layer}: its edge from {input} has no costs, and {input} does not say its outputs")]
    MissingOutputs {
        /// The reader.
        layer: String,
        /// What it reads.
        input: String,
    },
    /// A cost that must be made from a network that is not described.
    #[error("layer {layer}: its transfers and gradients need a network: bandwidth and latency")]
    MissingNetwork {
        /// Whose.
        layer: String,
    },
    /// Nothing to compare with.
    #[error("layer {layer} has no cost on 1 GPU, which its amplification is measured against")]
    MissingOneGpu {
        /// Whose.
        layer: String,
    },
    /// Branches that cross.
    #[error(
        "layer {layer} is part of branches that cross: only chains and blocks of branches (series-parallel) have a plan"
    )]
    NotSeriesParallel {
        /// The first of them.
        layer: String,
    },
    /// No plan keeps all rules.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
}

/// Which rule leaves no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Infeasible {
    /// One layer has no GPU count at all.
    #[error(
        "layer {layer} can run on none of the allowed GPU counts {allowed:?}: its costs name {known:?}, and {global_batch} \
         samples are shared"
    )]
    NoCount {
        /// Which layer.
        layer: String,
        /// The allowed counts.
        allowed: Vec<usize>,
        /// The counts of its table; all, where its costs are made from a profile.
        known: Vec<usize>,
        /// A profiled layer runs on no more GPUs than there are samples.
        global_batch: u64,
    },
    /// One layer breaks the limit however it runs, and those before it.
    #[error(
        "layer {layer} breaks the amplification limit of {limit} at every GPU count that it could have here: its amplification is \
         {least:.3} at least, and transfers into it come on top"
    )]
    Limit {
        /// Which layer: the first at which no plan is left.
        layer: String,
        /// The limit.
        limit: f64,
        /// Its smallest amplification over the allowed counts, without transfers.
        least: f64,
    },
    /// The GPU that takes part in all layers cannot hold them.
    #[error(
        "the layers need {needed_bytes} bytes on one GPU at the least, {cap_bytes} are allowed; layer {layer} needs the most, \
         {layer_bytes}"
    )]
    Memory {
        /// The least that all layers need on the fastest GPU.
        needed_bytes: u64,
        /// The cap.
        cap_bytes: u64,
        /// Which layer needs the most.
        layer: String,
        /// That much.
        layer_bytes: u64,
    },
    /// Each rule can be kept, both together cannot.
    #[error("no plan keeps both the amplification limit of {limit} and the memory cap of {cap_bytes} bytes")]
    LimitAndMemory {
        /// The limit.
        limit: f64,
        /// The cap.
        cap_bytes: u64,
    },
    /// No plan was found among the choices that were kept.
    #[error(
        "no plan within the memory cap of {cap_bytes} bytes was found, though there may be one: more choices than are kept"
    )]
    Undecided {
        /// The cap.
        cap_bytes: u64,
    },
}
