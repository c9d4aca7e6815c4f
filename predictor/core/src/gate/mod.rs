//! When background work may run beside a foreground job, and how much of it (DeepPool, arXiv 2112.10065, multiplexing).
//!
//! The foreground's iteration is a sequence of tasklets, the same in every iteration: pieces of compute, receives, all-reduces.
//! Each has a benchmark, taken while it was alone, and a recent time. Background work is cut into pieces of about
//! [`PIECE_US`]; before each one the [`Gate`] is asked, in the client's own process: a request for each piece would take as long
//! as the piece. What a service can say is how much an iteration bears: a [`Budget`].
//!
//! - [`Benchmark`]: what tasklets take alone
//! - [`Gate`]: whether the next piece may run, and by which rule
//! - [`budgets`]: the slack of each worker, and what may be spent of it

mod benchmark;
mod budget;
mod limit;
mod verdict;

#[cfg(test)]
mod tests;

pub use benchmark::{Benchmark, ROUNDS_MAX, TASKLETS_MAX};
pub use budget::{Budget, budgets};
pub use limit::{GateError, LIMIT_MAX, Limit};
pub use verdict::{GAP_US, Gate, Kind, PIECE_US, Rule, Verdict};
