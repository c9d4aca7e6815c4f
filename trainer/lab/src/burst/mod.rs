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
//! - `watch`: when what happened; `measured` what of it took how long, `timeline` what all ranks did when
//! - `course`: iterations one after another; `run`: the command; `result` and `page` tell what came of it

pub(crate) mod course;
mod crossing;
mod exchange;
mod executor;
pub(crate) mod measured;
mod page;
mod plan;
mod result;
mod run;
mod stage;
mod timeline;
mod watch;

pub use crossing::{Crossing, Layout, Move};
pub(crate) use exchange::{cross, sum};
pub use executor::{Executor, Iteration};
pub use measured::LayerTimes;
pub use plan::{GPUS_MAX, Plan, PlannedLayer};
pub use run::{BurstArgs, run};
pub use watch::{Moment, Phase};
