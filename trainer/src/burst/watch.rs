//! When what happened in an iteration, by layer.

use std::time::Instant;

use evenstep_core::gate::Kind;
use tch::{Cuda, Device};

use crate::background::Observer;

/// What a rank does for a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Samples are read.
    Load,
    /// Activations move to the layer's ranks.
    Arrive,
    /// Forward, that of the loss included.
    Forward,
    /// Backward, that of the loss included.
    Backward,
    /// Gradients are summed over the layer's ranks.
    Sum,
    /// Its parameters are stepped.
    Step,
    /// Gradients of its inputs move back.
    Return,
}

/// A stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The layer, from 0.
    pub layer: usize,
    /// What was done for it.
    pub phase: Phase,
    /// Its begin.
    pub from: Instant,
    /// Its end, when the device was done with it.
    pub to: Instant,
}

/// Watches one rank in one iteration, and tells whoever looks on.
pub struct Watch<'a> {
    device: Device,
    observer: &'a mut dyn Observer,
    last: Instant,
    /// What happened, in order; each begins where the one before ended.
    pub moments: Vec<Moment>,
}

impl<'a> Watch<'a> {
    /// The iteration begins.
    pub fn begin(device: Device, observer: &'a mut dyn Observer) -> Self {
        settle(device);
        observer.iteration_begins();
        Self { device, observer, last: Instant::now(), moments: Vec::new() }
    }

    /// A tasklet of this kind begins.
    pub fn begins(&mut self, kind: Kind) {
        self.observer.begins(kind);
    }

    /// What happened since the last word was this, and a tasklet ends with it. Waits for a GPU to be done, as its work is only queued.
    pub fn did(&mut self, layer: usize, phase: Phase) {
        settle(self.device);
        let to = Instant::now();
        let from = std::mem::replace(&mut self.last, to);
        self.observer.ends();
        self.moments.push(Moment { layer, phase, from, to });
    }
}

/// Waits until a GPU has done what was queued.
fn settle(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}
