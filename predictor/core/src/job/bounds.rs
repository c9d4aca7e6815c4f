//! The floor and the caps of a worker: set by the job, the worker or an operator, or learned from its memory.

use evenstep_protocol::{CapReason, WorkerId, WorkerOverride};

use super::configured::{Configured, largest_size};
use super::state::JobState;

/// Bounds of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Minimum number of samples.
    pub floor: u64,
    /// Maximum number of samples in the local batch.
    pub cap: Option<u64>,
    /// Maximum number of samples, including those that it claims from a tail.
    pub max_total_batch: Option<u64>,
    /// Maximum number of samples that fit into memory at once, if it does not accumulate. No chunk may be
    /// larger.
    pub at_once: Option<u64>,
    /// Maximum number of samples per forward and backward pass, if the job allows accumulation.
    pub micro_batch: Option<u64>,
    /// The tightest cap, and its origin.
    pub tightest: Option<(u64, CapReason)>,
}

impl JobState {
    /// Returns the bounds of a worker in a full iteration.
    pub fn bounds(&self, id: &WorkerId) -> Bounds {
        let spec = &self.spec;
        let Some(worker) = self.workers.get(id) else {
            let cap = spec.max_local_batch;
            return Bounds {
                floor: 0,
                cap,
                max_total_batch: cap,
                at_once: None,
                micro_batch: None,
                tightest: None,
            };
        };
        let none = WorkerOverride::default();
        let operator = worker.operator_override.as_ref().unwrap_or(&none);
        let configured = [
            (spec.max_local_batch, CapReason::Job),
            (worker.request.max_local_batch, CapReason::Worker),
            (operator.max_local_batch, CapReason::Operator),
        ];
        let learned = [
            (worker.oom_cap, CapReason::OutOfMemory),
            (self.peak_cap(id, worker.request.memory_bytes), CapReason::PeakMemory),
        ];
        let tightest = |caps: &[(Option<u64>, CapReason)]| {
            caps.iter().filter_map(|(cap, because)| Some(((*cap)?, *because))).min_by_key(|(cap, _)| *cap)
        };
        let fits = tightest(&learned);
        let Configured { floor, cap } = Configured::new(spec, Some(&worker.request), Some(operator));
        let mut bounds = Bounds {
            floor: floor.samples,
            cap: cap.map(|cap| cap.samples),
            max_total_batch: cap.map(|cap| cap.samples),
            at_once: None,
            micro_batch: None,
            tightest: [tightest(&configured), fits].into_iter().flatten().min_by_key(|(cap, _)| *cap),
        };
        if spec.accumulation {
            bounds.micro_batch = bounds.tightest.map(|(cap, _)| cap);
        } else if let Some((most, _)) = fits {
            // A batch that does not fit into memory cannot run, so a learned cap takes precedence over every
            // floor. A worker whose memory holds no allowed size computes nothing.
            let most_whole = largest_size(spec, most).unwrap_or(0);
            bounds.at_once = Some(most);
            bounds.floor = bounds.floor.min(most_whole);
            bounds.cap = Some(bounds.cap.map_or(most_whole, |cap| cap.min(most_whole)));
        }
        bounds
    }

    fn peak_cap(&self, id: &WorkerId, memory_bytes: Option<u64>) -> Option<u64> {
        self.current_models().worker(id)?.memory.cap(memory_bytes?)
    }
}
