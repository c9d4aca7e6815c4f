//! The pure core of evenstep: how fast will each worker be, and who takes how many samples.
//!
//! It does no I/O, reads no clock, draws no unseeded number and never waits; the same input gives the same answer.
//! Modules in reading order:
//! - [`series`]: what was seen of a worker, and the drivers beside it
//! - [`forecast`]: the speed of the coming iteration, with an interval
//! - [`curve`]: how a worker's time grows with its batch
//! - [`allocate`]: the exact min-max split of a global batch
//! - [`hedge`]: what cannot be foreseen is shared: bases and a tail that is claimed
//! - [`plan`]: from forecasts to an allocation with its reason: cold start, hold, rebalance
//! - [`memory`]: how large a batch fits
//! - [`straggler`]: who is slow for long, and why
//! - [`membership`]: who takes part: leases and generations
//! - [`learning_rate`]: how the learning rate follows the global batch
//! - [`gate`]: when background work may run beside a job, and how much
//! - [`job`]: what is known of one job: `observe(reports)` and `decide(iteration)`

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
