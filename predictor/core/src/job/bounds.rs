//! The floor and the caps of a worker: set by the job, the worker or an operator, or learned from its memory.

use evenstep_protocol::{CapReason, JoinRequest, WorkerId, WorkerOverride};

use super::configured::{Configured, Setting, largest_size};
use super::state::{JobState, WorkerState};
use super::worker::WorkerModel;
use crate::memory::MemoryModel;

/// Bounds of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Minimum number of samples.
    pub floor: u64,
    /// The part of the floor that the job, the worker or an operator set; 0 if the floor is the default.
    pub required: u64,
    /// The setting that this part comes from.
    pub required_by: Option<Setting>,
    /// The setting that the cap comes from.
    pub cap_by: Option<Setting>,
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
        let worker = self.workers.get(id);
        let has_memory = worker.is_some_and(|worker| worker.request.memory_bytes.is_some());
        self.bounds_by(worker, has_memory.then(|| self.current_models().worker(id)).flatten())
    }

    /// Returns the bounds of a worker with this state and these models.
    pub(super) fn bounds_by(&self, worker: Option<&WorkerState>, model: Option<&WorkerModel>) -> Bounds {
        if let Some(worker) = worker {
            let operator = worker.operator_override.as_ref();
            return self.bounds_with(Some(worker), model, &worker.request, operator);
        }
        let cap = self.spec.max_local_batch;
        Bounds {
            floor: 0,
            required: 0,
            required_by: None,
            cap_by: None,
            cap,
            max_total_batch: cap,
            at_once: None,
            micro_batch: None,
            tightest: None,
        }
    }

    /// Returns the bounds that a worker would have with this request and this override.
    pub(super) fn bounds_of(&self, request: &JoinRequest, operator: Option<&WorkerOverride>) -> Bounds {
        let model = self.current_models().worker(&request.worker);
        self.bounds_with(self.workers.get(&request.worker), model, request, operator)
    }

    fn bounds_with(
        &self,
        known: Option<&WorkerState>,
        model: Option<&WorkerModel>,
        request: &JoinRequest,
        operator: Option<&WorkerOverride>,
    ) -> Bounds {
        let spec = &self.spec;
        let oom_cap = known.filter(|known| !known.changes_memory(request)).and_then(|known| known.oom_cap);
        let configured = [
            (spec.max_local_batch, CapReason::Job),
            (request.max_local_batch, CapReason::Worker),
            (operator.and_then(|operator| operator.max_local_batch), CapReason::Operator),
        ];
        let learned = [(oom_cap, CapReason::OutOfMemory), (peak_cap(model, request), CapReason::PeakMemory)];
        let tightest = |caps: &[(Option<u64>, CapReason)]| {
            caps.iter().filter_map(|(cap, because)| Some(((*cap)?, *because))).min_by_key(|(cap, _)| *cap)
        };
        let fits = tightest(&learned);
        let Configured { floor, required, cap } = Configured::new(spec, Some(request), operator);
        // A stored pin of an earlier version may be above the worker's cap.
        let most = cap.map_or(u64::MAX, |cap| largest_size(spec, cap.samples).unwrap_or(0));
        let mut bounds = Bounds {
            floor: floor.samples.min(most),
            required: required.map_or(0, |required| required.samples.min(most)),
            required_by: required,
            cap_by: cap,
            cap: cap.map(|cap| cap.samples),
            max_total_batch: cap.map(|cap| cap.samples),
            at_once: None,
            micro_batch: None,
            tightest: [tightest(&configured), fits].into_iter().flatten().min_by_key(|(cap, _)| *cap),
        };
        if spec.accumulation {
            bounds.micro_batch = bounds.tightest.map(|(cap, _)| cap);
        } else if let Some((most, because)) = fits {
            // A batch that does not fit into memory cannot run, so a learned cap takes precedence over every
            // floor. A worker whose memory holds no allowed size computes nothing.
            let most_whole = largest_size(spec, most).unwrap_or(0);
            bounds.at_once = Some(most);
            bounds.floor = bounds.floor.min(most_whole);
            bounds.required = bounds.required.min(most_whole);
            if bounds.cap.is_none_or(|cap| most_whole < cap) {
                let name = match because {
                    CapReason::OutOfMemory => "from its out-of-memory report",
                    _ => "from its peak memory",
                };
                bounds.cap_by = Some(Setting { samples: most_whole, name });
                bounds.cap = Some(most_whole);
            }
        }
        bounds
    }

    /// Returns the memory model of a worker that joined with this request; `None` if its peaks are of another device.
    pub fn memory(&self, request: &JoinRequest) -> Option<&MemoryModel> {
        memory(self.current_models().worker(&request.worker), request)
    }
}

fn memory<'a>(model: Option<&'a WorkerModel>, request: &JoinRequest) -> Option<&'a MemoryModel> {
    let is_other = model?.is_of_other_device(request.device.as_deref());
    model.filter(|_| !is_other).map(|known| &known.memory)
}

fn peak_cap(model: Option<&WorkerModel>, request: &JoinRequest) -> Option<u64> {
    let memory_bytes = request.memory_bytes?;
    memory(model, request)?.cap(memory_bytes)
}

/// Lowers the floors of all workers of an iteration if they add up to more than its samples. Defaults yield first. At the ragged end of an epoch, floors and pins that were set yield, too.
pub(super) fn fit_floors(bounds: &mut [Bounds], samples: u64, quantum: u64, is_ragged: bool) {
    if least(bounds.iter().map(|bounds| bounds.floor), quantum) > samples {
        bounds.iter_mut().for_each(|bounds| bounds.floor = bounds.required);
        if is_ragged && least(bounds.iter().map(|bounds| bounds.floor), quantum) > samples {
            bounds.iter_mut().for_each(|bounds| bounds.floor = 0);
        }
    }
}

/// Returns the sum of floors, each rounded up to a multiple of the quantum.
pub(super) fn least(floors: impl Iterator<Item = u64>, quantum: u64) -> u64 {
    floors.map(|floor| floor.div_ceil(quantum).saturating_mul(quantum)).fold(0, u64::saturating_add)
}
