//! Changes of a worker that would stop a job: its iterations can be planned before them, and not after them.
//!
//! A join or an override can leave the live workers no way to share the global batch. If the job is running, such a change
//! is rejected, and the job continues. Before the first allocation, while the workers of a run join one after the other,
//! later workers can mend most of this, so only floors that exceed a fixed global batch are rejected. Departures, a lack of
//! memory, new job options and the removal of an override are not rejected: [`JobState::decide`] then names the rule.

use std::fmt;

use evenstep_protocol::{JobSpec, JoinRequest, WorkerId, WorkerOverride};

use super::bounds::{Bounds, least};
use super::configured::{Setting, quantum};
use super::decide::even_of;
use super::state::{JobState, WorkerState, global_batch};
use crate::allocate::Infeasible;
use crate::plan::Unplannable;

/// A change after which no iteration could be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no iteration could be planned any more: {source}{}", .binding.as_ref().map_or_else(String::new, |binding| format!("; {binding}")))]
pub struct Stops {
    /// The reason why not.
    pub source: Unplannable,
    /// The bound to change first.
    pub binding: Option<Binding>,
}

/// The bound that contributes most to a sum of bounds that does not fit the global batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The worker.
    pub worker: WorkerId,
    /// The bound, and what set it.
    pub setting: Setting,
    /// Whether it is a floor; otherwise it is a cap.
    pub is_floor: bool,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_floor { "largest floor" } else { "smallest cap" };
        let Setting { samples, name } = self.setting;
        write!(f, "the {what} is {samples} of worker {} ({name})", self.worker)
    }
}

impl JobState {
    /// Checks that a worker that joins with this request does not stop the job.
    ///
    /// # Errors
    /// [`Stops`] with the rule that would be broken.
    pub fn admit(&self, request: &JoinRequest) -> Result<(), Stops> {
        let id = &request.worker;
        let operator = self.workers.get(id).and_then(|known| known.operator_override.as_ref());
        let own = self.bounds_of(request, operator);
        let is_harmless = match self.members.is_live(id) {
            true => own == self.bounds(id),
            false => can_take_own_part(&self.spec, &own),
        };
        if is_harmless { Ok(()) } else { self.check_change(id, own) }
    }

    /// Checks that the override of a worker does not stop the job.
    ///
    /// # Errors
    /// [`Stops`] with the rule that would be broken.
    pub fn admit_override(&self, id: &WorkerId, wanted: &WorkerOverride) -> Result<(), Stops> {
        let Some(known) = self.workers.get(id).filter(|_| self.members.is_live(id)) else { return Ok(()) };
        self.check_change(id, self.bounds_of(&known.request, Some(wanted)))
    }

    /// Returns the bound to change first if an iteration of the live workers is infeasible.
    pub fn binding(&self, infeasible: &Infeasible) -> Option<Binding> {
        let live: Vec<(&WorkerId, Bounds)> = self.members.live().map(|id| (id, self.bounds(id))).collect();
        binding(&live, infeasible)
    }

    /// Checks a change of the bounds of one worker, which may be a new one.
    fn check_change(&self, changed: &WorkerId, own: Bounds) -> Result<(), Stops> {
        let before: Vec<(&WorkerId, Bounds)> = self.live_bounds();
        let mut after = before.clone();
        match after.iter_mut().find(|(id, _)| *id == changed) {
            Some(known) => known.1 = own,
            None => after.push((changed, own)),
        }
        let exceeds = |workers: &[(&WorkerId, Bounds)]| exceeds(&self.spec, workers);
        let is_too_much = exceeds(&after) && !exceeds(&before);
        if !is_too_much && !self.is_running() {
            return Ok(());
        }
        let even = |workers: &[(&WorkerId, Bounds)]| {
            let bounds = workers.iter().map(|(_, bounds)| *bounds).collect();
            even_of(&self.spec, bounds, global_batch(&self.spec, workers.len() as u64))
        };
        match even(&after) {
            Err(source) if is_too_much || even(&before).is_ok() => {
                let binding = match &source {
                    Unplannable::Infeasible(infeasible) => binding(&after, infeasible),
                    Unplannable::Sizes(_) => None,
                };
                Err(Stops { source, binding })
            }
            _ => Ok(()),
        }
    }

    fn live_bounds(&self) -> Vec<(&WorkerId, Bounds)> {
        self.members.live().map(|id| (id, self.bounds(id))).collect()
    }

    /// Whether an iteration of a worker that is still live was planned.
    fn is_running(&self) -> bool {
        let Some(last) = &self.last_allocation else { return false };
        let takes_part =
            |known: &WorkerState| known.latest_join().is_none_or(|joined| joined <= last.generation);
        self.members.live().filter_map(|id| self.workers.get(id)).any(takes_part)
    }
}

/// Whether the others can continue as before when a worker with these bounds joins: it can do the samples by which the
/// global batch grows, which are none if that is fixed.
fn can_take_own_part(spec: &JobSpec, own: &Bounds) -> bool {
    let part = spec.per_worker_batch.unwrap_or(0);
    let is_size = spec.allowed_sizes.is_empty() || spec.allowed_sizes.contains(&part);
    let is_idle = part == 0 && own.cap == Some(0);
    (is_size || is_idle) && own.required <= part && own.cap.is_none_or(|cap| part <= cap)
}

/// Whether the smallest local batches that these workers may have exceed a fixed global batch. More workers cannot mend
/// that.
fn exceeds(spec: &JobSpec, workers: &[(&WorkerId, Bounds)]) -> bool {
    let smallest = |(_, bounds): &(&WorkerId, Bounds)| match spec.allowed_sizes.is_empty() {
        _ if bounds.cap == Some(0) => 0,
        true => bounds.required,
        false => spec.allowed_sizes.iter().copied().find(|size| *size >= bounds.required).unwrap_or(0),
    };
    spec.per_worker_batch.is_none() && least(workers.iter().map(smallest), quantum(spec)) > spec.global_batch
}

fn binding(workers: &[(&WorkerId, Bounds)], infeasible: &Infeasible) -> Option<Binding> {
    let is_floor = infeasible.floors > infeasible.total;
    let (worker, setting) = if is_floor {
        let floors = workers.iter().filter_map(|(id, bounds)| Some((*id, bounds.required_by?)));
        floors.max_by_key(|(_, floor)| floor.samples)?
    } else {
        let caps = workers.iter().filter_map(|(id, bounds)| Some((*id, bounds.cap_by?)));
        caps.min_by_key(|(_, cap)| cap.samples)?
    };
    Some(Binding { worker: worker.clone(), setting, is_floor })
}
