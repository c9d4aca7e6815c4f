//! Burst-parallel plans: each layer gets only the GPUs that it can use if the global batch cannot grow
//! (DeepPool, arXiv 2112.10065).
//!
//! ```text
//! layer time = transfers into it + compute + gradient sum           amplification = layer time * GPUs / (the same on one GPU)
//! iteration = sum over layers of their times                        GPU time = sum over layers of time * GPUs
//! transfer = 2 * (bytes / bandwidth + latency), 0 if nothing moves; bytes = 4 * outputs * the maximum number of samples that a GPU
//!            sends or receives; factor 2: activations forward, their gradients back
//! ```
//!
//! A layer on n GPUs runs on the n fastest. Samples that stay on a GPU are not moved, and all layers share
//! the fastest GPU. Therefore layers run one after another, **even those of parallel branches**. On the same
//! GPUs, running branches concurrently gains nothing. On disjoint GPUs, placement would be a scheduling
//! problem without an exact solution in this time. A layer with several inputs pays for all transfers, and
//! all of them count towards its amplification.
//!
//! [`plan()`] is exact: it minimizes the iteration time, then the GPU time, then the number of GPUs summed
//! over layers. Rules:
//! - No layer exceeds the amplification limit, except on one GPU or if it is short on one GPU.
//! - Samples are shared by speed, and shares are rounded up. A layer takes as long as the slowest of its
//!   GPUs.
//! - Under a memory cap, all layers are in memory at once. The cap therefore binds the fastest GPU, which has
//!   the largest share of every layer.
//!
//! Modules:
//! - `problem`, `error`, `check`: the problem, its errors and its validation
//! - `shares`, `costs`: the samples of each GPU; the costs of layers and transfers
//! - `label`, `bounds`, `ways`: candidates for a part of the graph, and the selection of those to keep
//! - `fold`: the dynamic program, which folds the graph to one edge
//! - `price`: the search under a binding memory cap
//! - `answer`: the plan, its timeline and its alternatives
//! - `solve`: the best plan
//! - [`front()`]: the trade-off over amplification limits

mod problem;

mod error;

mod check;

mod shares;

mod costs;

mod label;

mod bounds;

mod ways;

mod fold;

mod price;

mod answer;

mod solve;

mod front;

pub use answer::{Alternative, Planned, PlannedLayer};
pub use error::{BurstError, Infeasible};
pub use front::{Front, FrontPoint, front};
pub use problem::{
    AllReduce, BYTES_MAX, COUNTS_MAX, Cost, EDGES_MAX, GPUS_MAX, INPUTS_MAX, Input, LAYERS_MAX, Layer, Limit,
    Memory, Network, Problem, US_MAX, VALUES_MAX,
};
pub use solve::plan;

#[cfg(test)]
mod tests;
