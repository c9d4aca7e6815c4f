//! The bounds of a worker that the job, the worker and an operator set, and the checks that they leave it a
//! local batch.
//!
//! The bounds of one worker are checked together whenever one of them is set. Whether all workers together
//! can hold the global batch depends on which workers are live, so `admission` checks the sums. The exception are
//! sums that no set of workers can satisfy: [`check_spec`] rejects them.

use evenstep_protocol::{JobSpec, JoinRequest, WorkerId, WorkerOverride};

use super::state::JobState;

/// A bound, and the setting that it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Number of samples.
    pub samples: u64,
    /// Name of the setting.
    pub name: &'static str,
}

/// Bounds that contradict each other. The message has both values, their settings and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// A floor and a cap leave a worker no local batch.
    #[error(
        "{}the floor of {} ({}) and the cap of {} ({}) leave no local batch: {rule} is between them; \
         raise the cap or lower the floor",
        .worker.as_ref().map_or_else(String::new, |worker| format!("worker {worker}: ")),
        .floor.samples, .floor.name, .cap.samples, .cap.name
    )]
    Worker {
        /// The worker; `None` if the job options alone leave no local batch.
        worker: Option<WorkerId>,
        /// The floor.
        floor: Setting,
        /// The cap.
        cap: Setting,
        /// The sizes that are allowed, in words.
        rule: String,
    },
    /// The floors of the smallest set of workers exceed the global batch.
    #[error(
        "min_workers {workers} with the floor of {} ({}) require {floors} samples, but the global batch of \
         {workers} workers is {global_batch}; lower the floor or raise the global batch",
        .floor.samples, .floor.name
    )]
    Floors {
        /// Minimum number of workers.
        workers: u64,
        /// Floor of each worker.
        floor: Setting,
        /// Sum of the floors, each rounded up to a multiple of the quantum.
        floors: u64,
        /// Global batch with this number of workers.
        global_batch: u64,
    },
    /// The caps cannot hold a global batch that grows with the number of workers.
    #[error(
        "max_local_batch {cap} holds at most {held} samples, fewer than per_worker_batch {per_worker_batch}; \
         raise max_local_batch, lower per_worker_batch, or allow accumulation"
    )]
    Caps {
        /// Cap of each worker.
        cap: u64,
        /// The largest local batch within the cap.
        held: u64,
        /// Number of samples per worker.
        per_worker_batch: u64,
    },
}

/// Bounds of one worker that the job, the worker and an operator set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Configured {
    /// Minimum number of samples.
    pub floor: Setting,
    /// The part of the floor that someone set; `None` if the floor is the default, which yields if there are too few
    /// samples for it.
    pub required: Option<Setting>,
    /// Maximum number of samples in an iteration.
    pub cap: Option<Setting>,
}

impl Configured {
    /// Returns the bounds of a worker, or of a worker that sets none.
    ///
    /// An override replaces the floor and lowers the cap; a pin replaces the floor and the job's cap. With accumulation, the caps of
    /// the job and the worker bound a micro-batch instead.
    pub fn new(spec: &JobSpec, worker: Option<&JoinRequest>, operator: Option<&WorkerOverride>) -> Self {
        let exactly = |samples, name| {
            let bound = Setting { samples, name };
            Self { floor: bound, required: Some(bound), cap: Some(bound) }
        };
        let set = |samples: Option<u64>, name| samples.map(|samples| Setting { samples, name });
        let own_cap = set(worker.and_then(|own| own.max_local_batch), "max_local_batch of the worker")
            .filter(|_| !spec.accumulation);
        match operator {
            Some(wanted) if wanted.paused => return exactly(0, "paused by the override"),
            Some(WorkerOverride { pinned_local_batch: Some(pinned), .. }) => {
                let pin = exactly(*pinned, "pinned_local_batch of the override");
                // The worker itself rejects plans above its own cap.
                return Self { cap: own_cap.into_iter().chain(pin.cap).min_by_key(|cap| cap.samples), ..pin };
            }
            _ => {}
        }
        let default = match spec.allowed_sizes.is_empty() {
            true => Setting { samples: spec.quantum, name: "quantum, the default min_local_batch" },
            false => Setting { samples: 0, name: "the default min_local_batch" },
        };
        let of_job = set(spec.min_local_batch, "min_local_batch of the job");
        let of_worker = set(worker.and_then(|own| own.min_local_batch), "min_local_batch of the worker");
        let of_operator =
            set(operator.and_then(|wanted| wanted.min_local_batch), "min_local_batch of the override");
        // Of equal floors, the job's is named.
        let own = of_worker.into_iter().chain(of_job).max_by_key(|floor| floor.samples);
        let required = of_operator.or(own);
        let is_default =
            of_operator.is_none() && of_job.is_none() && own.is_none_or(|own| own.samples <= default.samples);
        let caps = [
            set(spec.max_local_batch, "max_local_batch of the job").filter(|_| !spec.accumulation),
            own_cap,
            set(operator.and_then(|wanted| wanted.max_local_batch), "max_local_batch of the override"),
        ];
        Self {
            floor: required.filter(|_| !is_default).unwrap_or(default),
            required,
            cap: caps.into_iter().flatten().min_by_key(|cap| cap.samples),
        }
    }

