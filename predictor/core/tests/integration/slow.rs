//! Slow workers in closed loop: shares follow speeds, so a slow worker soon has another share.

use std::collections::BTreeSet;

use evenstep_core::job::JobState;
use evenstep_protocol::{AllocateRequest, JobId, StragglerView, WorkerReport};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::world::{Law, affine, flat, job, normal, plain, tiles, worker};

/// The speed of a worker in an iteration, as a share of its full speed.
type Speed<'a> = &'a dyn Fn(usize, u64) -> f64;

/// Noise of log times: its deviation, and the correlation of successive iterations.
#[derive(Debug, Clone, Copy)]
struct Noise {
    seed: u64,
    deviation: f64,
    correlation: f64,
}

/// Runs a job whose workers have no readings.
fn run(
    state: &mut JobState,
    laws: &[Law],
    iterations: u64,
    noise: Noise,
    speed: Speed<'_>,
) -> Vec<Vec<(usize, StragglerView)>> {
    run_with(state, laws, iterations, noise, &|rank, iteration| (speed(rank, iteration), None))
}

/// Runs a job, and returns the flagged workers by iteration. `machine` returns the speed of a worker as a share of its full speed,
/// and its wait for cores.
fn run_with(
    state: &mut JobState,
    laws: &[Law],
    iterations: u64,
    noise: Noise,
    machine: &dyn Fn(usize, u64) -> (f64, Option<f64>),
) -> Vec<Vec<(usize, StragglerView)>> {
    let mut random = ChaCha8Rng::seed_from_u64(noise.seed);
    let mut drift = vec![0.0_f64; laws.len()];
    let (mut reports, mut flagged) = (Vec::new(), Vec::new());
    let begin = state.next_iteration;
    for iteration in begin..begin + iterations {
        state.observe(&reports);
        let slow = state.stragglers();
        flagged.push(
            (0..laws.len()).filter_map(|rank| Some((rank, slow.get(&worker(rank))?.clone()))).collect(),
        );
        let request = AllocateRequest::new(JobId::new("job").unwrap(), 1, iteration);
        let decided = state.decide(&request).unwrap();
        let shares = decided.answer.allocations.clone();
        state.apply(decided);
        let mut step_s = 0.0_f64;
        reports = Vec::new();
        for (rank, (law, share)) in laws.iter().zip(&shares).enumerate() {
            let (speed, waits) = machine(rank, iteration);
            let (kept, new) = (noise.correlation, (1.0 - noise.correlation.powi(2)).sqrt());
            drift[rank] = kept * drift[rank] + new * normal(&mut random);
            let factor = (noise.deviation * drift[rank]).exp() / speed;
            let time_s = factor * law.time_s(share.local_batch);
            step_s = step_s.max(time_s);
            if share.local_batch > 0 {
                let mut report =
                    WorkerReport::new(share.worker.clone(), iteration, share.local_batch, time_s);
                report.drivers.extend(waits.map(|waits| ("run_queue_wait".to_owned(), waits)));
                reports.push(report);
            }
        }
        for report in &mut reports {
            report.barrier_wait_s = Some(step_s - report.compute_time_s);
        }
    }
    flagged
}

fn laws() -> Vec<(&'static str, Vec<Law>, u64)> {
    vec![
        ("proportional equal", vec![affine(0.0, 4.0); 4], 256),
        ("proportional", vec![affine(0.0, 8.0), affine(0.0, 4.0), affine(0.0, 4.0), affine(0.0, 2.0)], 256),
        ("fixed equal", vec![affine(0.05, 1.0); 4], 256),
        ("fixed one", vec![affine(0.0, 2.0), affine(0.1, 2.0), affine(0.0, 2.0), affine(0.0, 2.0)], 256),
        (
            "fixed mixed",
            vec![affine(0.08, 4.0), affine(0.04, 2.0), affine(0.04, 2.0), affine(0.04, 2.0)],
            256,
        ),
        ("flat at even", vec![flat(64, 2.0); 4], 256),
        ("flat below", vec![flat(32, 6.0), flat(32, 4.0), flat(32, 3.0), flat(32, 2.0)], 384),
        ("tiles", vec![tiles(32, 4.0), tiles(32, 4.0), tiles(32, 2.0), tiles(32, 2.0)], 384),
        ("eight", vec![affine(0.02, 3.0); 8], 512),
        ("two", vec![affine(0.02, 3.0); 2], 128),
    ]
}

