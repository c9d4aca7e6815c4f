//! Readings of what slows a worker down: its machine, its process and its GPU. `agent/README.md` lists them.
//!
//! A reader computes differences of counters over the window since its own last reading, so each user of a source
//! has its own reader. A reading that is not available is missing with a reason, and never 0.

pub mod boundary;
mod cgroup;
mod counter;
mod cpu_times;
#[cfg(feature = "gpu")]
pub mod gpu;
mod gpu_id;
pub mod host;
pub mod memory;
pub mod process;
mod procfs;
pub mod reading;

pub use boundary::Boundary;
pub use counter::TICK_LOOKBACK;
pub use gpu_id::{GpuId, InvalidGpuId};
pub use reading::{MissingReason, Reading};
