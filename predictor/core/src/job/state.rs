//! The state of a job: its options, members, models, and current plan.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use evenstep_protocol::{
    AllocateResponse, Allocation, JobSpec, JoinRequest, WorkerId, WorkerOverride, WorkerReport,
};

use super::models::{Ahead, Learned, Models};
use super::plans::is_probe;
use super::progress::Progress;
use crate::attempts::Attempts;
use crate::forecast::Earlier;
use crate::learning_rate::Controller;
use crate::membership::{Member, Members};
use crate::plan::InForce;

/// Approximate memory of a worker without its models: its membership, and its share of the latest allocation and of
/// the current plan.
const WORKER_BYTES: u64 = 1024;

/// Number of joins per worker that are kept.
pub const JOINS_MAX: usize = 16;

/// The state of a job.
#[derive(Debug)]
pub struct JobState {
    /// The job options.
    pub spec: JobSpec,
    /// First iteration that is kept. Earlier ones are deleted and never planned again.
    pub kept_from: u64,
    /// The attempts of the run.
    pub attempts: Attempts,
    /// Whether workers joined, joined again or departed since the newest report: the run may have started again.
    pub regrouped: bool,
    /// The members of the job.
    pub members: Members<WorkerId>,
    /// All workers that have ever joined.
    pub workers: BTreeMap<WorkerId, WorkerState>,
    /// Models learned from reports of closed iterations. Change them through [`Self::models_mut`].
    pub models: Models,
    /// The models with the reports of incomplete iterations; computed when needed.
    current: OnceLock<Option<Box<Ahead>>>,
    /// Models before the latest reports, which the next models continue.
    earlier: Mutex<Option<Box<Ahead>>>,
    /// The first iteration that was not requested yet.
    pub next_iteration: u64,
    /// The latest allocation.
    pub last_allocation: Option<Arc<AllocateResponse>>,
    /// The even shares of the latest planned work, by rank; empty if they are not known.
    pub(super) last_even: Vec<u64>,
    /// Reports and joins since the latest allocation that show how far the run has come.
    pub(super) progress: Progress,
    /// The learning-rate rule and its instructions.
    pub learning_rate: Controller,
    /// The current plan, and its workers in rank order.
    pub(super) in_force: Option<(Vec<WorkerId>, InForce)>,
}

/// State of a worker, in addition to its models.
#[derive(Debug)]
pub struct WorkerState {
    /// The latest join request.
    pub request: JoinRequest,
    /// Maximum number of samples at once, learned from out-of-memory reports. Removed when the worker joins
    /// with other memory.
    pub oom_cap: Option<u64>,
    /// Override set by an operator.
    pub operator_override: Option<WorkerOverride>,
    /// Generations in which it joined, ascending; the latest [`JOINS_MAX`].
    joins: VecDeque<u64>,
}

impl WorkerState {
    /// Returns the state of a worker without reports.
    pub fn new(request: JoinRequest) -> Self {
        Self { request, oom_cap: None, operator_override: None, joins: VecDeque::new() }
    }

    /// Records that the worker joined in this generation.
    pub fn join(&mut self, generation: u64) {
        if self.joins.len() == JOINS_MAX {
            self.joins.pop_front();
        }
        self.joins.push_back(generation);
    }

    /// Returns the generation of its latest join; `None` if it is unknown.
    pub(super) fn latest_join(&self) -> Option<u64> {
        self.joins.back().copied()
    }

    /// Returns the generation of its latest join up to `generation`; `None` if it is unknown.
    pub(super) fn joined(&self, generation: u64) -> Option<u64> {
        self.joins.iter().rev().copied().find(|joined| *joined <= generation)
    }

    /// Returns its device if it joined in this generation; `None` if it is unknown, as it is before the latest join.
    pub(super) fn device(&self, joined: Option<u64>) -> Option<&str> {
        let is_latest = joined.is_none_or(|joined| self.joins.back().is_none_or(|latest| joined >= *latest));
        self.request.device.as_deref().filter(|_| is_latest)
    }

    /// Returns whether a worker that joins with this request may have more memory than at its out-of-memory
    /// report: its device or its memory is another, or it accepts larger batches.
    pub fn changes_memory(&self, request: &JoinRequest) -> bool {
        let most = |request: &JoinRequest| request.max_local_batch.unwrap_or(u64::MAX);
        let before = &self.request;
        before.device != request.device
            || before.memory_bytes != request.memory_bytes
            || most(before) < most(request)
    }
}

/// A job read from the store.
#[derive(Debug)]
pub struct Restored {
    /// The job options.
    pub spec: JobSpec,
    /// First iteration that is kept; earlier ones are deleted.
    pub kept_from: u64,
    /// The current generation.
    pub generation: u64,
    /// The generation of the latest departure.
    pub departed_generation: u64,
    /// All workers that have ever joined, in order of their latest join.
    pub members: Vec<Member<WorkerId>>,
    /// State of the same workers.
    pub workers: BTreeMap<WorkerId, WorkerState>,
    /// Stored models, or new ones.
    pub models: Models,
    /// The learning-rate rule and its instructions.
    pub learning_rate: Controller,
    /// The last iteration that has an allocation.
    pub last_iteration: Option<u64>,
    /// Its allocation.
    pub last_allocation: Option<AllocateResponse>,
}

