//! Jobs in closed loop on speeds that change at once, compared with simple rules that meet the same speeds.

use evenstep_core::job::JobState;
use evenstep_protocol::{AllocateRequest, AllocateResponse, Allocation, JobId, JobSpec, WorkerReport};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::world::{job, normal, plain};

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
fn once(workers: usize, factor: f64, slow: std::ops::Range<usize>, iterations: usize, seed: u64) -> World {
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
        let mut reports: Vec<WorkerReport> = worked.map(report).collect();
        let step_s = times.iter().copied().fold(0.0, f64::max);
        reports.iter_mut().for_each(|report| report.barrier_wait_s = Some(step_s - report.compute_time_s));
        state.observe(&reports);
        run.push((answer, times));
    }
    run
}

/// Returns the time of each step over the shortest possible one.
fn planned(world: &World, spec: JobSpec) -> Vec<f64> {
    let global_batch = spec.global_batch;
    let spec = JobSpec { min_gain: std::env::var("MG").map_or(spec.min_gain, |v| v.parse().unwrap()), ..spec };
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

/// An average of the log speed that begins anew when a residual exceeds four deviations.
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

#[test]
#[ignore]
fn scratch() {
    let env = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let seeds = env("SEEDS", 1);
    let what = std::env::var("WHAT").unwrap_or("bosw".into());
    let worlds = [
        (0.02, 3.0, 10, 30.0, 8, 1024),
        (0.02, 10.0, 5, 30.0, 8, 1024),
        (0.02, 2.0, 100, 50.0, 8, 1024),
        (0.02, 2.0, 30, 15.0, 8, 1024),
        (0.1, 3.0, 10, 30.0, 8, 1024),
        (0.02, 30.0, 5, 60.0, 8, 1024),
        (0.02, 100.0, 5, 200.0, 8, 1024),
        (0.1, 2.0, 30, 15.0, 8, 1024),
        (0.02, 3.0, 3, 10.0, 8, 1024),
        (0.05, 5.0, 20, 40.0, 4, 512),
        (0.05, 1.5, 50, 40.0, 16, 2048),
        (0.15, 4.0, 20, 40.0, 6, 900),
        (0.01, 4.0, 7, 25.0, 12, 4096),
        (0.02, 3.0, 1, 20.0, 8, 1024),
        (0.02, 3.0, 2, 20.0, 8, 1024),
    ];
    if what.contains('b') {
        for (noise, factor, length, gap, workers, batch) in worlds {
            for seed in 3..3 + seeds {
                let world = Bursts { noise, factor, length, gap, workers }.world(700, seed);
                let ours = mean(&planned(&world, plain(batch))[200..]);
                let simple: Vec<(&str, f64)> = rules().into_iter().map(|(n, r)| (n, mean(&by_rule(&world, batch, r)[200..]))).collect();
                let best = simple.iter().map(|s| s.1).fold(9e9, f64::min);
                println!("{} noise {noise} {factor}x for {length} every {gap} w{workers}: {ours:.3} {:.3} {simple:.3?}", if ours <= 1.03 * best { "ok " } else { "BAD" }, ours / best);
            }
        }
    }
    if what.contains('o') {
        for workers in [4, 8] {
            for factor in [1.5, 3.0, 10.0, 100.0, 1000.0] {
                for (first, last, n) in [(300, 305, 450), (300, 303, 450), (300, 330, 450), (100, 1 << 30, 200), (300, 302, 450)] {
                    let world = once(workers, factor, first..last, n, 1);
                    let settled = if last < n { last } else { first };
                    let ours = lost(&planned(&world, plain(64 * workers as u64))[settled..]);
                    let simple: Vec<(&str, f64)> = rules().into_iter().map(|(n, r)| (n, lost(&by_rule(&world, 64 * workers as u64, r)[settled..]))).collect();
                    println!("{} w{workers} {factor}x {first}..{last}: {ours:.2} {simple:.2?}", if ours <= simple[0].1 + 3.0 { "ok " } else { "BAD" });
                }
            }
        }
    }
    if what.contains('s') {
        for every in [30, 100] {
            for stall in [1.0, 5.0, 20.0, 60.0] {
                let mut random = ChaCha8Rng::seed_from_u64(1);
                let mut state = job(plain(256), 4);
                let ideal = 256.0 / (1000.0 + 500.0 + 1000.0 / 3.0 + 250.0);
                let run = drive(&mut state, 600, |k, share| {
                    let stall = if share.rank == 0 && k >= 300 && k % every == 0 { stall } else { 0.0 };
                    1e-3 * (share.rank + 1) as f64 * share.local_batch as f64 * (0.01 * normal(&mut random)).exp() + stall
                });
                let steps: Vec<f64> = run.iter().enumerate().filter(|(k, _)| *k >= 300 && k % every > 0)
                    .map(|(_, (_, times))| times.iter().copied().fold(0.0, f64::max) / ideal).collect();
                let m = mean(&steps);
                println!("{} stall {stall} every {every}: {m:.3}, max {:.2}", if m <= 1.03 { "ok " } else { "BAD" }, steps.iter().copied().fold(0.0, f64::max));
            }
        }
    }
    if what.contains('w') {
        for workers in [300] {
            for factor in [100.0] {
                let world = once(workers, factor, 60..65, 130, 1);
                let mut state = job(plain(64 * workers as u64), workers);
                let run = drive(&mut state, world.len(), |k, share| world[k][share.rank as usize] * share.local_batch as f64);
                for (k, (answer, times)) in run.iter().enumerate() {
                    if k >= 56 && k % 2 == 0 {
                        println!("{k} {} {:.3} {}", answer.allocations[0].local_batch, over_ideal(times, &world[k], 64 * workers as u64), answer.decision.reason);
                    }
                }
            }
        }
    }
    if what.contains('p') {
        for seed in 0..2 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut known = std::collections::BTreeSet::new();
            let mut state = job(plain(256), 4);
            let run = drive(&mut state, 200, |_, share| {
                let compile = if known.insert((share.rank, share.local_batch)) { 100.0 } else { 0.0 };
                1e-3 * (share.local_batch as f64 * (0.1 * normal(&mut random)).exp() + compile)
            });
            let mut last = vec![];
            let sum: f64 = run.iter().map(|(_, t)| t.iter().copied().fold(0.0, f64::max)).sum();
            println!("seed {seed}: {sum}");
            for (k, (answer, _)) in run.iter().enumerate() {
                let b: Vec<u64> = answer.allocations.iter().map(|a| a.local_batch).collect();
                if b != last { println!("{k} {b:?} {}", answer.decision.reason); }
                last = b;
            }
        }
    }
    if what.contains('z') {
        for (spec, slow, fair) in [
            (JobSpec { allowed_sizes: vec![0, 32, 64, 96, 128], ..plain(128) }, 0.2, 64),
            (JobSpec { min_local_batch: Some(0), ..plain(60) }, 2.0, 40),
            (JobSpec { allowed_sizes: vec![0, 8, 16, 24, 32, 40, 48], ..plain(64) }, 0.1, 32),
            (JobSpec { min_local_batch: Some(0), quantum: 4, ..plain(64) }, 5.0, 32),
        ] {
            for until in [40, 70, 150] {
                let mut random = ChaCha8Rng::seed_from_u64(4);
                let mut state = job(spec.clone(), 3);
                let run = drive(&mut state, 400, |k, share| {
                    let cost = if share.rank < 2 { 0.01 } else if k < until { slow } else { 0.0025 };
                    cost * share.local_batch as f64 * (0.02 * normal(&mut random)).exp()
                });
                let batches: Vec<u64> = run.iter().map(|(a, _)| a.allocations[2].local_batch).collect();
                let m = batches[350..].iter().sum::<u64>() as f64 / 50.0;
                let changes: Vec<(usize, u64)> = (1..400).filter(|k| batches[*k] != batches[k - 1]).map(|k| (k, batches[k])).collect();
                println!("{} until {until}: {m} of {fair}: {changes:?}", if m >= fair as f64 / 2.0 { "ok " } else { "BAD" });
            }
        }
    }
    if what.contains('l') {
        let world = once(4, 1000.0, 100..1 << 30, 200, 1);
        let mut state = job(plain(256), 4);
        let run = drive(&mut state, world.len(), |k, share| world[k][share.rank as usize] * share.local_batch as f64);
        let simple = by_rule(&world, 256, average(1.0));
        for (k, (answer, times)) in run.iter().enumerate().skip(98) {
            let b: Vec<u64> = answer.allocations.iter().map(|a| a.local_batch).collect();
            println!("{k} {b:?} {:.3} {:.3} {}", over_ideal(times, &world[k], 256), simple[k], answer.decision.reason);
        }
    }
    if what.contains('q') {
        for late in [0, 2] { for seed in 0..2 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut state = job(plain(256), 4);
            let mut waiting = std::collections::VecDeque::new();
            let mut steps = vec![];
            let mut shares = vec![];
            let mut held = vec![];
            for iteration in 0..1000u64 {
                if waiting.len() > late { let r: Vec<WorkerReport> = waiting.pop_front().unwrap(); state.observe(&r); }
                let request = AllocateRequest::new(JobId::new("job").unwrap(), 1, iteration);
                let decided = state.decide(&request).unwrap();
                let answer = (*decided.answer).clone();
                state.apply(decided);
                let times: Vec<f64> = answer.allocations.iter().map(|share| {
                    let factor = if share.rank == 0 { 3.0 } else { 1.0 };
                    let pause = if random.random_bool(0.3) { 150.0 } else { 0.0 };
                    1e-3 * (factor * share.local_batch as f64 * (0.1 * normal(&mut random)).exp() + pause)
                }).collect();
                let step_s = times.iter().copied().fold(0.0, f64::max);
                waiting.push_back(answer.allocations.iter().zip(&times).map(|(share, time_s)| {
                    let mut report = WorkerReport::new(share.worker.clone(), iteration, share.local_batch, *time_s);
                    report.barrier_wait_s = Some(step_s - time_s);
                    report
                }).collect::<Vec<_>>());
                steps.push(step_s); shares.push(answer.allocations[0].local_batch as f64); held.push(f64::from(u8::from(answer.decision.reason.starts_with("even"))));
            }
            println!("late {late} seed {seed}: {:.4}", mean(&steps));
            for k in 0..10 { let r = 100 * k..100 * k + 100; println!("   {:.3} {:.1} {:.2}", mean(&steps[r.clone()]), mean(&shares[r.clone()]), mean(&held[r])); }
        } }
    }
    if what.contains('k') {
        for (noise, slow, workers) in [(0.3, 1.5, 16), (0.6, 1.5, 4)] {
            for seed in 0..seeds {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                let world: World = (0..600).map(|_| (0..workers).map(|rank| 1e-3 * if rank == 0 { slow } else { 1.0 } * (noise * normal(&mut random)).exp()).collect()).collect();
                let mut state = job(plain(64 * workers as u64), workers);
                let run = drive(&mut state, world.len(), |k, share| world[k][share.rank as usize] * share.local_batch as f64);
                let mut by: std::collections::BTreeMap<String, (usize, f64, f64)> = Default::default();
                let mut errors = vec![0.0; workers];
                for (k, (answer, times)) in run.iter().enumerate().skip(200) {
                    let reason: String = answer.decision.reason.chars().filter(|c| !c.is_ascii_digit()).take(28).collect();
                    let e = by.entry(reason).or_default();
                    e.0 += 1;
                    e.1 += over_ideal(times, &world[k], 64 * workers as u64);
                    e.2 += answer.allocations[0].local_batch as f64;
                    for (rank, share) in answer.allocations.iter().enumerate() {
                        let truth = 1e3 / if rank == 0 { slow } else { 1.0 };
                        errors[rank] += (share.predicted_speed_samples_per_s.unwrap() / truth).ln().powi(2) / 400.0;
                    }
                }
                println!("rmse {:.4} first {:.4}", (errors.iter().sum::<f64>() / workers as f64).sqrt(), errors[0].sqrt());
                for (reason, (n, sum, batch)) in by {
                    println!("  {n} {:.3} {:.1} {reason}", sum / n as f64, batch / n as f64);
                }
            }
        }
    }
    if what.contains('n') {
        for (noise, slow, workers) in [(0.02, 1.5, 4), (0.1, 1.5, 4), (0.3, 1.5, 4), (0.6, 1.5, 4), (0.3, 1.5, 16)] {
            let mut all = [0.0; 3];
            let seeds = 8;
            for seed in 0..seeds {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                let world: World = (0..600).map(|_| (0..workers).map(|rank| 1e-3 * if rank == 0 { slow } else { 1.0 } * (noise * normal(&mut random)).exp()).collect()).collect();
                let steps = planned(&world, plain(64 * workers as u64));
                let oracle: Vec<f64> = world.iter().map(|costs| {
                    let speeds: Vec<f64> = (0..workers).map(|rank| if rank == 0 { 1.0 / slow } else { 1.0 }).collect();
                    let batches = split(64 * workers as u64, &speeds);
                    let times: Vec<f64> = costs.iter().zip(batches).map(|(c, b)| c * b as f64).collect();
                    over_ideal(&times, costs, 64 * workers as u64)
                }).collect();
                for (sum, (from, to)) in all.iter_mut().zip([(20, 60), (60, 200), (200, 600)]) {
                    *sum += mean(&steps[from..to]) / mean(&oracle[from..to]) / seeds as f64;
                }
            }
            println!("noise {noise} slow {slow} w{workers}: {all:.4?}");
        }
    }
}
