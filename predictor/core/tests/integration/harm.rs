//! A job in closed loop on times that no plan can follow: it must not be slower than with even shares.

use std::collections::{BTreeSet, VecDeque};

use evenstep_protocol::{AllocateRequest, Allocation, JobId, WorkerReport};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::world::{job, normal, plain};

const ITERATIONS: usize = 200;
const WORKERS: usize = 4;
const GLOBAL_BATCH: u64 = 256;
const SEEDS: u64 = 2;
/// Seconds of a sample.
const UNIT_S: f64 = 1e-3;

/// Compute time over iteration, worker and number of samples, in times of a sample.
type Trace = Box<dyn FnMut(usize, usize, u64) -> f64>;

fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Returns traces of many kinds, with their names.
fn traces(seed: u64) -> Vec<(String, Trace)> {
    let mut all: Vec<(String, Trace)> = Vec::new();
    for noise in [0.02, 0.05, 0.1, 0.15, 0.3, 0.6] {
        let mut random = rng(seed);
        all.push((
            format!("white noise {noise}"),
            Box::new(move |_, _, batch| batch as f64 * (noise * normal(&mut random)).exp()),
        ));
        let mut random = rng(seed);
        all.push((
            format!("affine, white noise {noise}"),
            Box::new(move |_, _, batch| (batch as f64 + 30.0) * (noise * normal(&mut random)).exp()),
        ));
        let mut random = rng(seed);
        let mut level = [0.0; 16];
        all.push((
            format!("anti-persistent {noise}"),
            Box::new(move |_, worker, batch| {
                level[worker] = -0.8 * level[worker] + noise * normal(&mut random);
                batch as f64 * level[worker].exp()
            }),
        ));
    }
    for period in [1, 2, 3, 5, 8, 13, 20, 40] {
        for slow in [1.5, 3.0] {
            let mut random = rng(seed);
            all.push((
                format!("rotates every {period}, {slow} times"),
                Box::new(move |iteration, worker, batch| {
                    let factor = if (iteration / period) % 4 == worker { slow } else { 1.0 };
                    batch as f64 * factor * (0.02 * normal(&mut random)).exp()
                }),
            ));
            let mut random = rng(seed);
            let mut at = 0;
            all.push((
                format!("jumps every {period}, {slow} times"),
                Box::new(move |iteration, worker, batch| {
                    if worker == 0 && iteration % period == 0 {
                        at = random.random_range(0..4);
                    }
                    let factor = if at == worker { slow } else { 1.0 };
                    batch as f64 * factor * (0.02 * normal(&mut random)).exp()
                }),
            ));
        }
    }
    for chance in [0.02, 0.1, 0.3] {
        let mut random = rng(seed);
        all.push((
            format!("pauses with chance {chance}"),
            Box::new(move |_, _, batch| {
                let pause = if random.random_bool(chance) { 200.0 } else { 0.0 };
                batch as f64 * (0.02 * normal(&mut random)).exp() + pause
            }),
        ));
        let mut random = rng(seed);
        all.push((
            format!("times 4 with chance {chance}"),
            Box::new(move |_, _, batch| {
                let factor = if random.random_bool(chance) { 4.0 } else { 1.0 };
                batch as f64 * factor * (0.02 * normal(&mut random)).exp()
            }),
        ));
    }
    // A size that is new to a worker is compiled first.
    for cost in [20.0, 100.0] {
        let mut random = rng(seed);
        let mut known = BTreeSet::new();
        all.push((
            format!("compiles for {cost} ms"),
            Box::new(move |_, worker, batch| {
                let compile = if known.insert((worker, batch)) { cost } else { 0.0 };
                batch as f64 * (0.1 * normal(&mut random)).exp() + compile
            }),
        ));
    }
    // Anything above the even share is out of cache, and worker 0 is slow.
    let mut random = rng(seed);
    all.push((
        "a cliff above the even share".into(),
        Box::new(move |_, worker, batch| {
            let slow = if worker == 0 { 1.1 } else { 1.0 };
            slow * batch as f64 * if batch > 64 { 1.5 } else { 1.0 } * (0.02 * normal(&mut random)).exp()
        }),
    ));
    // As on GPUs that are not saturated: a smaller share takes as long as the even one.
    let mut random = rng(seed);
    all.push((
        "flat up to the even share".into(),
        Box::new(move |_, worker, batch| {
            let slow = if worker == 0 { 1.2 } else { 1.0 };
            slow * batch.max(64) as f64 * (0.02 * normal(&mut random)).exp()
        }),
    ));
    for length in [6, 25] {
        let mut random = rng(seed);
        let mut slow = [false; WORKERS];
        all.push((
            format!("shared cores for {length} iterations"),
            Box::new(move |iteration, worker, batch| {
                if iteration % length == 0 {
                    slow[worker] = random.random_bool(0.3);
                }
                batch as f64 * if slow[worker] { 2.0 } else { 1.0 } * (0.02 * normal(&mut random)).exp()
            }),
        ));
    }
    let mut random = rng(seed);
    all.push((
        "slows down when it has more".into(),
        Box::new(move |_, worker, batch| {
            let slow = if worker == 0 { 1.3 } else { 1.0 };
            slow * batch as f64 * (batch as f64 / 64.0).max(1.0) * (0.05 * normal(&mut random)).exp()
        }),
    ));
    for slow in [1.02, 1.05, 1.1, 2.0] {
        let mut random = rng(seed);
        all.push((
            format!("one worker {slow} times slower, noise 0.1"),
            Box::new(move |_, worker, batch| {
                let factor = if worker == 0 { slow } else { 1.0 };
                batch as f64 * factor * (0.1 * normal(&mut random)).exp()
            }),
        ));
    }
    let mut random = rng(seed);
    all.push((
        "slow from 100 on".into(),
        Box::new(move |iteration, worker, batch| {
            let factor = if worker == 0 && iteration >= 100 { 2.0 } else { 1.0 };
            batch as f64 * factor * (0.1 * normal(&mut random)).exp()
        }),
    ));
    all
}

