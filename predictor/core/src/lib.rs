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
//! - [`membership`]: members, leases and generations
//! - [`learning_rate`]: learning-rate rules for a changing global batch
//! - [`gate`]: when and how much background work may run next to a job
//! - [`job`]: the state of one job: `observe(reports)` and `decide(iteration)`

mod parallel;

pub mod series;

pub mod forecast;

pub mod curve;

pub mod allocate;

pub mod hedge;

pub mod plan;

pub mod memory;

pub mod straggler;

pub mod membership;

pub mod learning_rate;

pub mod gate;

pub mod job;
