//! Writes: a bounded queue, one writer task, group commit.
//!
//! [`writer`] takes what waits and commits it in one transaction; [`group`] applies the writes of a transaction: whatever
//! comes in numbers (allocations, reports, samples) in one statement for each kind, [`change`] and [`roll_up`] the rest one by one.

pub(crate) mod meter;

mod allocations;

mod reports;

mod samples;

mod roll_up;

mod change;

mod group;

pub(crate) mod writer;
