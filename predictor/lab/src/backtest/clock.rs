//! Clock for the durations of fits and forecasts.

/// A clock in seconds, which measures the durations of fits and forecasts.
pub type Clock<'a> = &'a (dyn Fn() -> f64 + Sync);
