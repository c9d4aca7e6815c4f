//! The pure core of evenstep: forecasts of the workers' speeds, and allocations of samples to workers.
//!
//! The core is deterministic. It does no I/O, reads no clock and uses no unseeded random numbers. It learns wide jobs on
//! all cores, with the results of one core. Modules in reading order:
//! - [`series`]: observations of a worker, and its drivers
//! - [`forecast`]: the speed of the next iteration, with an interval
//! - [`curve`]: a worker's time over its batch size
//! - [`allocate`]: the exact min-max split of a global batch
//! - [`hedge`]: base batches and a shared tail that workers claim, against forecast errors
//! - [`plan`]: from forecasts to an allocation with its reason: cold start, hold, rebalance
//! - [`memory`]: the largest batch that fits into memory
//! - [`straggler`]: workers that are slow for a long time, and the reason
//! - [`attempts`]: places of the iterations of a run that returns to earlier ones
//! - [`membership`]: members, leases and generations
//! - [`learning_rate`]: learning-rate rules for a changing global batch
//! - [`ratio`]: the ratio of two sums over iterations, with an interval
//! - [`job`]: the state of one job: `observe(reports)` and `decide(iteration)`
//!
//! # Examples
//! A job with two workers. Worker 1 reports twice the speed of worker 0, and gets a larger batch:
//! ```
//! use std::collections::{BTreeMap, VecDeque};
//!
//! use evenstep_core::job::{JobState, Models, Restored, WorkerState, controller};
//! use evenstep_core::membership::{Member, State};
//! use evenstep_protocol::{AllocateRequest, JobId, JobSpec, JoinRequest, WorkerId, WorkerReport};
//!
//! let spec = JobSpec::new(64);
//! let ids = [WorkerId::new("node-a/0")?, WorkerId::new("node-a/1")?];
//! let member = |id: &WorkerId| Member {
//!     id: id.clone(),
//!     state: State::Live,
//!     last_seen_ms: 0,
//!     departures_ms: VecDeque::new(),
//! };
//! let worker = |id: &WorkerId| (id.clone(), WorkerState::new(JoinRequest::new(id.clone())));
//! let mut job = JobState::restore(Restored {
//!     kept_from: 0,
//!     generation: 2,
//!     departed_generation: 0,
//!     members: ids.iter().map(member).collect(),
//!     workers: ids.iter().map(worker).collect::<BTreeMap<_, _>>(),
//!     models: Models::new(),
//!     learning_rate: controller(&spec)?,
//!     last_iteration: None,
//!     last_allocation: None,
//!     spec,
//! });
//!
//! for iteration in 0..5 {
//!     let planned = job.decide(&AllocateRequest::new(JobId::new("a")?, 2, iteration))?;
//!     let batches: Vec<u64> = planned.answer.allocations.iter().map(|share| share.local_batch).collect();
//!     let tail = planned.answer.tail.as_ref().map_or(0, |tail| tail.chunks.iter().sum());
//!     assert_eq!(batches.iter().sum::<u64>() + tail, 64);
//!     job.apply(planned);
//!     let report = |(worker, speed): (usize, f64)| {
//!         let local_batch = batches[worker];
//!         WorkerReport::new(ids[worker].clone(), iteration, local_batch, local_batch as f64 / speed)
//!     };
//!     job.observe(&[(0, 100.0), (1, 200.0)].map(report));
//! }
//! let planned = job.decide(&AllocateRequest::new(JobId::new("a")?, 2, 5))?;
//! assert!(planned.answer.allocations[0].local_batch < planned.answer.allocations[1].local_batch);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod parallel;
mod shared;

pub mod series;

pub mod forecast;

pub mod curve;

pub mod allocate;

pub mod attempts;

pub mod hedge;

pub mod plan;

pub mod memory;

pub mod straggler;

pub mod membership;

pub mod learning_rate;

pub mod ratio;

pub mod job;
