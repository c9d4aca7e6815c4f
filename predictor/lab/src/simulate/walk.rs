//! The loop over iterations: a policy splits the batch, the workers compute, and the policy gets their
//! reports.

use evenstep_core::hedge::{ClaimCost, PoolMember, TailWork, play};

use super::baselines::{Averages, EMA, Nothing, Oracle, Split, Warmup, WithoutSlowest, slowest};
use super::error::{CELLS_MAX, SimulateError};
use super::evenstep::{Evenstep, Fitter};
use super::policy::{Policy, Report, Shares};
use super::settings::{CLAIM, PolicyName, Settings};
use super::world::World;

/// Record of a policy over the iterations that count.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The policy.
    pub policy: PolicyName,
    /// Seconds per step, equal to the time of the slowest worker.
    pub step_time_s: Vec<f64>,
    /// Mean seconds per step that members waited for the slowest.
    pub wait_s: Vec<f64>,
    /// Mean seconds per step that members spent on claims.
    pub claim_s: Vec<f64>,
    /// Number of successful claims per step.
    pub chunks: Vec<u64>,
    /// Samples assigned before any claim, by iteration, then worker; 0 for workers that are not members.
    pub given: Vec<Vec<u64>>,
    /// Samples computed, by iteration, then worker; 0 for workers that are not members.
    pub shares: Vec<Vec<u64>>,
    /// Number of iterations whose shares before any claim differ from the previous iteration.
    pub changes: usize,
}

/// Runs a policy through a world. `fitter` fits the networks, possibly several in parallel.
///
/// # Errors
/// [`SimulateError`] if the settings do not fit the world.
pub fn walk(
    world: &World,
    policy: PolicyName,
    settings: &Settings,
    fitter: Fitter<'_>,
) -> Result<Run, SimulateError> {
    check(world, settings)?;
    let mut run = Run {
        policy,
        step_time_s: Vec::new(),
        wait_s: Vec::new(),
        claim_s: Vec::new(),
        chunks: Vec::new(),
        given: Vec::new(),
        shares: Vec::new(),
        changes: 0,
    };
    let mut policy = build(policy, world, settings, fitter);
    let mut before: Vec<u64> = Vec::new();
    let mut reports: Vec<Report<'_>> = Vec::new();
    for iteration in 0..world.iterations {
        let present: Vec<usize> = world.present(iteration).collect();
        policy.learn(&reports);
        let plan = policy.shares(iteration, &present)?;
        reports = step(world, iteration, &present, &plan, CLAIM);
        let given = by_worker(world, &present, plan.given().iter().copied());
        if iteration >= settings.warmup {
            let mean = |seconds: fn(&Report<'_>) -> f64| {
                reports.iter().map(seconds).sum::<f64>() / present.len() as f64
            };
            run.changes += usize::from(given != before);
            run.step_time_s.push(reports.iter().map(Report::busy_s).fold(0.0, f64::max));
            run.wait_s.push(mean(|report| report.barrier_wait_s));
            run.claim_s.push(mean(|report| report.tail.claim_s));
            run.chunks.push(reports.iter().map(|report| report.tail.chunks).sum());
            run.given.push(given.clone());
            run.shares.push(by_worker(world, &present, reports.iter().map(|report| report.batch)));
        }
        before = given;
    }
    Ok(run)
}

/// Creates a policy without history.
fn build<'a>(
    name: PolicyName,
    world: &'a World,
    settings: &Settings,
    fitter: Fitter<'a>,
) -> Box<dyn Policy + 'a> {
    let workers = world.workers.len();
    match name {
        PolicyName::Even => Box::new(Split { settings: settings.clone(), believed: Nothing }),
        PolicyName::StaticProportional => {
            Box::new(Split { settings: settings.clone(), believed: Warmup::new(workers, settings.warmup) })
        }
        PolicyName::LastValue => {
            Box::new(Split { settings: settings.clone(), believed: Averages::new(workers, 1.0) })
        }
        PolicyName::Ema => {
            Box::new(Split { settings: settings.clone(), believed: Averages::new(workers, EMA) })
        }
        PolicyName::Base => Box::new(Evenstep::new(world, settings, fitter, false)),
        PolicyName::Evenstep => Box::new(Evenstep::new(world, settings, fitter, true)),
        PolicyName::Oracle => Box::new(Oracle { settings: settings.clone(), world }),
        PolicyName::WithoutSlowest => {
            Box::new(WithoutSlowest { settings: settings.clone(), slowest: slowest(world, settings) })
        }
    }
}

fn by_worker(world: &World, present: &[usize], batches: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut shares = vec![0; world.workers.len()];
    for (worker, batch) in present.iter().zip(batches) {
        shares[*worker] = batch;
    }
    shares
}

/// Returns the reports of the workers on an iteration.
fn step<'a>(
    world: &'a World,
    iteration: usize,
    present: &[usize],
    plan: &Shares,
    cost: ClaimCost,
) -> Vec<Report<'a>> {
    let time_s = |rank: usize, batch: u64| {
        let worker = &world.workers[present[rank]];
        worker.form.curve(worker.slowdown[iteration]).time(batch)
    };
    let mut reports: Vec<Report<'a>> = present
        .iter()
        .zip(plan.given())
        .enumerate()
        .map(|(rank, (worker, batch))| Report {
            worker: *worker,
            batch: *batch,
            compute_time_s: time_s(rank, *batch),
            tail: TailWork::default(),
            barrier_wait_s: 0.0,
            // Drivers read at the end of this iteration are known just before the next.
            drivers: world.workers[*worker].drivers.get(iteration + 1).map_or(&[], Vec::as_slice),
        })
        .collect();
    if let Shares::Hedged(hedged) = plan {
        for pool in &hedged.pools {
            let hand = |rank: &usize| PoolMember {
                base: reports[*rank].batch,
                base_s: reports[*rank].compute_time_s,
            };
            let hands: Vec<PoolMember> = pool.members.iter().map(hand).collect();
            let time_s = |member: usize, samples| time_s(pool.members[member], samples);
            let took = play(&pool.chunks, &hands, &pool.expected, time_s, cost);
            for (rank, took) in pool.members.iter().zip(took) {
                let report = &mut reports[*rank];
                report.batch += took.samples;
                report.compute_time_s += took.compute_s;
                report.tail = took;
            }
        }
    }
    let step_time_s = reports.iter().map(Report::busy_s).fold(0.0, f64::max);
    for report in &mut reports {
        report.barrier_wait_s = step_time_s - report.busy_s();
    }
    reports
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