impl JobState {
    /// Restores the state of a job. Then [`Self::replay`] must process the reports that the stored models
    /// have not seen.
    pub fn restore(restored: Restored) -> Self {
        let Restored { generation, departed_generation, members, last_iteration, kept_from, .. } = restored;
        let mut state = Self {
            spec: restored.spec,
            kept_from,
            attempts: Attempts::default(),
            regrouped: false,
            members: Members::restore(generation, departed_generation, members),
            workers: restored.workers,
            models: restored.models,
            current: OnceLock::new(),
            earlier: Mutex::default(),
            // An interrupted deletion may leave no allocation, but deleted iterations must not be planned
            // again.
            next_iteration: last_iteration.map_or(0, |last| last + 1).max(kept_from),
            last_allocation: restored.last_allocation.map(Arc::new),
            learning_rate: restored.learning_rate,
            last_even: Vec::new(),
            progress: Progress::new(),
            in_force: None,
        };
        if let Some(last) = state.last_allocation.clone() {
            state.restore_in_force(&last);
        }
        state
    }

    /// Whether the job has a current plan.
    pub fn has_plan(&self) -> bool {
        self.in_force.is_some()
    }

    /// Restores the current plan from an allocation, unless that was for the ragged end of an epoch: an earlier one shows the
    /// plan then, and also if an earlier predictor varied the shares on purpose. The speeds that the plan was made for are not
    /// stored; the forecasts in the allocation replace them.
    pub fn restore_in_force(&mut self, answer: &AllocateResponse) {
        let is_known =
            !is_probe(answer) || answer.allocations.iter().all(|share| share.planned_batch.is_some());
        if answer.global_batch == self.global_batch() && is_known {
            self.in_force = Some(in_force(answer));
        }
    }

    /// Returns the number of samples in a full iteration: the fixed global batch, or a fixed number per live
    /// worker.
    pub fn global_batch(&self) -> u64 {
        global_batch(&self.spec, self.members.live().count() as u64)
    }

    /// Returns the approximate memory of the state, in bytes.
    pub fn bytes(&self) -> u64 {
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let copies = 1 + u64::from(earlier.is_some() || self.current.get().is_some_and(Option::is_some));
        self.workers.len() as u64 * WORKER_BYTES + copies * self.models.bytes()
    }

    /// Returns the models for decisions and views: with the reports of incomplete iterations.
    pub fn current_models(&self) -> &Models {
        let current = self.current.get_or_init(|| {
            let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner).take();
            let generation = self.members.generation();
            let earlier = earlier.map(|earlier| *earlier);
            Ahead::of(&self.models, earlier, generation, &self.attempts, &self.workers).map(Box::new)
        });
        current.as_deref().map_or(&self.models, Ahead::models)
    }

    /// Returns the models for a change.
    pub fn models_mut(&mut self) -> &mut Models {
        self.keep_ahead(|_| false);
        &mut self.models
    }

    /// Returns the models to plan an iteration.
    pub(super) fn models_to_plan(&mut self, iteration: u64) -> &mut Models {
        self.keep_ahead(|ahead| ahead.is_before(iteration));
        &mut self.models
    }

    /// Keeps the models that are ahead, to continue them, if they still follow from the others.
    fn keep_ahead(&mut self, follow: impl FnOnce(&mut Ahead) -> bool) {
        let earlier = self.earlier.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ahead = self.current.take().flatten().or_else(|| earlier.take());
        *earlier = ahead.and_then(|mut ahead| follow(&mut ahead).then_some(ahead));
    }

    /// Learns from reports.
    pub(super) fn learn<'a>(&mut self, reports: &'a [WorkerReport]) -> Learned<'a> {
        let learned = self.models.learn(reports, &self.attempts, &self.workers);
        self.keep_ahead(|ahead| ahead.is_same(&learned.closed));
        learned
    }

    /// Returns the live workers in rank order.
    pub fn live(&self) -> Vec<WorkerId> {
        self.members.live().cloned().collect()
    }

    /// Returns the lease in milliseconds.
    pub fn lease_ms(&self) -> i64 {
        (self.spec.lease_s * 1e3) as i64
    }

    /// Returns the device of a worker without models; `None` for all others.
    pub fn device_if_unmeasured(&self, worker: &WorkerId) -> Option<&str> {
        let device = self.workers.get(worker)?.request.device.as_deref();
        device.filter(|_| !self.models.knows(worker))
    }

    /// Sets the starting point of a worker without models: the models of a worker on the same kind of device.
    pub fn warm_start(&mut self, worker: &WorkerId, earlier: Earlier) {
        self.models_mut().warm_start(worker, earlier);
    }

    /// Returns the workers of each kind of device.
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

/// Returns the number of samples in a full iteration with this number of live workers.
pub fn global_batch(spec: &JobSpec, live: u64) -> u64 {
    match spec.per_worker_batch {
        Some(each) => each.saturating_mul(live.max(1)),
        None => spec.global_batch,
    }
}

/// Returns the plan of an allocation, without its tail, and whether or not even shares are held or shares vary on purpose.
fn in_force(answer: &AllocateResponse) -> (Vec<WorkerId>, InForce) {
    let workers = answer.allocations.iter().map(|share| share.worker.clone()).collect();
    let batch = |share: &Allocation| share.held_batch.or(share.planned_batch).unwrap_or(share.local_batch);
    let batches = answer.allocations.iter().map(batch).collect();
    let speeds = answer.allocations.iter().map(|share| share.predicted_speed_samples_per_s).collect();
    (workers, InForce { batches, speeds, lost: answer.decision.lost.unwrap_or(0.0) })
}
