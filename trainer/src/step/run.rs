//! A run with fixed workers from the first iteration to the last.

use anyhow::{Context, Result};
use evenstep_c10d::Group;

use super::replica::Replica;
use super::setup;
use super::worker::Worker;
use crate::training::{Hooks, Training, WorkerProcess};

/// With several policies: iterations per policy before the next policy runs. A load of `launch --contend` lasts 3 s on average;
/// a turn should be shorter, so that all policies see the same loads.
pub const BLOCK: u64 = 10;

/// Trains as one worker, from joining the group to delivering the last report.
///
/// # Errors
/// Options contradict each other, the data is unusable, a worker has left, or a gradient is wrong.
pub fn run(training: &Training, process: &WorkerProcess, hooks: Hooks) -> Result<()> {
    let (mut worker, group, mut replicas) = setup::prepare(training, process, hooks)?;
    let trained = train(&mut worker, &group, &mut replicas);
    // The other workers must notice at once that this worker has left the group, even if it still delivers
    // reports.
    if trained.is_ok() {
        // All iterations are done, so that the loss of a worker no longer matters.
        let _ = group.close();
    } else {
        drop(group);
    }
    worker.conclude(&replicas, trained?)?;
    worker.close(&mut replicas);
    Ok(())
}

/// Trains to the end of the run. Returns true if a signal stopped it before.
fn train(worker: &mut Worker<'_>, group: &Group, replicas: &mut [Replica]) -> Result<bool> {
    let mut stopped = false;
    'rounds: while replicas.iter().any(|replica| !worker.is_done(replica)) {
        let begun = replicas[0].iteration;
        let block = if replicas.len() > 1 { BLOCK } else { 1 };
        for replica in replicas.iter_mut() {
            while replica.iteration < begun + block && !worker.is_done(replica) {
                if worker.step(group, replica)?.stop > 0 {
                    stopped = true;
                    break 'rounds;
                }
            }
        }
        worker.checkpoint_since(begun, replicas)?;
    }
    if stopped {
        worker.checkpoint(replicas)?;
    }
    group.barrier().context("waiting for the other workers to finish")?;
    Ok(stopped)
}
