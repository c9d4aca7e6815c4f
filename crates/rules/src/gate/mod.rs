//! Admission control for background work next to a foreground job (DeepPool, arXiv 2112.10065, multiplexing).
//!
//! The foreground's iteration is a sequence of tasklets, the same in every iteration: pieces of compute,
//! receives, all-reduces. Each tasklet has a benchmark, measured while the foreground ran alone, and a recent
//! time.
//!
//! Background work is cut into pieces of about [`PIECE_US`]. The client consults the [`Gate`] before each
//! piece, in its own process, because a request to a service would take as long as the piece. A service can
//! provide the [`Budget`]: how much background work an iteration allows.
//!
//! - [`Benchmark`]: times of tasklets when the foreground runs alone
//! - [`Gate`]: decides whether the next piece may run, and by which rule
//! - [`budgets`]: the slack of each worker, and its budget for background work

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