/// Returns the ranks that were ever flagged in these iterations.
fn ranks(flagged: &[Vec<(usize, StragglerView)>]) -> BTreeSet<usize> {
    flagged.iter().flatten().map(|(rank, _)| *rank).collect()
}

/// Returns in which of these iterations a rank was flagged.
fn of(rank: usize, flagged: &[Vec<(usize, StragglerView)>]) -> Vec<bool> {
    flagged.iter().map(|flagged| flagged.iter().any(|(flagged, _)| *flagged == rank)).collect()
}

fn white(seed: u64, deviation: f64) -> Noise {
    Noise { seed, deviation, correlation: 0.0 }
}

const DEVICE: &str = "NVIDIA L4";

#[test]
fn a_slow_worker_is_flagged_soon_and_until_it_recovers() {
    const SLOW: u64 = 200;
    for (index, (name, laws, batch)) in laws().into_iter().enumerate() {
        for seed in 1..3 {
            let factor = [0.45, 0.5, 0.55, 0.62][(index + seed as usize) % 4];
            let (begin, who) = (120 + 37 * seed, (index + seed as usize) % laws.len());
            let slow = begin..begin + SLOW;
            let mut state = job(plain(batch), laws.len());
            let flagged =
                run(&mut state, &laws, begin + SLOW + 100, white(seed, 0.03), &|rank, iteration| {
                    if rank == who && slow.contains(&iteration) { factor } else { 1.0 }
                });
            let text = format!("{name}, seed {seed}, worker {who} at {factor} from {begin} on");
            let others = ranks(&flagged).into_iter().filter(|rank| *rank != who).collect::<Vec<_>>();
            assert!(others.is_empty(), "{text}: {others:?} flagged");
            let flagged_at = of(who, &flagged);
            let [begin, end] = [begin, begin + SLOW].map(|at| at as usize);
            assert!(!flagged_at[..begin].contains(&true), "{text}: flagged before");
            assert!(!flagged_at[begin + 20..=end].contains(&false), "{text}: not flagged while it is slow");
            assert!(!flagged_at[end + 40..].contains(&true), "{text}: still flagged");
            let said = flagged[end].iter().find(|found| found.0 == who).unwrap().1.clone();
            assert!((begin as u64..begin as u64 + 4).contains(&said.since_iteration), "{text}: {said:?}");
            assert!((said.speed_ratio / factor).ln().abs() < 0.35, "{text}: {said:?}");
        }
    }
}

#[test]
fn healthy_workers_are_not_flagged() {
    for (index, (name, laws, batch)) in laws().into_iter().enumerate() {
        let noises = [[(0.01, 0.0), (0.1, 0.0)], [(0.05, 0.0), (0.05, 0.8)]];
        for (deviation, correlation) in noises[index % 2] {
            let mut state = job(plain(batch), laws.len());
            let noise = Noise { seed: 5, deviation, correlation };
            let flagged = run(&mut state, &laws, 400, noise, &|_, _| 1.0);
            assert!(ranks(&flagged).is_empty(), "{name}, {noise:?}: {:?}", ranks(&flagged));
        }
    }
}

/// A longer sequence, or another phase of the training, slows all workers. Later phases may be faster again. A slow worker is
/// flagged meanwhile, and is so as long as it is slow.
#[test]
fn more_work_for_all_is_no_slowness() {
    let laws = [affine(0.02, 3.0); 4];
    for slow in [None, Some(2)] {
        let mut state = job(plain(256), laws.len());
        let flagged = run(&mut state, &laws, 900, white(1, 0.03), &|rank, iteration| {
            let phase = if (150..600).contains(&iteration) { 0.5 } else { 1.0 };
            phase * if Some(rank) == slow && (300..800).contains(&iteration) { 0.5 } else { 1.0 }
        });
        assert!(ranks(&flagged).into_iter().eq(slow), "{slow:?}: {:?}", ranks(&flagged));
        let is_flagged = |rank| of(rank, &flagged);
        assert!(slow.is_none_or(|rank| !is_flagged(rank)[320..800].contains(&false)));
        assert!(slow.is_none_or(|rank| !is_flagged(rank)[840..].contains(&true)));
    }
}

