//! Writes: a bounded queue, one writer task, group commit.
//!
//! [`writer`] commits all waiting writes in one transaction. [`group`] applies the writes of a transaction.
//! Allocations, reports and samples take one statement per kind; [`change`], [`access`] and [`roll_up`] apply all
//! other changes one by one.

pub(crate) mod access;

pub(crate) mod meter;

mod allocations;

mod reports;

mod samples;

mod roll_up;

mod change;

pub(crate) mod faults;

mod group;

pub(crate) mod writer;
