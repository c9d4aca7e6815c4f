//! Sources of readings. A reader computes differences of counters over the window since its own last reading,
//! so each user of a source has its own reader.

mod counter;
mod procfs;
#[cfg(feature = "daemon")]
pub(crate) mod readers;
#[cfg(feature = "daemon")]
pub mod thread;

#[cfg(feature = "daemon")]
pub mod demo;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod host;
pub mod memory;
pub mod process;

pub(crate) use counter::Lookback;
pub use counter::TICK_LOOKBACK;
