//! Imposed loads: laws of competing loads, real loads on a core, and imposed speeds.
//!
//! - [`Load`], [`Timeline`]: a law for the number of busy threads over time
//! - [`contend`]: a real load on a core that follows such a law
//! - [`ImposedPace`]: a wait after real gradients, to simulate a slower or loaded machine

mod clock;
pub mod contend;
mod law;
mod pace;

pub use clock::{clock_s, clock_seconds};
pub use law::{Load, LoadKind, Regime, THREADS_MAX, Timeline, WindowLoad};
pub use pace::ImposedPace;
