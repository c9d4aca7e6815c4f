//! Records the times of the phases of an iteration, by layer.

use anyhow::Result;
use evenstep_rules::gate::Kind;
use evenstep_trainer::model::wait;
use tch::Device;

use crate::background::Observer;
use crate::load::clock_s;

/// The phases of a layer on a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Reading the samples.
    Load,
    /// Moving activations to the layer's ranks.
    Arrive,
    /// Forward.
    Forward,
    /// Backward; for the last layer including the loss.
    Backward,
    /// Summing gradients over the layer's ranks.
    Sum,
    /// Updating the parameters.
    Step,
    /// Moving the gradients of the inputs back.
    Return,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 7] =
        [Self::Load, Self::Arrive, Self::Forward, Self::Backward, Self::Sum, Self::Step, Self::Return];
}

/// The time of one phase, in seconds on the monotonic clock, which all processes of the machine share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PhaseInterval {
    /// The layer, from 0.
    pub layer: usize,
    /// The phase.
    pub phase: Phase,
    /// Start time.
    pub from_s: f64,
    /// End time, after the device has finished.
    pub to_s: f64,
}

/// Records the times of one rank in one iteration, and reports its tasklets to an observer.
pub struct Watch<'a> {
    device: Device,
    observer: &'a mut dyn Observer,
    last_s: f64,
    intervals: Vec<PhaseInterval>,
}

impl<'a> Watch<'a> {
    /// Starts the recording at the start of an iteration.
    ///
    /// # Errors
    /// Fails if earlier work on the device failed.
    pub fn begin(device: Device, observer: &'a mut dyn Observer) -> Result<Self> {
        wait(device)?;
        observer.iteration_begins();
        Ok(Self { device, observer, last_s: clock_s(), intervals: Vec::new() })
    }

    /// Reports that a tasklet of this kind begins.
    pub fn begins(&mut self, kind: Kind) {
        self.observer.begins(kind);
    }

    /// Records the phase that ran since the previous call, and ends the tasklet. Waits until a GPU has done
    /// the phase, but not for background work on another stream.
    ///
    /// # Errors
    /// Fails if the phase failed on the device.
    pub fn did(&mut self, layer: usize, phase: Phase) -> Result<()> {
        wait(self.device)?;
        let from_s = std::mem::replace(&mut self.last_s, clock_s());
        self.observer.ends();
        self.intervals.push(PhaseInterval { layer, phase, from_s, to_s: self.last_s });
        Ok(())
    }

    /// Returns the phases in order. Each begins when the previous one ended.
    pub fn end(self) -> Vec<PhaseInterval> {
        self.intervals
    }
}
