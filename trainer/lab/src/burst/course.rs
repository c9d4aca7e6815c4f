//! Iterations one after another.

use anyhow::{Context, Result};

use super::executor::{Executor, Iteration};
use crate::dataset::DataSet;
use crate::task::TaskArgs;
use evenstep_trainer::data::Cursor;

/// Iterations before what is measured: memory is then as it will be.
pub const WARM_UP: usize = 5;

/// Trains for so many iterations, all ranks alike, and `each` is called after every one. A plan is for whole batches: the ragged end of
/// an epoch is left out.
///
/// # Errors
/// A rank is gone or stalls past the timeout.
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
    executor.world().barrier().context("waiting for the others to be ready")?;
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
