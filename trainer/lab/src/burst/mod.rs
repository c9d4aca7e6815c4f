//! Runs burst-parallel plans, in which each layer of the network has its own number of ranks.
//!
//! A layer on n ranks runs on ranks 0..n, so groups are prefixes and rank 0 runs all layers. An iteration has
//! these phases:
//!
//! 1. Forward, layer by layer. If the shares of the samples change, activations move between ranks
//!    (`crossing`).
//! 2. Backward, layer by layer from the last one. The gradients of activations move back in reverse. The
//!    ranks of a layer sum its gradient and update its parameters.
//!
//! Nothing overlaps, as the plan assumes: the time of an iteration is the sum of the times of its layers.
//!
//! - `plan`: the plan, and the checks that it fits the model and the ranks
//! - `crossing`: the samples that move between ranks; `exchange` moves them
//! - `stage`: a layer on a rank that runs it; `executor`: a whole iteration
//! - `watch`: the times of the phases; `measured`: durations by layer; `timeline`: the times of all ranks
//! - `course`: the training loop; `run`: the command; `result` and `page`: the results

mod exchange;
mod executor;
pub(crate) mod measured;
mod page;
mod plan;
mod redistribution;
mod result;
mod run;
mod stage;
mod timeline;
pub(crate) mod training_loop;
mod watch;

pub(crate) use exchange::{cross, sum};
pub use executor::{Executor, Iteration};
pub use measured::LayerTimes;
pub use plan::{BurstPlan, GPUS_MAX, PlannedLayer};
pub use redistribution::{Layout, Move, Redistribution};
pub use run::{BurstArgs, run};
pub use watch::{Phase, PhaseInterval};
