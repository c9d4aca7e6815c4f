//! The state of a job: its options, its members, their models, and the plan in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenstep_protocol::{AllocateAnswer, JobSpec, JoinRequest, WorkerId, WorkerOverride};

use super::models::Models;
use crate::forecast::Earlier;
use crate::learning_rate::Controller;
use crate::membership::{Member, Members};
use crate::plan::InForce;

/// The state of a job.
#[derive(Debug)]
pub struct JobState {
    /// The job options.
    pub spec: JobSpec,
    /// Iterations before this one are deleted, and never planned again.
    pub kept_from: u64,
    /// Who takes part.
    pub members: Members<WorkerId>,
    /// Every worker that ever joined.
    pub workers: BTreeMap<WorkerId, WorkerState>,
    /// What was learned from reports.
    pub models: Models,
    /// The first iteration that was not requested yet.
    pub next_iteration: u64,
    /// The newest allocation.
    pub last_answer: Option<Arc<AllocateAnswer>>,
    /// The learning-rate rule and its instructions.
    pub learning_rate: Controller,
    /// The plan in force and the workers, in rank order, it was made for.
    pub(super) in_force: Option<(Vec<WorkerId>, InForce)>,
}

/// What is known of a worker beside its models.
#[derive(Debug)]
pub struct WorkerState {
    /// How it joined.
    pub request: JoinRequest,
    /// The largest batch it gets at once since it ran out of memory.
    pub oom_cap: Option<u64>,
    /// Bounds that an operator has set.
    pub operator_override: Option<WorkerOverride>,
}

impl WorkerState {
    /// A worker that joined and has reported nothing.
    pub fn new(request: JoinRequest) -> Self {
        Self { request, oom_cap: None, operator_override: None }
    }
}

/// A job as it was stored.
#[derive(Debug)]
pub struct Restored {
    /// The job options.
    pub spec: JobSpec,
    /// Iterations before this one are deleted.
    pub kept_from: u64,
    /// The current generation.
    pub generation: u64,
    /// The generation of the latest departure.
    pub departed_generation: u64,
    /// Every worker that ever joined, in order of the latest joining.
    pub members: Vec<Member<WorkerId>>,
    /// The same workers with what is known of them.
    pub workers: BTreeMap<WorkerId, WorkerState>,
    /// Stored models, or new ones.
    pub models: Models,
    /// The learning-rate rule and its instructions.
    pub learning_rate: Controller,
    /// The last iteration that has an allocation.
    pub last_iteration: Option<u64>,
    /// Its allocation.
    pub last_answer: Option<AllocateAnswer>,
}

impl JobState {
    /// The state of a job as it was stored. [`Self::replay`] then takes the reports that the stored models have not seen.
    pub fn restore(restored: Restored) -> Self {
        let Restored { generation, departed_generation, members, last_iteration, kept_from, .. } = restored;
        let mut state = Self {
            spec: restored.spec,
            kept_from,
            members: Members::restore(generation, departed_generation, members),
            workers: restored.workers,
            models: restored.models,
            // A deletion that was interrupted may have left no allocation, and deleted iterations are not planned again.
            next_iteration: last_iteration.map_or(0, |last| last + 1).max(kept_from),
            last_answer: restored.last_answer.map(Arc::new),
            learning_rate: restored.learning_rate,
            in_force: None,
        };
        let global_batch = state.global_batch();
        state.in_force = state.last_answer.as_ref().and_then(|last| in_force(last, global_batch));
        state
    }

    /// Samples of a whole iteration: as set, or a fixed number for each live worker.
    pub fn global_batch(&self) -> u64 {
        match self.spec.per_worker_batch {
            Some(each) => each.saturating_mul(self.members.live().count().max(1) as u64),
            None => self.spec.global_batch,
        }
    }

    /// Live workers in rank order.
    pub fn live(&self) -> Vec<WorkerId> {
        self.members.live().cloned().collect()
    }

    /// The lease in milliseconds.
    pub fn lease_ms(&self) -> i64 {
        (self.spec.lease_s * 1e3) as i64
    }

    /// The device of a worker whose models have learned nothing yet; `None` for all others.
    pub fn device_of_cold(&self, worker: &WorkerId) -> Option<&str> {
        let device = self.workers.get(worker)?.request.device.as_deref();
        device.filter(|_| !self.models.knows(worker))
    }

    /// Lets a worker whose models have learned nothing start from what was learned on a device of its kind.
    pub fn warm_start(&mut self, worker: &WorkerId, earlier: Earlier) {
        self.models.warm_start(worker, earlier);
    }

    /// The workers of each kind of device.
    pub fn devices(&self) -> BTreeMap<String, Vec<WorkerId>> {
        let mut devices: BTreeMap<String, Vec<WorkerId>> = BTreeMap::new();
        for (worker, known) in &self.workers {
            if let Some(device) = &known.request.device {
                devices.entry(device.clone()).or_default().push(worker.clone());
            }
        }
        devices
    }
}

/// The shares in force as the newest allocation has them, without its tail. The speeds that they were made for are not stored: the
/// forecasts of that allocation stand in.
fn in_force(answer: &AllocateAnswer, global_batch: u64) -> Option<(Vec<WorkerId>, InForce)> {
    if answer.global_batch != global_batch {
        return None;
    }
    let workers = answer.allocations.iter().map(|share| share.worker.clone()).collect();
    let batches =
        answer.allocations.iter().map(|share| share.planned_batch.unwrap_or(share.local_batch)).collect();
    let speeds = answer.allocations.iter().map(|share| share.predicted_speed_samples_per_s).collect();
    Some((workers, InForce { batches, speeds }))
}