/// Numbers of exchanges by which reports and plans arrive late. Until a plan arrives, workers keep the one before.
#[derive(Debug, Clone, Copy)]
struct Late {
    reports: usize,
    plans: usize,
    /// Number of iterations from one exchange to the next. Each report stands for that many, with their mean times.
    every: usize,
}

const PROMPT: Late = Late { reports: 0, plans: 0, every: 1 };

/// Returns the time of these iterations, in seconds.
fn planned_s(trace: &mut Trace, late: Late, iterations: usize) -> f64 {
    let mut state = job(plain(GLOBAL_BATCH), WORKERS);
    let mut waiting: VecDeque<Vec<WorkerReport>> = VecDeque::new();
    let mut plans: VecDeque<Vec<Allocation>> = VecDeque::new();
    let mut sum_s = 0.0;
    for first in (0..iterations).step_by(late.every) {
        if waiting.len() > late.reports
            && let Some(reports) = waiting.pop_front()
        {
            state.observe(&reports);
        }
        let request = AllocateRequest::new(JobId::new("job").unwrap(), 1, first as u64);
        let decided = state.decide(&request).unwrap();
        plans.push_back(decided.answer.allocations.clone());
        state.apply(decided);
        if plans.len() > late.plans + 1 {
            plans.pop_front();
        }
        let report = |share: &Allocation| {
            let mut report = WorkerReport::new(share.worker.clone(), first as u64, share.local_batch, 0.0);
            report.iterations = (late.every > 1).then_some(late.every as f64);
            report
        };
        let mut reports: Vec<WorkerReport> = plans[0].iter().map(report).collect();
        let mut whole_s = 0.0;
        for iteration in first..first + late.every {
            let mut step_s: f64 = 0.0;
            for (share, report) in plans[0].iter().zip(&mut reports) {
                let time_s = UNIT_S * trace(iteration, share.rank as usize, share.local_batch);
                report.compute_time_s += time_s / late.every as f64;
                step_s = step_s.max(time_s);
            }
            whole_s += step_s;
        }
        for report in &mut reports {
            report.barrier_wait_s = Some(whole_s / late.every as f64 - report.compute_time_s);
        }
        waiting.push_back(reports);
        sum_s += whole_s;
    }
    sum_s
}

/// Returns the time of the same iterations with even shares, in seconds.
fn even_s(trace: &mut Trace, iterations: usize) -> f64 {
    let mut time_s = |iteration, rank| UNIT_S * trace(iteration, rank, GLOBAL_BATCH / WORKERS as u64);
    (0..iterations)
        .map(|iteration| (0..WORKERS).map(|rank| time_s(iteration, rank)).fold(0.0, f64::max))
        .sum()
}

/// Returns the gain in each trace that `is_wanted`, with its name.
fn gains(late: Late, is_wanted: impl Fn(&str) -> bool) -> Vec<(String, f64)> {
    let mut gains = Vec::new();
    for seed in 0..SEEDS {
        for ((name, mut trace), (_, mut same)) in traces(seed).into_iter().zip(traces(seed)) {
            if is_wanted(&name) {
                gains.push((
                    format!("{name}, seed {seed}"),
                    even_s(&mut same, ITERATIONS) / planned_s(&mut trace, late, ITERATIONS),
                ));
            }
        }
    }
    gains
}

fn is_noise(name: &str) -> bool {
    name.contains("noise") || name.contains("anti-persistent")
}