/// Phases and pauses of all leave no trace: neither on healthy workers, nor on a flag.
#[test]
fn phases_and_pauses_of_all_do_not_add_up() {
    for pauses in [false, true] {
        let mut state = job(plain(256), 4);
        let flagged = run(&mut state, &[affine(0.02, 3.0); 4], 2400, white(1, 0.03), &|rank, iteration| {
            let is_less = if pauses { iteration % 100 < 3 } else { iteration / 120 % 2 == 1 };
            let own = if rank == 1 && (300..2300).contains(&iteration) { 0.55 } else { 1.0 };
            own * if is_less { 0.4 } else { 1.0 }
        });
        assert_eq!(ranks(&flagged), BTreeSet::from([1]), "pauses {pauses}");
        assert!(!of(1, &flagged[320..2300]).contains(&false), "pauses {pauses}");
        assert!(!of(1, &flagged[2350..]).contains(&true), "pauses {pauses}");
    }
}

/// If half of the workers are slow when the work grows, the others are healthy all the same.
#[test]
fn work_that_grows_beside_a_slow_worker_is_no_slowness() {
    let mut state = job(plain(128), 2);
    let flagged = run(&mut state, &[affine(0.02, 3.0); 2], 1000, white(1, 0.03), &|rank, iteration| {
        let own = if rank == 0 && (200..800).contains(&iteration) { 0.5 } else { 1.0 };
        own * if iteration >= 500 { 0.5 } else { 1.0 }
    });
    assert_eq!(ranks(&flagged), BTreeSet::from([0]));
    assert!(!of(0, &flagged[220..800]).contains(&false) && !of(0, &flagged[850..]).contains(&true));
}

/// A GPU that is slower than it was is judged without its peers, too.
#[test]
fn a_gpu_recovers_without_its_peers() {
    let mut state = job(plain(192), 3);
    for worker in state.workers.values_mut() {
        worker.request.device = Some(DEVICE.to_owned());
    }
    let laws = [affine(0.0, 3.0); 3];
    let speed =
        |rank: usize, iteration: u64| if rank == 1 && (200..400).contains(&iteration) { 0.5 } else { 1.0 };
    run(&mut state, &laws, 300, white(1, 0.03), &speed);
    for rank in [0, 2] {
        state.workers.get_mut(&worker(rank)).unwrap().request.device = None;
    }
    let flagged = run(&mut state, &laws, 200, white(2, 0.03), &speed);
    assert!(!of(1, &flagged[..100]).contains(&false) && !of(1, &flagged[150..]).contains(&true));
}

/// All workers of a node wait for its cores. That is no change of the work, because a reading explains it.
#[test]
fn workers_that_are_slow_together_are_flagged_if_readings_explain_it() {
    for (factor, waits, found) in [(0.5, 0.01, 0), (0.5, 0.6, 4), (0.65, 0.35, 4)] {
        let mut state = job(plain(256), 4);
        let flagged = run_with(&mut state, &[affine(0.02, 3.0); 4], 400, white(1, 0.03), &|_, iteration| {
            let is_slow = iteration >= 200;
            (if is_slow { factor } else { 1.0 }, Some(if is_slow { waits } else { 0.01 }))
        });
        assert_eq!(ranks(&flagged).len(), found);
        assert!(found == 0 || (0..4).all(|rank| !of(rank, &flagged[225..]).contains(&false)));
    }
}

/// Other workers that become slow, and stay so, neither end a flag nor hide the next one.
#[test]
fn workers_that_become_slow_one_after_the_other_are_all_flagged() {
    for workers in [2, 4, 5] {
        let mut state = job(plain(64 * workers as u64), workers);
        let begin = |rank: usize| 100 + 60 * rank as u64;
        let slow = workers.min(4);
        let flagged =
            run(&mut state, &vec![affine(0.02, 3.0); workers], 700, white(1, 0.03), &|rank, iteration| {
                if rank < slow && iteration >= begin(rank) { 0.5 } else { 1.0 }
            });
        assert_eq!(ranks(&flagged).len(), slow, "{workers} workers");
        for rank in 0..slow {
            assert!(!of(rank, &flagged[begin(rank) as usize + 20..]).contains(&false), "{rank} of {workers}");
        }
    }
}

