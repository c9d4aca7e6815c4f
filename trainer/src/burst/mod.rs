//! Running burst-parallel plans: each layer of the network on just as many ranks as the plan gives it.
//!
//! A layer on n ranks runs on ranks 0..n, so groups are prefixes and rank 0 has all layers. An iteration goes forward layer by
//! layer; where the shares of the samples change, activations move between ranks (`crossing`), and their gradients move back the
//! same way. Then, layer by layer from the last one, its ranks sum its gradient and step its parameters. Nothing overlaps, as in
//! the plan's own arithmetic: an iteration takes what its layers take together.
//!
//! - `plan`: what was planned, and whether it is for this model and these ranks
//! - `crossing`: which samples move between which ranks; `exchange` moves them
//! - `stage`: a layer where it runs; `executor`: one iteration, whole
//! - `watch`: when what happened

mod crossing;
mod exchange;
mod executor;
mod plan;
mod stage;
mod watch;

pub use crossing::{Crossing, Layout, Move};
pub use executor::{Executor, Iteration};
pub use plan::{GPUS_MAX, Plan, PlannedLayer};
pub use watch::{Moment, Phase, Watch};
