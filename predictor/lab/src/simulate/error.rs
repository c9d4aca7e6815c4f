//! Why a simulation cannot be run.

use evenstep_core::allocate::Infeasible;
use evenstep_core::plan::Unplannable;

/// The largest number of workers times iterations that can be simulated.
pub const CELLS_MAX: usize = 20_000_000;

/// Why a simulation cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// A number out of its range.
    #[error("{what} {value}: it must be {range}")]
    Range {
        /// What it is.
        what: String,
        /// Its value.
        value: f64,
        /// What it must be.
        range: &'static str,
    },
    /// Fewer samples than workers.
    #[error("global batch {global_batch}: {workers} workers take at least {quantum} samples each")]
    TooFewSamples {
        /// Samples of an iteration.
        global_batch: u64,
        /// Workers that take part.
        workers: usize,
        /// The least that each takes.
        quantum: u64,
    },
    /// A global batch that is no multiple of the quantum.
    #[error("global batch {global_batch}: it must be a multiple of the quantum {quantum}")]
    NoMultiple {
        /// Samples of an iteration.
        global_batch: u64,
        /// What every share is a multiple of.
        quantum: u64,
    },
    /// An iteration in which nobody takes part.
    #[error("iteration {iteration}: no worker takes part")]
    Nobody {
        /// Which.
        iteration: usize,
    },
    /// Too little to judge by.
    #[error(
        "{iterations} iterations, of which {warmup} are warm-up: at least 1 must be warm-up and 1 must come after it"
    )]
    TooFewIterations {
        /// Iterations there are.
        iterations: usize,
        /// How many of them are warm-up.
        warmup: usize,
    },
    /// More than fits into memory.
    #[error("{workers} workers and {iterations} iterations: at most {max} together may be simulated", max = CELLS_MAX)]
    TooLarge {
        /// Workers.
        workers: usize,
        /// Iterations.
        iterations: usize,
    },
    /// More workers are to be made of traces than there are shifts, or fewer than traces.
    #[error("{workers} workers of {traces} traces of {iterations} iterations: {rule}")]
    Workers {
        /// Workers asked for.
        workers: usize,
        /// Traces there are.
        traces: usize,
        /// Iterations of each.
        iterations: usize,
        /// What must be.
        rule: &'static str,
    },
    /// A share that cannot be.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// A plan that cannot be.
    #[error(transparent)]
    Unplannable(#[from] Unplannable),
}