/// Compiling, checkpoints and evaluations take some iterations.
#[test]
fn short_pauses_are_no_slowness() {
    for (length, factor) in [(2, 0.2), (3, 0.3), (4, 0.4)] {
        for seed in 1..4 {
            let mut state = job(plain(256), 4);
            let flagged =
                run(&mut state, &[affine(0.02, 3.0); 4], 700, white(seed, 0.03), &|rank, iteration| {
                    if rank == 1 && iteration > 100 && iteration % 100 < length { factor } else { 1.0 }
                });
            assert!(ranks(&flagged).is_empty(), "{length} iterations at {factor}, seed {seed}");
        }
    }
}

/// Two workers that were slow once do not explain a third one in a job of ten.
#[test]
fn few_slow_workers_are_not_usual() {
    let mut state = job(plain(640), 10);
    let flagged =
        run(&mut state, &[affine(0.02, 3.0); 10], 500, white(1, 0.03), &|rank, iteration| match rank {
            0 | 1 if (100..250).contains(&iteration) => 0.5,
            2 if iteration >= 350 => 0.5,
            _ => 1.0,
        });
    assert!(!of(2, &flagged[370..]).contains(&false));
    assert_eq!(ranks(&flagged), BTreeSet::from([0, 1, 2]));
}

/// On the same device a worker that joins again is compared with its speed before, on another one it is not.
#[test]
fn a_worker_that_joins_again_is_compared_on_the_same_device() {
    for (device, found) in [("cpu: one", BTreeSet::from([1])), ("cpu: other", BTreeSet::new())] {
        let mut state = job(plain(256), 4);
        for worker in state.workers.values_mut() {
            worker.request.device = Some("cpu: one".to_owned());
            worker.join(1);
        }
        let laws = [affine(0.02, 3.0); 4];
        let speed = |rank: usize, iteration: u64| if rank == 1 && iteration >= 200 { 0.5 } else { 1.0 };
        run(&mut state, &laws, 200, white(1, 0.03), &speed);
        let joined = state.workers.get_mut(&worker(1)).unwrap();
        joined.request.device = Some(device.to_owned());
        joined.join(1);
        let flagged = run(&mut state, &laws, 300, white(2, 0.03), &speed);
        assert_eq!(ranks(&flagged), found, "{device}");
    }
}

#[test]
fn a_worker_that_fades_is_flagged() {
    let laws = [affine(0.02, 3.0); 4];
    let mut state = job(plain(256), laws.len());
    let flagged = run(&mut state, &laws, 600, white(1, 0.03), &|rank, iteration| {
        if rank == 1 { 1.0 - 0.4 * (iteration.saturating_sub(150) as f64 / 300.0).min(1.0) } else { 1.0 }
    });
    assert_eq!(ranks(&flagged), BTreeSet::from([1]));
    assert!(!of(1, &flagged[450..]).contains(&false));
}

/// Neither hours nor the slow times of another worker end a flag.
#[test]
fn a_flag_lasts_as_long_as_the_slowness() {
    let hours = [affine(0.0, 2000.0); 4];
    let mut state = job(plain(256), hours.len());
    let flagged = run(&mut state, &hours, 700, white(1, 0.03), &|rank, iteration| match rank {
        3 if iteration >= 300 => 0.5,
        1 if iteration >= 300 && iteration % 160 < 80 => 0.67,
        _ => 1.0,
    });
    assert!(ranks(&flagged).is_subset(&BTreeSet::from([1, 3])), "{:?}", ranks(&flagged));
    assert!(!of(3, &flagged[320..]).contains(&false));
}

/// A GPU that was always slower than others of its kind has no better past. Its share is smaller, so they are compared at
/// equal work.
#[test]
fn a_gpu_is_compared_with_others_of_its_kind() {
    for law in [affine(0.0, 3.0), affine(0.05, 1.0), flat(64, 2.0)] {
        for (device, found) in [(DEVICE, BTreeSet::from([1])), ("cpu: any", BTreeSet::new())] {
            let mut state = job(plain(256), 4);
            for worker in state.workers.values_mut() {
                worker.request.device = Some(device.to_owned());
            }
            let flagged =
                run(&mut state, &[law; 4], 300, white(1, 0.03), &|rank, _| if rank == 1 { 0.5 } else { 1.0 });
            assert_eq!(ranks(&flagged), found, "{law:?} on {device}");
            assert!(found.iter().all(|rank| !of(*rank, &flagged[24..]).contains(&false)), "{law:?}");
        }
    }
}
