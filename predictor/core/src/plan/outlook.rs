//! A worker as an input of a plan.

use crate::allocate::SplitWorker;
use crate::curve::Curve;
use crate::forecast::Forecast;

/// A worker as an input of a plan: its forecast and bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerOutlook {
    /// Forecast and curve of the worker; `None` while it is unmeasured.
    pub measured: Option<Measured>,
    /// Minimum batch in samples.
    pub floor: u64,
    /// Maximum batch in samples.
    pub cap: Option<u64>,
}

impl WorkerOutlook {
    /// Returns the worker as an input of a split, within its own bounds; `None` while it is unmeasured.
    pub fn share(&self) -> Option<SplitWorker> {
        let Self { measured, floor, cap } = self;
        let curve = measured.as_ref()?.curve.clone();
        Some(SplitWorker { curve, floor: *floor, cap: *cap })
    }
}

/// Forecast and curve of a measured worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Expected speed, in sample equivalents of the curve's reference batch per second.
    pub forecast: Forecast,
    /// Expected compute time in this iteration over batch size.
    pub curve: Curve,
    /// Largest batch at which the worker was measured.
    pub largest: u64,
}