    /// Checks that some local batch is between the floor and the cap. The global batch is a cap too, if it
    /// does not depend on the number of workers.
    fn check(&self, spec: &JobSpec, worker: Option<&WorkerId>) -> Result<(), Contradiction> {
        let whole = Setting { samples: spec.global_batch, name: "global_batch of the job" };
        let largest = spec.allowed_sizes.last();
        let largest = largest.map(|size| Setting { samples: *size, name: "the largest of allowed_sizes" });
        let caps = self.cap.into_iter().chain(largest);
        let caps = caps.chain(spec.per_worker_batch.is_none().then_some(whole));
        let Some(cap) = caps.min_by_key(|cap| cap.samples) else { return Ok(()) };
        // A worker whose cap is 0 computes nothing, whether or not 0 is an allowed size.
        let most = if cap.samples == 0 { Some(0) } else { largest_size(spec, cap.samples) };
        if most.is_some_and(|most| most >= self.floor.samples) {
            return Ok(());
        }
        let rule = if spec.allowed_sizes.is_empty() {
            format!("no multiple of quantum {}", spec.quantum)
        } else {
            format!("none of allowed_sizes {:?}", spec.allowed_sizes)
        };
        Err(Contradiction::Worker { worker: worker.cloned(), floor: self.floor, cap, rule })
    }
}

/// Returns the number that every local batch is a multiple of: 1 if listed sizes are not, in jobs of earlier versions.
pub(super) fn quantum(spec: &JobSpec) -> u64 {
    if spec.allowed_sizes.iter().all(|size| size.is_multiple_of(spec.quantum)) { spec.quantum } else { 1 }
}

/// Returns the largest local batch that the rule for sizes allows, up to `most`.
pub(super) fn largest_size(spec: &JobSpec, most: u64) -> Option<u64> {
    if spec.allowed_sizes.is_empty() {
        return Some(most - most % spec.quantum);
    }
    spec.allowed_sizes.iter().copied().take_while(|size| *size <= most).last()
}

/// Checks the bounds of job options: together they leave a local batch to a worker that sets no bounds, and
/// some number of such workers can hold the global batch.
///
/// # Errors
/// [`Contradiction`] of the first rule that is broken.
pub fn check_spec(spec: &JobSpec) -> Result<(), Contradiction> {
    let configured = Configured::new(spec, None, None);
    configured.check(spec, None)?;
    let workers = spec.min_workers.max(1);
    let floor = configured.floor;
    let quantum = quantum(spec);
    let floors = floor.samples.div_ceil(quantum).saturating_mul(quantum).saturating_mul(workers);
    let global_batch = spec.per_worker_batch.map_or(spec.global_batch, |each| each.saturating_mul(workers));
    if floors > global_batch {
        return Err(Contradiction::Floors { workers, floor, floors, global_batch });
    }
    if let (Some(per_worker_batch), Some(cap)) = (spec.per_worker_batch, configured.cap) {
        let (cap, held) = (cap.samples, largest_size(spec, cap.samples).unwrap_or(0));
        if held < per_worker_batch {
            return Err(Contradiction::Caps { cap, held, per_worker_batch });
        }
    }
    Ok(())
}

impl JobState {
    /// Returns the number that every local batch is a multiple of.
    pub fn quantum(&self) -> u64 {
        quantum(&self.spec)
    }

    /// Checks that every live worker has a local batch under changed job options.
    ///
    /// # Errors
    /// [`Contradiction`] of the first worker without one.
    pub fn check_spec(&self, spec: &JobSpec) -> Result<(), Contradiction> {
        self.members.live().filter_map(|id| self.workers.get(id)).try_for_each(|worker| {
            check(spec, &worker.request, None)?;
            check(spec, &worker.request, worker.operator_override.as_ref())
        })
    }

    /// Checks that a worker has a local batch if it joins with this request: under its override, and without
    /// it, so that the override can always be removed.
    ///
    /// # Errors
    /// [`Contradiction`] with both bounds.
    pub fn check_join(&self, request: &JoinRequest) -> Result<(), Contradiction> {
        check(&self.spec, request, None)?;
        let known = self.workers.get(&request.worker);
        check(&self.spec, request, known.and_then(|known| known.operator_override.as_ref()))
    }

    /// Checks that a worker has a local batch under an override.
    ///
    /// # Errors
    /// [`Contradiction`] with both bounds.
    pub fn check_override(&self, worker: &WorkerId, wanted: &WorkerOverride) -> Result<(), Contradiction> {
        let Some(known) = self.workers.get(worker) else { return Ok(()) };
        check(&self.spec, &known.request, Some(wanted))
    }
}

fn check(
    spec: &JobSpec,
    request: &JoinRequest,
    operator: Option<&WorkerOverride>,
) -> Result<(), Contradiction> {
    Configured::new(spec, Some(request), operator).check(spec, Some(&request.worker))
}
