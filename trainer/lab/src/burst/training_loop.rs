//! Training with a burst-parallel plan.

use anyhow::{Context, Result};

use super::executor::{Executor, Iteration};
use crate::dataset::DataSet;
use crate::task::TaskArgs;
use evenstep_trainer::data::Cursor;

/// Number of iterations before the measurement, in which memory is allocated.
pub const WARM_UP: usize = 5;

/// Trains for a number of iterations, the same on all ranks, and calls `each` after every iteration.
///
/// A plan requires whole batches, so the incomplete batch at the end of an epoch is skipped.
///
/// # Errors
/// Fails if a rank is lost or stalls for longer than the timeout.
pub fn train(
    executor: &mut Executor,
    data: &DataSet,
    task: &TaskArgs,
    iterations: usize,
    mut each: impl FnMut(),
) -> Result<Vec<Iteration>> {
    let global_batch = executor.global_batch();
    let mut cursor = Cursor::new(task.step.seed, data.train.len());
    let mut done = Vec::with_capacity(iterations);
    executor.world().barrier().context("waiting for the other workers to be ready")?;
    for number in 0..iterations {
        let left = cursor.size(global_batch, 0);
        if left < global_batch {
            cursor.advance(left);
        }
        let iteration = executor.iterate(&data.train, cursor.slice(0, global_batch), task.step.lr);
        done.push(iteration.with_context(|| format!("iteration {number}"))?);
        cursor.advance(global_batch);
        each();
    }
    Ok(done)
}
