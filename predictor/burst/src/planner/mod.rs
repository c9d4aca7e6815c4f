//! Burst-parallel plans: where the global batch cannot grow, each layer gets just the GPUs that it can use (DeepPool, arXiv 2112.10065).
//!
//! ```text
//! layer time = transfers into it + compute + gradient sum           amplification = layer time * GPUs / (the same on one GPU)
//! iteration = sum over layers of their times                        GPU time = sum over layers of time * GPUs
//! transfer = 2 * (bytes / bandwidth + latency), 0 where nothing moves: bytes = 4 * outputs * the most samples that a GPU sends or
//!            receives; there and back (activations, then their gradients)
//! ```
//!
//! A layer on n GPUs runs on the n fastest, so what stays in place is not moved, and all layers share the fastest GPU. Hence one
//! layer runs after another, **also those of branches beside each other**: on the same GPUs there is nothing to gain, and on
//! disjoint ones the placement would be a scheduling problem without an exact answer in this time. A layer that reads several others
//! pays for all transfers, and all of them count for its amplification.
//!
//! [`plan()`] is exact: the least iteration time; of plans alike the least GPU time, then the fewest GPUs (summed over layers). The
//! amplification limit is never broken: one GPU is always legal and layers that are short on one GPU are exempt, nothing else is. Samples
//! are shared by speed, parts rounded up; a layer takes as long as the last of its GPUs. Under a memory cap everything is held
//! at once, so it binds the fastest GPU, which has the most of every layer.
//!
//! - `problem`, `error`, `check`: what is asked, and what is wrong with it
//! - `shares`, `costs`: which GPU has which samples; what each layer and each change of GPUs costs
//! - `label`, `bounds`, `ways`: ways through a part of the graph, and which of them are kept
//! - `fold`: the dynamic program, which folds the graph to one edge
//! - `price`: the search under a memory cap that matters
//! - `answer`: the plan, its timeline and its alternatives
//! - `solve`: the best plan
//! - [`front()`]: what each limit buys

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

pub use answer::{Alternative, Plan, PlannedLayer};
pub use error::{BurstError, Infeasible};
pub use front::{Front, FrontPoint, front};
pub use problem::{
    AllReduce, BYTES_MAX, COUNTS_MAX, Cost, EDGES_MAX, GPUS_MAX, INPUTS_MAX, Input, LAYERS_MAX, Layer, Limit,
    Memory, Network, Problem, US_MAX, VALUES_MAX,
};
pub use solve::plan;

#[cfg(test)]
mod tests;
