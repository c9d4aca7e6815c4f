//! When what happened in an iteration, by layer.

use evenstep_core::gate::Kind;
use tch::{Cuda, Device};

use crate::background::Observer;
use crate::load::clock_s;

/// What a rank does for a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Samples are read.
    Load,
    /// Activations move to the layer's ranks.
    Arrive,
    /// Forward.
    Forward,
    /// Backward; of the last layer with the loss.
    Backward,
    /// Gradients are summed over the layer's ranks.
    Sum,
    /// Its parameters are stepped.
    Step,
    /// Gradients of its inputs move back.
    Return,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Load, Self::Arrive, Self::Forward, Self::Backward, Self::Sum, Self::Step, Self::Return];
}

/// A stretch of time, in seconds on the machine's monotonic clock, which all of its processes share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// The layer, from 0.
    pub layer: usize,
    /// What was done for it.
    pub phase: Phase,
    /// Its begin.
    pub from_s: f64,
    /// Its end, when the device was done with it.
    pub to_s: f64,
}

/// Watches one rank in one iteration, and tells whoever looks on.
pub struct Watch<'a> {
    device: Device,
    observer: &'a mut dyn Observer,
    last_s: f64,
    moments: Vec<Moment>,
}

impl<'a> Watch<'a> {
    /// The iteration begins.
    pub fn begin(device: Device, observer: &'a mut dyn Observer) -> Self {
        settle(device);
        observer.iteration_begins();
        Self { device, observer, last_s: clock_s(), moments: Vec::new() }
    }

    /// A tasklet of this kind begins.
    pub fn begins(&mut self, kind: Kind) {
        self.observer.begins(kind);
    }

    /// What happened since the last word was this, and a tasklet ends with it. Waits for a GPU to be done, as its work is only queued.
    pub fn did(&mut self, layer: usize, phase: Phase) {
        settle(self.device);
        let from_s = std::mem::replace(&mut self.last_s, clock_s());
        self.observer.ends();
        self.moments.push(Moment { layer, phase, from_s, to_s: self.last_s });
    }

    /// What happened, in order; each begins where the one before ended.
    pub fn end(self) -> Vec<Moment> {
        self.moments
    }
}

/// Waits until a GPU has done what was queued.
fn settle(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}
