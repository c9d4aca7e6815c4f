//! Errors of a simulation.

use evenstep_core::allocate::Infeasible;
use evenstep_core::plan::Unplannable;

/// Maximum of workers times iterations in a simulation.
pub const CELLS_MAX: usize = 20_000_000;

/// Reasons why a simulation cannot run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// A number is out of its range.
    #[error("{what} {value}: must be {range}")]
    Range {
        /// Name of the quantity.
        what: String,
        /// Its value.
        value: f64,
        /// Its range.
        range: &'static str,
    },
    /// The global batch has too few samples for the workers.
    #[error(
        "global batch {global_batch}: too small for {workers} workers with at least {quantum} samples \
        each; raise --global-batch"
    )]
    TooFewSamples {
        /// Samples per iteration.
        global_batch: u64,
        /// Workers that are members.
        workers: usize,
        /// Minimum samples per worker.
        quantum: u64,
    },
    /// The global batch is not a multiple of the quantum.
    #[error("global batch {global_batch}: must be a multiple of the quantum {quantum}")]
    NoMultiple {
        /// Samples per iteration.
        global_batch: u64,
        /// The quantum in samples.
        quantum: u64,
    },
    /// An iteration has no members.
    #[error("iteration {iteration}: no worker is a member")]
    Nobody {
        /// Number of the iteration.
        iteration: usize,
    },
    /// The run is too short for statistics.
    #[error(
        "{iterations} iterations, of which {warmup} are warm-up; at least 1 must be warm-up and at least \
            1 must follow it"
    )]
    TooFewIterations {
        /// Number of iterations.
        iterations: usize,
        /// Number of warm-up iterations.
        warmup: usize,
    },
    /// Too few recorded iterations have a row of every worker.
    #[error(
        "only {complete} iterations have a row of every worker, fewer than half of the {rows} rows of {worker:?}; \
        --time names a column of iterations or times, whole numbers are iterations, and '' pairs rows by their number"
    )]
    Incomplete {
        /// Number of iterations with a row of every worker.
        complete: usize,
        /// The worker with the fewest rows.
        worker: String,
        /// Number of its rows.
        rows: usize,
    },
    /// The simulation is too large for memory.
    #[error("{workers} workers times {iterations} iterations exceeds the maximum of {max}; lower \
        --workers or --iterations", max = CELLS_MAX)]
    TooLarge {
        /// Number of workers.
        workers: usize,
        /// Number of iterations.
        iterations: usize,
    },
    /// The requested number of workers exceeds the number of possible time shifts, or is below the number of
    /// traces.
    #[error("{workers} workers from {traces} traces of {iterations} iterations: {rule}")]
    Workers {
        /// Requested number of workers.
        workers: usize,
        /// Number of traces.
        traces: usize,
        /// Iterations of each trace.
        iterations: usize,
        /// The rule.
        rule: &'static str,
    },
    /// The allocation is infeasible.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// No plan is possible.
    #[error(transparent)]
    Unplannable(#[from] Unplannable),
}
