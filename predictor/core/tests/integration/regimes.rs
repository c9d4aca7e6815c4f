//! Jobs in closed loop on speeds that change at once, compared with simple rules that meet the same speeds; on stalls; with
//! workers without samples.

use std::collections::VecDeque;
use std::ops::Range;

use evenstep_core::job::JobState;
use evenstep_protocol::{
    AllocateRequest, AllocateResponse, Allocation, JobId, JobSpec, TailReport, WorkerReport,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::world::{job, normal, plain, worker};

/// Seconds for a sample, by iteration and worker.
type World = Vec<Vec<f64>>;

/// Speeds that become `factor` times slower for `length` iterations, about every `gap` iterations on one of the workers.
#[derive(Debug, Clone, Copy)]
struct Bursts {
    noise: f64,
    factor: f64,
    length: usize,
    gap: f64,
    workers: usize,
}

impl Bursts {
    fn world(self, iterations: usize, seed: u64) -> World {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut until = vec![0; self.workers];
        let mut costs = |iteration| {
            if random.random_bool(1.0 / self.gap) {
                until[random.random_range(0..self.workers)] = iteration + self.length;
            }
            let cost = |(rank, until): (usize, &usize)| {
                let slow = if iteration < *until { self.factor } else { 1.0 };
                1e-3 * (1.0 + rank as f64 / 4.0) * slow * (self.noise * normal(&mut random)).exp()
            };
            until.iter().enumerate().map(cost).collect()
        };
        (0..iterations).map(&mut costs).collect()
    }
}

/// Worker 0 is `factor` times slower in these iterations.
fn once(workers: usize, factor: f64, slow: Range<usize>, iterations: usize, seed: u64) -> World {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut cost = |iteration: usize, rank: usize| {
        let slow = if rank == 0 && slow.contains(&iteration) { factor } else { 1.0 };
        1e-3 * (1 + rank % 4) as f64 * slow * (0.01 * normal(&mut random)).exp()
    };
    (0..iterations).map(|iteration| (0..workers).map(|rank| cost(iteration, rank)).collect()).collect()
}

/// Returns the allocation of each iteration with the compute times in seconds, by rank.
fn drive(
    state: &mut JobState,
    iterations: usize,
    time_s: impl FnMut(usize, &Allocation) -> f64,
) -> Vec<(AllocateResponse, Vec<f64>)> {
    drive_ahead(state, iterations, 0, time_s)
}

/// The same with reports that arrive this number of iterations late.
fn drive_ahead(
    state: &mut JobState,
    iterations: usize,
    ahead: usize,
    time_s: impl FnMut(usize, &Allocation) -> f64,
) -> Vec<(AllocateResponse, Vec<f64>)> {
    let mut waiting = VecDeque::new();
    let arrive = |state: &mut JobState, reports: Vec<WorkerReport>| {
        waiting.push_back(reports);
        if waiting.len() > ahead {
            state.observe(&waiting.pop_front().unwrap());
        }
    };
    drive_with(state, iterations, arrive, time_s)
}

/// The same with reports that `arrive` before the next request.
fn drive_with(
    state: &mut JobState,
    iterations: usize,
    mut arrive: impl FnMut(&mut JobState, Vec<WorkerReport>),
    mut time_s: impl FnMut(usize, &Allocation) -> f64,
) -> Vec<(AllocateResponse, Vec<f64>)> {
    let mut run = Vec::new();
    for iteration in 0..iterations {
        let request = AllocateRequest::new(JobId::new("job").unwrap(), 1, iteration as u64);
        let decided = state.decide(&request).unwrap();
        let answer = (*decided.answer).clone();
        state.apply(decided);
        let times: Vec<f64> = answer.allocations.iter().map(|share| time_s(iteration, share)).collect();
        let report = |(share, time_s): (&Allocation, &f64)| {
            WorkerReport::new(share.worker.clone(), iteration as u64, share.local_batch, *time_s)
        };
        let worked = answer.allocations.iter().zip(&times).filter(|(share, _)| share.local_batch > 0);
        arrive(state, worked.map(report).collect());
        run.push((answer, times));
    }
    run
}

/// Returns the time of each step over the shortest possible one.
fn planned(world: &World, spec: JobSpec) -> Vec<f64> {
    let global_batch = spec.global_batch;
    let mut state = job(spec, world[0].len());
    let run = drive(&mut state, world.len(), |iteration, share| {
        world[iteration][share.rank as usize] * share.local_batch as f64
    });
    run.iter().zip(world).map(|((_, times), costs)| over_ideal(times, costs, global_batch)).collect()
}

fn over_ideal(times: &[f64], costs: &[f64], global_batch: u64) -> f64 {
    let speed: f64 = costs.iter().map(|cost| 1.0 / cost).sum();
    times.iter().copied().fold(0.0, f64::max) * speed / global_batch as f64
}

/// A simple rule: from the measured speeds of all workers to their expected speeds.
type Rule = Box<dyn FnMut(&[f64]) -> Vec<f64>>;

fn average(weight: f64) -> Rule {
    let mut level: Vec<f64> = Vec::new();
    Box::new(move |speeds| {
        if level.is_empty() {
            level = speeds.to_vec();
        }
        for (level, speed) in level.iter_mut().zip(speeds) {
            *level += weight * (speed - *level);
        }
        level.clone()
    })
}

/// An average of the log speed that begins again when a residual exceeds four deviations.
fn change_point() -> Rule {
    let mut known: Vec<(f64, f64, f64)> = Vec::new();
    Box::new(move |speeds| {
        if known.is_empty() {
            known = speeds.iter().map(|speed| (speed.ln(), 0.1, 1.0)).collect();
        }
        for ((level, deviation, age), speed) in known.iter_mut().zip(speeds) {
            let error = speed.ln() - *level;
            if error.abs() > 4.0 * *deviation {
                (*level, *age) = (speed.ln(), 1.0);
            } else {
                *age += 1.0;
                *level += f64::max(0.2, 1.0 / *age) * error;
            }
            let error = error.clamp(-3.0 * *deviation, 3.0 * *deviation);
            *deviation = f64::max(1e-6, 0.95 * *deviation * *deviation + 0.05 * error * error).sqrt();
        }
        known.iter().map(|(level, ..)| level.exp()).collect()
    })
}

fn rules() -> [(&'static str, Rule); 3] {
    [("last", average(1.0)), ("average", average(0.5)), ("change point", change_point())]
}

fn by_rule(world: &World, global_batch: u64, mut rule: Rule) -> Vec<f64> {
    let workers = world[0].len();
    let mut batches = vec![global_batch / workers as u64; workers];
    let step = |costs: &Vec<f64>| {
        let times: Vec<f64> = costs.iter().zip(&batches).map(|(cost, batch)| cost * *batch as f64).collect();
        let speeds: Vec<f64> = costs.iter().map(|cost| 1.0 / cost).collect();
        batches = split(global_batch, &rule(&speeds));
        over_ideal(&times, costs, global_batch)
    };
    world.iter().map(step).collect()
}

/// Shares in proportion to the speeds, at least one sample each.
fn split(total: u64, speeds: &[f64]) -> Vec<u64> {
    let sum: f64 = speeds.iter().sum();
    let exact: Vec<f64> = speeds.iter().map(|speed| total as f64 * speed / sum).collect();
    let mut batches: Vec<u64> = exact.iter().map(|exact| (*exact as u64).max(1)).collect();
    let mut order: Vec<usize> = (0..speeds.len()).collect();
    let lacks = |rank: usize| batches[rank] as f64 - exact[rank];
    order.sort_by(|a, b| lacks(*a).total_cmp(&lacks(*b)));
    let missing = total.saturating_sub(batches.iter().sum());
    order.into_iter().take(missing as usize).for_each(|rank| batches[rank] += 1);
    batches
}

fn mean(steps: &[f64]) -> f64 {
    steps.iter().sum::<f64>() / steps.len() as f64
}

fn lost(steps: &[f64]) -> f64 {
    steps.iter().map(|step| step - 1.02).sum()
}

/// No worse than the best of the simple rules, of which each is good in some of these worlds.
#[test]
fn bursts_cost_no_more_than_with_the_best_simple_rule() {
    let bursts = |noise, factor, length, gap, workers| Bursts { noise, factor, length, gap, workers };
    for (seed, bursts) in [
        bursts(0.02, 3.0, 10, 30.0, 8),
        bursts(0.02, 10.0, 5, 30.0, 8),
        bursts(0.02, 2.0, 100, 50.0, 8),
        bursts(0.1, 3.0, 10, 30.0, 8),
        bursts(0.1, 2.0, 30, 15.0, 8),
        bursts(0.02, 3.0, 1, 20.0, 8),
        bursts(0.05, 5.0, 20, 40.0, 4),
        bursts(0.01, 4.0, 7, 25.0, 12),
    ]
    .into_iter()
    .enumerate()
    {
        let world = bursts.world(500, seed as u64);
        let global_batch = 128 * bursts.workers as u64;
        let ours = mean(&planned(&world, plain(global_batch))[150..]);
        let simple = rules().map(|(name, rule)| (name, mean(&by_rule(&world, global_batch, rule)[150..])));
        let best = simple.iter().map(|(_, mean)| *mean).fold(f64::INFINITY, f64::min);
        assert!(ours <= 1.03 * best, "{bursts:?}: {ours:.3}, {simple:.3?}");
    }
}

/// After a change and after a recovery, shares follow as soon as the last speed would, whatever the factor.
#[test]
fn a_change_and_a_recovery_are_followed_at_once() {
    for (at, factor) in [1.5, 3.0, 10.0, 100.0, 1000.0].into_iter().enumerate() {
        for slow in [150..155, 150..180, 120..usize::MAX] {
            let workers = [4, 8][at % 2];
            let world = once(workers, factor, slow.clone(), 220, at as u64);
            let global_batch = 64 * workers as u64;
            let settled = if slow.end < usize::MAX { slow.end } else { slow.start + 1 };
            let ours = lost(&planned(&world, plain(global_batch))[settled..]);
            let last = lost(&by_rule(&world, global_batch, average(1.0))[settled..]);
            assert!(
                ours <= last + 3.0,
                "{workers} workers, {factor} times slower in {slow:?}: {ours:.2}, {last:.2}"
            );
        }
    }
}

/// The speed changes again in the iteration in which the share follows the first change: that is no effect of the share.
#[test]
fn a_second_change_in_the_iteration_of_the_cut_is_followed_at_once() {
    let factors = [0.1, 0.5, 1.5, 3.0, 30.0];
    for (first, second) in factors.iter().flat_map(|first| factors.map(|second| (*first, second))) {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let cost_s = |iteration: usize, rank: u64| {
            let factor = [1.0, first, first * second][iteration.saturating_sub(149).min(2)];
            1e-3 * (rank + 1) as f64 * if rank == 0 { factor } else { 1.0 }
        };
        let mut state = job(plain(1024), 4);
        let run = drive(&mut state, 160, |iteration, share| {
            cost_s(iteration, share.rank) * share.local_batch as f64 * (0.01 * normal(&mut random)).exp()
        });
        for (iteration, (answer, _)) in run.iter().enumerate().skip(153) {
            let forecast = answer.allocations[0].predicted_speed_samples_per_s.unwrap();
            let error = (forecast * cost_s(iteration, 0)).ln().abs();
            assert!(error < 0.06, "{first}, then {second}: {error} at {iteration}");
        }
    }
}

/// In a wide job one worker matters little, but a small loss that lasts is ended, too.
#[test]
fn a_wide_job_gives_a_recovered_worker_its_share_again() {
    let workers = 300;
    let world = once(workers, 100.0, 20..25, 60, 1);
    let mut state = job(plain(64 * workers as u64), workers);
    let run = drive(&mut state, world.len(), |iteration, share| {
        world[iteration][share.rank as usize] * share.local_batch as f64
    });
    let share = |iteration: usize| run[iteration].0.allocations[0].local_batch;
    assert!(share(19) > 100 && share(24) < 10, "{} {}", share(19), share(24));
    assert!(share(59) > 100, "{}: {}", share(59), run[59].0.decision.reason);
}

/// A stall is not shorter with a smaller share, so shares stay.
#[test]
fn stalls_do_not_change_the_shares() {
    for (seed, (every, stall_s)) in [(30, 1.0), (50, 60.0), (100, 20.0)].into_iter().enumerate() {
        let mut random = ChaCha8Rng::seed_from_u64(seed as u64);
        let mut state = job(plain(256), 4);
        let is_stall =
            |iteration: usize, rank: u64| rank == 0 && iteration >= 200 && iteration.is_multiple_of(every);
        let run = drive(&mut state, 500, |iteration, share| {
            let compute_s = 1e-3 * (share.rank + 1) as f64 * share.local_batch as f64;
            let stall_s = if is_stall(iteration, share.rank) { stall_s } else { 0.0 };
            compute_s * (0.01 * normal(&mut random)).exp() + stall_s
        });
        let ideal_s = 256.0 / (1000.0 + 500.0 + 1000.0 / 3.0 + 250.0);
        let others =
            run.iter().enumerate().filter(|(iteration, _)| *iteration >= 200 && iteration % every > 0);
        let steps: Vec<f64> =
            others.map(|(_, (_, times))| times.iter().copied().fold(0.0, f64::max) / ideal_s).collect();
        assert!(mean(&steps) <= 1.03, "{stall_s} s every {every}: {}", mean(&steps));
    }
}

/// A worker without samples becomes the fastest. It is measured with the smallest batch, at a cost that does not grow with time.
#[test]
fn a_worker_without_samples_is_measured_again() {
    let sizes = JobSpec { allowed_sizes: vec![0, 32, 64, 96, 128], ..plain(128) };
    let floor = JobSpec { min_local_batch: Some(0), ..plain(60) };
    let quantum = JobSpec { min_local_batch: Some(0), quantum: 4, ..plain(64) };
    for (spec, slow_s, smallest, fair) in
        [(sizes, 0.2, 32, 64.0), (floor, 2.0, 1, 40.0), (quantum, 5.0, 4, 32.0)]
    {
        for (recovers, ahead) in [(40, 0), (usize::MAX, 0), (usize::MAX, 4)] {
            let mut random = ChaCha8Rng::seed_from_u64(4);
            let mut state = job(spec.clone(), 3);
            let run = drive_ahead(&mut state, 400, ahead, |iteration, share| {
                let slow_s = if iteration < recovers { slow_s } else { 0.0025 };
                let cost_s = if share.rank < 2 { 0.01 } else { slow_s };
                cost_s * share.local_batch as f64 * (0.02 * normal(&mut random)).exp()
            });
            let shares: Vec<u64> = run.iter().map(|(answer, _)| answer.allocations[2].local_batch).collect();
            if recovers < 400 {
                let mean = shares[300..].iter().sum::<u64>() as f64 / 100.0;
                assert!(mean >= fair / 2.0, "{spec:?}: {mean}, {shares:?}");
            } else {
                let measured: Vec<u64> = shares[20..].iter().copied().filter(|share| *share > 0).collect();
                assert!((2..=5).contains(&measured.len()), "{spec:?}: {measured:?}");
                assert!(measured.iter().all(|share| *share == smallest), "{spec:?}: {measured:?}");
                let batches = |at: usize| run[at].0.allocations.iter().map(|share| share.local_batch);
                for at in (20..400).filter(|at| shares[*at] > 0) {
                    let moved: u64 =
                        batches(at - 1).zip(batches(at)).map(|(one, other)| one.abs_diff(other)).sum();
                    assert_eq!(moved, 2 * smallest, "the other shares stay: {spec:?}");
                }
            }
            let may_probe = spec.allowed_sizes.is_empty();
            assert!(may_probe || state.models.probes().0 == 0, "a measurement is no probe of curves");
        }
    }
}

/// Reports of ranks may come in separate requests, in any order, and reports of one worker never.
#[test]
fn measurements_wait_for_their_reports() {
    for (first, is_silent) in [(0, false), (2, false), (0, true), (2, true)] {
        let mut random = ChaCha8Rng::seed_from_u64(4);
        let mut state = job(JobSpec { min_local_batch: Some(0), ..plain(60) }, 3);
        let mut later = Vec::new();
        let arrive = |state: &mut JobState, mut reports: Vec<WorkerReport>| {
            state.observe(&std::mem::take(&mut later));
            reports.retain(|report| !is_silent || report.iteration < 20 || report.worker != worker(2));
            let (now, rest) = reports.into_iter().partition(|report| report.worker == worker(first));
            later = rest;
            state.observe(&now);
        };
        let run = drive_with(&mut state, 1200, arrive, |_, share| {
            let cost_s = if share.rank < 2 { 0.01 } else { 5.0 };
            cost_s * share.local_batch as f64 * (0.02 * normal(&mut random)).exp()
        });
        let measured = |at: &usize| run[*at].0.allocations[2].local_batch > 0;
        let measured: Vec<usize> = (20..1200).filter(measured).collect();
        assert!((3..=6).contains(&measured.len()), "first {first}, silent {is_silent}: {measured:?}");
    }
}

/// Drives two workers of which one is a bit slower, with a report for every n-th iteration. Returns the first iteration with uneven
/// shares.
fn first_uneven(state: &mut JobState, every: u64) -> u64 {
    let uneven = (0..400).step_by(every as usize).find(|iteration| {
        let request = AllocateRequest::new(JobId::new("job").unwrap(), 1, *iteration);
        let decided = state.decide(&request).unwrap();
        let answer = decided.answer.clone();
        state.apply(decided);
        let report = |share: &Allocation| {
            let time_s = 1e-3 * (1.0 + 0.02 * share.rank as f64) * share.local_batch as f64;
            let report = WorkerReport::new(share.worker.clone(), *iteration, share.local_batch, time_s);
            WorkerReport { iterations: Some(every as f64), ..report }
        };
        state.observe(&answer.allocations.iter().map(report).collect::<Vec<_>>());
        answer.allocations[0].local_batch != answer.allocations[1].local_batch
    });
    uneven.unwrap_or(u64::MAX)
}

/// A client that reports every eighth iteration keeps each plan for eight, so a small gain that lasts is due as soon.
#[test]
fn small_gains_add_up_over_iterations_not_over_decisions() {
    let spec = JobSpec { profile: false, ..plain(400) };
    let [one, eight] = [1, 8].map(|every| first_uneven(&mut job(spec.clone(), 2), every));
    assert!((10..200).contains(&one) && eight < one + 80, "{one}, {eight}");
}

/// A run returns while 40 iterations were planned ahead. The first one after that stands for itself only.
#[test]
fn a_return_is_one_iteration() {
    let mut state = job(plain(60), 2);
    let mut drive = |from: u64, planned: u64, until: u64| {
        for position in from..planned {
            let request = AllocateRequest::new(JobId::new("job").unwrap(), 1, position);
            let decided = state.decide(&request).unwrap();
            let answer = decided.answer.clone();
            state.apply(decided);
            let report = |share: &Allocation| {
                WorkerReport::new(
                    share.worker.clone(),
                    position,
                    share.local_batch,
                    0.01 * share.local_batch as f64,
                )
            };
            if position < until {
                state.observe(&answer.allocations.iter().map(report).collect::<Vec<_>>());
            }
        }
        state.attempts.push(state.next_attempt(10, planned));
        state.models.stride()
    };
    assert_eq!([drive(0, 60, 20), drive(60, 100, 70), drive(100, 110, 110)], [1.0; 3]);
}

/// Tails compensate for noise, and one worker whose reports are lost does not end that.
#[test]
fn a_worker_that_does_not_report_leaves_hedging_to_the_others() {
    let tails = |reports: &dyn Fn(usize) -> bool| {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let mut state = job(JobSpec::new(800), 8);
        state.workers.values_mut().for_each(|worker| worker.request.claims = true);
        let mut count = 0;
        for iteration in 0..260 {
            let request = AllocateRequest::new(JobId::new("job").unwrap(), 1, iteration as u64);
            let decided = state.decide(&request).unwrap();
            let answer = (*decided.answer).clone();
            state.apply(decided);
            count += usize::from(iteration >= 200 && answer.tail.is_some());
            let mut seen: Vec<WorkerReport> = Vec::new();
            for share in &answer.allocations {
                let speed = 100.0 * (0.25 * normal(&mut random)).exp();
                let samples = answer.tail.as_ref().and(share.planned_batch).unwrap_or(share.local_batch);
                let mut report = WorkerReport::new(
                    share.worker.clone(),
                    iteration as u64,
                    samples,
                    samples as f64 / speed,
                );
                let claimed = samples - share.local_batch;
                report.tail = (claimed > 0).then(|| TailReport {
                    chunks: (claimed / 4).max(1),
                    samples: claimed,
                    compute_time_s: claimed as f64 / speed,
                    claim_time_s: 0.001,
                });
                seen.push(report);
            }
            seen.retain(|report| report.worker != answer.allocations[2].worker || reports(iteration));
            state.observe(&seen);
        }
        count
    };
    assert!(tails(&|_| true) >= 54);
    assert!(tails(&|iteration| iteration % 20 == 0) >= 48);
    assert!(tails(&|iteration| iteration <= 60) >= 48);
}
