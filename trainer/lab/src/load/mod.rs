//! Loads on purpose: laws of competing loads, real ones on a core, and imposed speeds.
//!
//! - [`Load`], [`Timeline`]: a law of busy threads over time
//! - [`contend`]: a real load by such a law
//! - [`ImposedPace`]: real gradients, then a wait, as on a slower or a loaded machine

mod clock;
pub mod contend;
mod law;
mod pace;

pub use clock::{clock_s, clock_seconds};
pub use law::{Load, LoadKind, Regime, Seen, THREADS_MAX, Timeline};
pub use pace::ImposedPace;
