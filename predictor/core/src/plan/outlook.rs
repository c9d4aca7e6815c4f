//! What is known of one worker when an iteration is planned.

use crate::allocate::{Communication, Share};
use crate::curve::Curve;
use crate::forecast::Forecast;

/// What is known of one worker when an iteration is planned.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerOutlook {
    /// What it is expected to do; `None` while it is unmeasured.
    pub measured: Option<Measured>,
    /// What it needs beside its compute.
    pub communication: Communication,
    /// It takes at least this many samples.
    pub floor: u64,
    /// It takes at most this many samples.
    pub cap: Option<u64>,
}

impl WorkerOutlook {
    /// The worker as a split sees it, within its own bounds; `None` while it is unmeasured.
    pub fn share(&self) -> Option<Share> {
        let Self { measured, communication, floor, cap } = self;
        let curve = measured.as_ref()?.curve.clone();
        Some(Share { curve, communication: *communication, floor: *floor, cap: *cap })
    }
}

/// What a worker is expected to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Its expected speed, in sample equivalents of its curve's reference batch.
    pub forecast: Forecast,
    /// Its expected time at any batch in this iteration.
    pub curve: Curve,
    /// The largest batch it was measured at.
    pub largest: u64,
}
