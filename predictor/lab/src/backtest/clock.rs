//! The clock of fits and forecasts.

/// A clock in seconds, for the times of fits and forecasts.
pub type Clock<'a> = &'a (dyn Fn() -> f64 + Sync);