#[track_caller]
fn loses_at_most(share: f64, gains: &[(String, f64)]) {
    let lost: Vec<&(String, f64)> = gains.iter().filter(|(_, gain)| *gain < 1.0 - share).collect();
    assert!(!gains.is_empty() && lost.is_empty(), "{lost:?} of {}", gains.len());
}

#[test]
fn plans_that_follow_noise_lose_at_most_one_percent() {
    loses_at_most(0.01, &gains(PROMPT, is_noise));
}

#[test]
fn plans_that_come_too_late_or_cost_more_lose_at_most_one_percent() {
    let is_costly = |name: &str| name == "compiles for 100 ms";
    loses_at_most(0.01, &gains(PROMPT, |name| !is_noise(name) && !is_costly(name)));
    // One new size costs one and a half iterations, before anything is known about it.
    loses_at_most(0.02, &gains(PROMPT, is_costly));
}

/// Losses are known when their reports arrive. Until then they continue.
#[test]
fn late_reports_lose_little_more() {
    loses_at_most(0.04, &gains(Late { reports: 3, ..PROMPT }, |_| true));
}

/// The reports of fast jobs stand for several iterations, and their plans come after them.
#[test]
fn reports_of_several_iterations_lose_little_more() {
    loses_at_most(0.06, &gains(Late { plans: 1, every: 5, ..PROMPT }, |_| true));
}

/// Workers that keep older plans are compared by the samples that they computed.
#[test]
fn late_plans_lose_little_more() {
    loses_at_most(0.04, &gains(Late { plans: 2, ..PROMPT }, |_| true));
}

#[test]
fn gains_are_kept() {
    for late in [PROMPT, Late { reports: 3, ..PROMPT }] {
        for (name, gain) in
            gains(late, |name| name.starts_with("one worker 2 times") || name.contains("every 40"))
        {
            let least = if name.contains("1.5 times") { 1.2 } else { 1.5 };
            assert!(gain > least, "{name}, {late:?}: {gain:.3}");
        }
    }
}

/// In noise, planned shares lose many iterations by chance. That must not take the gain of a long run. The gain of one run varies by
/// several percent, so the mean of eight counts.
#[test]
fn gains_in_noise_are_kept() {
    for (noise, pauses, slow, least) in [(0.3, 0.0, 1.5, 1.08), (0.1, 0.3, 3.0, 1.2)] {
        let mut gains = Vec::new();
        for late in [PROMPT, Late { reports: 2, ..PROMPT }] {
            let gain = |seed| {
                let trace = || -> Trace {
                    let mut random = rng(seed);
                    Box::new(move |_, worker, batch| {
                        let factor = if worker == 0 { slow } else { 1.0 };
                        let pause = if random.random_bool(pauses) { 150.0 } else { 0.0 };
                        factor * batch as f64 * (noise * normal(&mut random)).exp() + pause
                    })
                };
                even_s(&mut trace(), 1000) / planned_s(&mut trace(), late, 1000)
            };
            gains.extend((0..4).map(gain));
        }
        let mean = gains.iter().sum::<f64>() / gains.len() as f64;
        assert!(mean > least, "noise {noise}, pauses {pauses}, {slow} times: {mean:.3} of {gains:.3?}");
    }
}

/// A worker that becomes slow for good needs planned shares, and so do workers whose common work changes.
#[test]
fn lasting_changes_are_followed() {
    for (slow, least) in [(2.0, 1.48), (1.3, 1.12)] {
        let mut sum = 0.0;
        for seed in 0..4 {
            let trace = || -> Trace {
                let mut random = rng(seed);
                Box::new(move |iteration, worker, batch| {
                    let factor = if worker == 0 && iteration >= 50 { slow } else { 1.0 };
                    batch as f64 * factor * (0.02 * normal(&mut random)).exp()
                })
            };
            let (even_s, planned_s) =
                (even_s(&mut trace(), ITERATIONS), planned_s(&mut trace(), PROMPT, ITERATIONS));
            sum += even_s / planned_s;
        }
        assert!(sum / 4.0 > least, "{slow}: {}", sum / 4.0);
    }
    for period in [10, 20] {
        let trace = || -> Trace {
            let mut random = rng(7);
            Box::new(move |iteration, worker, batch| {
                let work = if iteration / period % 2 == 0 { 1.0 } else { 1.6 };
                let factor = if worker == 0 { 1.2 } else { 1.0 };
                work * factor * batch as f64 * (0.02 * normal(&mut random)).exp()
            })
        };
        let gain = even_s(&mut trace(), ITERATIONS) / planned_s(&mut trace(), PROMPT, ITERATIONS);
        assert!(gain > 1.05, "period {period}: {gain}");
    }
}
