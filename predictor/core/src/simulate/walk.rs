//! Iteration by iteration: shares are made, done, and reported.

use super::SimulateError;
use super::evenstep::Fitter;
use super::policy::{PolicyName, Report, Settings};
use super::world::{CELLS_MAX, World};

/// What a policy did, over the iterations that count.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Which.
    pub policy: PolicyName,
    /// Seconds of each step: those of the slowest worker.
    pub took_s: Vec<f64>,
    /// Seconds that workers waited in each step for the slowest, on average over those who took part.
    pub wait_s: Vec<f64>,
    /// Shares by iteration, then worker; 0 where it took no part.
    pub shares: Vec<Vec<u64>>,
    /// Iterations whose shares were not those of the iteration before.
    pub changes: usize,
}

/// Lets a policy live through a world. Networks are fitted by `fitter`, which may do several at once.
///
/// # Errors
/// [`SimulateError`] where the world and the settings do not go together.
pub fn walk(
    world: &World,
    policy: PolicyName,
    settings: &Settings,
    fitter: Fitter<'_>,
) -> Result<Run, SimulateError> {
    check(world, settings)?;
    let mut run = Run { policy, took_s: Vec::new(), wait_s: Vec::new(), shares: Vec::new(), changes: 0 };
    let mut policy = policy.build(world, settings, fitter);
    let mut before: Vec<u64> = Vec::new();
    let mut reports: Vec<Report<'_>> = Vec::new();
    for iteration in 0..world.iterations {
        let present: Vec<usize> = world.present(iteration).collect();
        let batches = if settings.ahead {
            let batches = policy.shares(iteration, &present)?;
            policy.learn(&reports);
            batches
        } else {
            policy.learn(&reports);
            policy.shares(iteration, &present)?
        };
        reports = step(world, iteration, &present, &batches);
        let mut shares = vec![0; world.workers.len()];
        for (worker, batch) in present.iter().zip(&batches) {
            shares[*worker] = *batch;
        }
        if iteration >= settings.warmup {
            let took_s = reports.iter().map(|report| report.compute_time_s).fold(0.0, f64::max);
            let waited_s: f64 = reports.iter().map(|report| report.barrier_wait_s).sum();
            run.changes += usize::from(shares != before);
            run.took_s.push(took_s);
            run.wait_s.push(waited_s / present.len() as f64);
            run.shares.push(shares.clone());
        }
        before = shares;
    }
    Ok(run)
}

/// What the workers report of an iteration.
fn step<'a>(world: &'a World, iteration: usize, present: &[usize], batches: &[u64]) -> Vec<Report<'a>> {
    let time_s = |(worker, batch): (&usize, &u64)| {
        let worker = &world.workers[*worker];
        worker.form.curve(worker.slowdown[iteration]).time(*batch)
    };
    let times_s: Vec<f64> = present.iter().zip(batches).map(time_s).collect();
    let took_s = times_s.iter().copied().fold(0.0, f64::max);
    let report = |((worker, batch), time_s): ((&usize, &u64), f64)| Report {
        worker: *worker,
        batch: *batch,
        compute_time_s: time_s,
        barrier_wait_s: took_s - time_s,
        // Read at the end of this iteration: what is known just before the next.
        drivers: world.workers[*worker].drivers.get(iteration + 1).map_or(&[], Vec::as_slice),
    };
    present.iter().zip(batches).zip(times_s).map(report).collect()
}

fn check(world: &World, settings: &Settings) -> Result<(), SimulateError> {
    let Settings { global_batch, quantum, warmup, .. } = *settings;
    let (workers, iterations) = (world.workers.len(), world.iterations);
    if workers.saturating_mul(iterations) > CELLS_MAX {
        return Err(SimulateError::TooLarge { workers, iterations });
    }
    if warmup == 0 || warmup >= iterations {
        return Err(SimulateError::TooFewIterations { iterations, warmup });
    }
    if !global_batch.is_multiple_of(quantum.max(1)) {
        return Err(SimulateError::NoMultiple { global_batch, quantum });
    }
    let mut most = 0;
    for iteration in 0..iterations {
        let present = world.present(iteration).count();
        if present == 0 {
            return Err(SimulateError::Nobody { iteration });
        }
        most = most.max(present);
    }
    if global_batch < quantum.max(1).saturating_mul(most as u64) {
        return Err(SimulateError::TooFewSamples { global_batch, workers: most, quantum });
    }
    Ok(())
}
