//! A job in closed loop: workers follow known laws of time, and the reported gain is compared with the true one.
//!
//! The shares must be near the optimum, and the time with even shares must agree with the law, although a job in balance
//! never computes even shares again. Times have 1 % of noise and a slow drift.

use evenstep_protocol::{AllocateRequest, DecisionKind, JobId, JobSpec, WorkerOverride, WorkerReport};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::world::{Law, affine, flat, job, normal, plain, tiles, worker};

/// Iterations of a run: they include the start, when all shares are even.
const ITERATIONS: u64 = 400;

/// The least time in which the workers can compute the global batch: found by bisection.
fn optimum_s(laws: &[Law], global_batch: u64) -> f64 {
    let fits = |time_s: f64| {
        let most = |law: &Law| (0..=global_batch).rev().find(|samples| law.time_s(*samples) <= time_s);
        laws.iter().filter_map(most).sum::<u64>() >= global_batch
    };
    let (mut low, mut high) = (0.0, laws.iter().map(|law| law.time_s(global_batch)).fold(0.0, f64::max));
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if fits(middle) { high = middle } else { low = middle }
    }
    high
}

#[derive(Debug)]
struct Run {
    /// Step times, in seconds.
    steps: Vec<f64>,
    /// The true times with even shares, under the same noise.
    even: Vec<f64>,
    /// The estimated ones, with their standard deviations, and the measured times that they are compared with.
    said: Vec<(f64, f64, f64)>,
    probes: usize,
}

impl Run {
    fn gain(&self) -> f64 {
        self.even.iter().sum::<f64>() / self.steps.iter().sum::<f64>()
    }

    fn said(&self) -> f64 {
        let sum = |of: fn(&(f64, f64, f64)) -> f64| self.said.iter().map(of).sum::<f64>();
        sum(|said| said.0) / sum(|said| said.2)
    }

    /// Half of the 90 % interval: the doubt about the curves, and 1 % for the noise of the times.
    fn half_width(&self) -> f64 {
        let sum = |of: fn(&(f64, f64, f64)) -> f64| self.said.iter().map(of).sum::<f64>();
        1.645 * sum(|said| said.1) / sum(|said| said.2) + 0.01
    }
}

/// Runs a job. Every tenth iteration has `ragged` samples, if that is given.
fn run(laws: &[Law], spec: JobSpec, seed: u64, noise: f64, ragged: Option<u64>) -> Run {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut normal = || normal(&mut random);
    let mut state = job(spec, laws.len());
    let mut drift = vec![0.0_f64; laws.len()];
    let mut run = Run { steps: Vec::new(), even: Vec::new(), said: Vec::new(), probes: 0 };
    let mut reports = Vec::new();
    for iteration in 0..ITERATIONS {
        let observed = state.observe(&reports);
        run.said.extend(observed.even.iter().map(|even| (even.even_finish_s, even.doubt_s, even.finish_s)));
        let mut request = AllocateRequest::new(JobId::new("job").unwrap(), 1, iteration);
        request.global_batch = ragged.filter(|_| iteration % 10 == 9);
        let decided = state.decide(&request).unwrap();
        let answer = decided.answer.clone();
        state.apply(decided);
        run.probes += usize::from(answer.decision.kind == DecisionKind::Profiling);
        let even = answer.global_batch / laws.len() as u64;
        let (mut step_s, mut even_s) = (0.0_f64, 0.0_f64);
        reports = Vec::new();
        for ((law, drift), share) in laws.iter().zip(&mut drift).zip(&answer.allocations) {
            *drift = 0.98 * *drift + 0.2 * noise * normal();
            let factor = (*drift + noise * normal()).exp();
            let time_s = factor * law.time_s(share.local_batch);
            (step_s, even_s) = (step_s.max(time_s), even_s.max(factor * law.time_s(even)));
            if share.local_batch > 0 {
                reports.push(WorkerReport::new(share.worker.clone(), iteration, share.local_batch, time_s));
            }
        }
        for report in &mut reports {
            report.barrier_wait_s = Some(step_s - report.compute_time_s);
        }
        run.steps.push(step_s);
        run.even.push(even_s);
    }
    run
}

fn laws() -> Vec<(&'static str, [Law; 4], u64)> {
    let fast = affine(0.0, 1.0);
    vec![
        ("proportional", [affine(0.0, 4.0), affine(0.0, 2.0), affine(0.0, 2.0), fast], 256),
        ("one fixed time of 20 ms", [fast, affine(0.02, 1.0), fast, fast], 256),
        ("one fixed time of 50 ms", [fast, affine(0.05, 1.0), fast, fast], 512),
        (
            "fixed times, one slow",
            [affine(0.04, 2.0), affine(0.02, 1.0), affine(0.02, 1.0), affine(0.02, 1.0)],
            256,
        ),
        ("flat at even shares", [flat(64, 1.0), flat(64, 1.2), flat(64, 1.0), flat(64, 1.0)], 256),
        ("flat below even shares", [flat(32, 3.0), flat(32, 2.0), flat(32, 1.5), flat(32, 1.0)], 384),
        ("tiles", [tiles(32, 2.0), tiles(32, 2.0), tiles(32, 1.0), tiles(32, 1.0)], 384),
    ]
}

#[test]
fn the_gain_is_that_of_the_law_and_shares_are_near_the_optimum() {
    let (mut errors, mut contained) = (Vec::new(), 0);
    for (name, laws, global_batch) in laws() {
        for seed in 1..4 {
            let run = run(&laws, plain(global_batch), seed, 0.01, None);
            let (said, gain) = (run.said(), run.gain());
            let error = (said / gain - 1.0).abs();
            assert!(error < 0.07, "{name}, seed {seed}: {said:.3} said, {gain:.3} true");
            errors.push(error);
            contained += usize::from((said - gain).abs() < run.half_width());
            let late = &run.steps[200..];
            let over = late.iter().sum::<f64>() / late.len() as f64 / optimum_s(&laws, global_batch);
            assert!(over < 1.035, "{name}, seed {seed}: {over:.3} times the optimum");
            assert!(run.probes <= 6 + 2 * 3, "{name}, seed {seed}: {} probes", run.probes);
        }
    }
    errors.sort_by(f64::total_cmp);
    assert!(errors[errors.len() / 2] < 0.02, "{errors:?}");
    assert!(contained >= errors.len() - 2, "in {contained} of {} runs", errors.len());
}

/// The last iteration of an epoch may have fewer samples. Then its even shares have fewer, too.
#[test]
fn short_iterations_count_with_their_own_samples() {
    let laws = [affine(0.0, 4.0), affine(0.0, 2.0), affine(0.0, 2.0), affine(0.0, 1.0)];
    let run = run(&laws, plain(256), 1, 0.01, Some(40));
    let (said, gain) = (run.said(), run.gain());
    assert!((said / gain - 1.0).abs() < 0.05, "{said:.3} said, {gain:.3} true");
}

/// Equal workers have nothing to gain: no iteration is spent on learning, and plans that follow noise cost little.
#[test]
fn equal_workers_lose_nothing() {
    for noise in [0.01, 0.05, 0.2] {
        let run = run(&[affine(0.01, 1.0); 4], plain(256), 1, noise, None);
        assert!(run.gain() > 0.99, "noise {noise}: {:.3}, {} probes", run.gain(), run.probes);
        assert!((run.said() - run.gain()).abs() < run.half_width(), "noise {noise}: {:.3} said", run.said());
    }
}

/// A worker that is paused from the start is never measured; it has no part in the even split.
#[test]
fn a_paused_worker_has_no_even_share() {
    let mut state = job(plain(90), 3);
    let paused = WorkerOverride { paused: true, ..WorkerOverride::default() };
    state.workers.get_mut(&worker(2)).unwrap().operator_override = Some(paused);
    let mut even = Vec::new();
    let mut reports = Vec::new();
    for iteration in 0..8 {
        even.extend(state.observe(&reports).even);
        let request = AllocateRequest::new(JobId::new("job").unwrap(), 1, iteration);
        let decided = state.decide(&request).unwrap();
        let shares = decided.answer.allocations.clone();
        state.apply(decided);
        assert_eq!(shares[2].local_batch, 0);
        let report = |rank: usize| {
            let samples = shares[rank].local_batch;
            WorkerReport::new(worker(rank), iteration, samples, samples as f64 / [100.0, 200.0][rank])
        };
        reports = vec![report(0), report(1)];
    }
    assert_eq!(even.len(), 7);
    // 45 samples at 100 samples/s.
    assert!(even.iter().all(|even| (even.even_finish_s - 0.45).abs() < 0.1), "{even:?}");
}

/// The option forbids it.
#[test]
fn shares_vary_only_if_the_job_allows_it() {
    let (_, laws, global_batch) = laws().swap_remove(0);
    let run = run(&laws, JobSpec { profile: false, ..plain(global_batch) }, 1, 0.01, None);
    assert_eq!(run.probes, 0);
}
