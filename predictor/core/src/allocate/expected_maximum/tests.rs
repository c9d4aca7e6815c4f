use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::allocate::{MAX_SCENARIOS, MIN_SCENARIOS, allocate, finish_s};
use crate::curve::Curve;

fn scenarios(random: &mut impl Rng, workers: usize, spread: f64) -> Scenarios {
    let one = |random: &mut dyn Rng| -> Vec<f64> {
        let spread = spread * random.random_range(0.2..1.0);
        // Mostly small, sometimes a long slow-down.
        let residual = |random: &mut dyn Rng| {
            let usual = random.random_range(-spread..spread);
            if random.random_bool(0.1) { usual - 3.0 * spread } else { usual }
        };
        (0..24).map(|_| residual(random)).collect()
    };
    let residuals: Vec<Vec<f64>> = (0..workers).map(|_| one(random)).collect();
    Scenarios::from_residuals(&residuals)
}

fn share(random: &mut impl Rng) -> SplitWorker {
    let per_sample_s = random.random_range(0.2..2.0);
    let curve = match random.random_range(0..3) {
        0 => Curve::at_speed(1.0 / per_sample_s),
        1 => Curve::linear(random.random_range(0.0..5.0), per_sample_s),
        _ => Curve::saturating(random.random_range(1.0..6.0), random.random_range(1..8), per_sample_s),
    };
    SplitWorker {
        floor: random.random_range(0..3),
        cap: random.random_bool(0.3).then(|| random.random_range(8..20)),
        ..SplitWorker::new(curve)
    }
}

/// Returns the smallest expected finish time of all splits.
fn brute_force(shares: &[SplitWorker], scenarios: &Scenarios, total: u64, batches: &mut Vec<u64>) -> f64 {
    let i = batches.len();
    let left = total - batches.iter().sum::<u64>();
    let cap = shares[i].cap.unwrap_or(left).min(left);
    let mut best = f64::INFINITY;
    let range = if i + 1 == shares.len() { left..=left } else { 0..=left };
    for batch in range.filter(|batch| (shares[i].floor..=cap).contains(batch)) {
        batches.push(batch);
        let time_s = if i + 1 == shares.len() {
            scenarios.expected_finish(shares, batches)
        } else {
            brute_force(shares, scenarios, total, batches)
        };
        best = best.min(time_s);
        batches.pop();
    }
    best
}

#[test]
fn a_fit_is_near_the_best() {
    let random = &mut ChaCha8Rng::seed_from_u64(1);
    let (mut excess, mut solved) = (Vec::new(), 0);
    for case in 0..400 {
        let shares: Vec<SplitWorker> = (0..random.random_range(2..5)).map(|_| share(random)).collect();
        let scenarios = scenarios(random, shares.len(), 0.4);
        let total = random.random_range(6..26);
        let Ok(problem) = Problem::new(&shares, total, 1) else { continue };
        let plain = split(&problem);
        let batches = fit(&problem, &scenarios, &plain);
        solved += 1;
        assert_eq!(batches.iter().sum::<u64>(), total, "case {case}");
        for (share, batch) in shares.iter().zip(&batches) {
            assert!(*batch >= share.floor && share.cap.is_none_or(|cap| *batch <= cap), "case {case}");
        }
        let expected = |batches: &[u64]| scenarios.expected_finish(&shares, batches);
        assert!(expected(&batches) <= expected(&plain), "case {case}");
        let best = brute_force(&shares, &scenarios, total, &mut Vec::new());
        excess.push(expected(&batches) / best - 1.0);
    }
    let mean = excess.iter().sum::<f64>() / excess.len() as f64;
    let exact = excess.iter().filter(|excess| **excess < 1e-9).count();
    let worst = excess.iter().copied().fold(0.0, f64::max);
    let found = format!("{solved} cases: {exact} exact, {mean:.5} mean, {worst:.4} worst");
    assert!(solved > 300 && mean < 0.001 && worst < 0.06 && exact * 10 > solved * 8, "{found}");
}

/// Bounds, the quantum and the remainder are respected for any number of workers.
#[test]
fn never_worse_than_plain_and_sums_and_grids_hold() {
    let random = &mut ChaCha8Rng::seed_from_u64(2);
    for _ in 0..60 {
        let shares: Vec<SplitWorker> = (0..random.random_range(1..40)).map(|_| share(random)).collect();
        let scenarios = scenarios(random, shares.len(), 0.3);
        let (total, quantum) = (random.random_range(100..2000), random.random_range(1..9));
        let Ok(batches) = allocate_expected(&shares, &scenarios, total, quantum) else { continue };
        let expected_s = |batches: &[u64]| scenarios.expected_finish(&shares, batches);
        assert!(expected_s(&batches) <= expected_s(&allocate(&shares, total, quantum).unwrap()));
        assert_eq!(batches.iter().sum::<u64>(), total);
        let odd = batches.iter().filter(|batch| *batch % quantum != 0).count();
        assert!(odd <= usize::from(total % quantum != 0), "{batches:?} in {quantum}");
        for (share, batch) in shares.iter().zip(&batches) {
            assert!(*batch >= share.floor && share.cap.is_none_or(|cap| *batch <= cap));
        }
    }
}

/// Two of three workers slow down in the same iterations. A missing report does not separate them.
#[test]
fn a_missing_report_does_not_separate_workers_that_slow_down_together() {
    let residual = |iteration: u64| if iteration.is_multiple_of(3) { -(2.0f64.ln()) } else { 0.0 };
    let all: Vec<(u64, f64)> = (0..60).map(|iteration| (iteration, residual(iteration))).collect();
    let lossy: Vec<(u64, f64)> = all.iter().copied().filter(|(iteration, _)| *iteration != 50).collect();
    let shares = vec![SplitWorker::new(Curve::at_speed(1.0)); 3];
    let expected =
        Scenarios::joined(&[Some(&all), Some(&all), Some(&all)]).expected_finish(&shares, &[6, 6, 6]);
    assert!((expected - 8.0).abs() < 1e-9, "{expected}: a third of the iterations take twice as long");
    let scenarios = Scenarios::joined(&[Some(&all), Some(&lossy), Some(&all)]);
    assert_eq!(scenarios.len(), 60);
    for (iteration, factors) in scenarios.rows().enumerate().filter(|(iteration, _)| *iteration != 50) {
        assert_eq!(factors, [(-residual(iteration as u64)).exp(); 3]);
    }
}

/// Computed by hand: four scenarios of 1 s, of which one has a pause of 3 s, and in another one the paused worker is not the last.
#[test]
fn a_pause_is_added_and_does_not_grow_with_the_batch() {
    let steady: Vec<(u64, f64)> = (0..8).map(|iteration| (iteration, 0.0)).collect();
    let shares = vec![SplitWorker::new(Curve::at_speed(10.0)); 2];
    let scenarios = Scenarios::joined(&[Some(&steady), Some(&steady)]);
    let paused = scenarios.clone().with_pauses(&[Some(&[(2, 3.0), (5, 0.25), (9, 100.0)]), Some(&[])]);
    assert_eq!(paused.expected_finish(&shares, &[10, 10]), (6.0 + 4.0 + 1.25) / 8.0);
    assert_eq!(paused.expected_finish(&shares, &[5, 15]), (7.0 * 1.5 + 3.5) / 8.0);
    assert_eq!(paused.expected_finish(&shares, &[0, 20]), 2.0, "no samples, no pause");
    assert_eq!(allocate_expected(&shares, &paused, 20, 1), allocate_expected(&shares, &scenarios, 20, 1));
}

proptest::proptest! {
    /// A checkpoint of all workers takes each of them about the same time. It changes nothing, with pauses of single workers or without.
    #[test]
    fn pauses_of_all_workers_at_once_are_no_scenarios(
        errors in proptest::collection::vec(proptest::collection::vec(-0.3f64..0.3, 30), 2..6),
        checkpoints in proptest::collection::btree_set(0u64..30, 0..8),
        own in proptest::collection::btree_set(0u64..30, 0..8),
    ) {
        let residuals: Vec<Vec<(u64, f64)>> = errors.iter().map(|own| (0..).zip(own.iter().copied()).collect()).collect();
        let scenarios = Scenarios::joined(&residuals.iter().map(|own| Some(own.as_slice())).collect::<Vec<_>>());
        let pauses = |rank: usize, is_of_job: bool| -> Vec<(u64, f64)> {
            let is_own = |at: &u64| rank == 0 && own.contains(at) && !checkpoints.contains(at);
            let pauses = (0..30).filter(|at| is_own(at) || is_of_job && checkpoints.contains(at));
            pauses.map(|at| (at, 1.0 + 0.1 * errors[rank][at as usize])).collect()
        };
        let with = |is_of_job| {
            let pauses: Vec<Vec<(u64, f64)>> = (0..errors.len()).map(|rank| pauses(rank, is_of_job)).collect();
            scenarios.clone().with_pauses(&pauses.iter().map(|own| Some(own.as_slice())).collect::<Vec<_>>())
        };
        proptest::prop_assert_eq!(with(true), with(false));
    }

    /// The residual of each iteration is its number, so that a scenario shows which iterations it combines. Reported
    /// ones are never combined. A missing one is one of the worker's own, or another worker's of the same iteration.
    #[test]
    fn scenarios_are_iterations_of_at_least_half_of_the_workers(
        reported in proptest::collection::vec(proptest::collection::btree_set(0u64..200, 0..150), 1..5)
    ) {
        let residual = |iteration: &u64| (*iteration, *iteration as f64 / 200.0);
        let residuals: Vec<Vec<(u64, f64)>> =
            reported.iter().map(|worker| worker.iter().map(residual).collect()).collect();
        let scenarios = Scenarios::joined(&residuals.iter().map(|own| Some(own.as_slice())).collect::<Vec<_>>());
        let is_of_all = |iteration: &u64| reported.iter().all(|worker| worker.contains(iteration));
        let common = (0..200u64).filter(is_of_all).count();
        proptest::prop_assert!(common < MIN_SCENARIOS || scenarios.len() >= common.min(MAX_SCENARIOS));
        proptest::prop_assert!(scenarios.is_empty() || scenarios.len() >= MIN_SCENARIOS);
        for factors in scenarios.rows() {
            let seen: Vec<u64> = factors.iter().map(|factor| (-factor.ln() * 200.0).round() as u64).collect();
            let has = |rank: usize, iteration: u64| reported[rank].contains(&iteration);
            let is_scenario = |iteration: &u64| {
                2 * (0..seen.len()).filter(|rank| has(*rank, *iteration)).count() >= seen.len()
                    && (0..seen.len()).all(|rank| match has(rank, *iteration) {
                        true => seen[rank] == *iteration,
                        false => has(rank, seen[rank]) || reported[rank].len() < MIN_SCENARIOS,
                    })
            };
            proptest::prop_assert!((0..200).any(|iteration| is_scenario(&iteration)), "{:?}", seen);
        }
    }
}

#[test]
fn scenarios_are_the_iterations_that_all_share() {
    let residual = |slow: f64| -(slow.ln());
    // Residuals beyond the limit are ignored, and so are those from before the shorter record.
    let steady = vec![0.0; 200];
    let mut other = vec![residual(8.0); 200];
    let newest = other.len() - 1;
    other[newest + 1 - MAX_SCENARIOS..].fill(0.0);
    other[newest] = residual(2.0);
    let both = Scenarios::from_residuals(&[steady.clone(), other.clone()]);
    assert_eq!(both.len(), MAX_SCENARIOS);
    let shares = [SplitWorker::new(Curve::at_speed(1.0)), SplitWorker::new(Curve::at_speed(1.0))];
    // One of 128 scenarios takes twice as long.
    assert_eq!(both.expected_finish(&shares, &[4, 4]), 4.0 + 4.0 / 128.0);
    let short = Scenarios::from_residuals(&[&steady[..MIN_SCENARIOS], other.as_slice()]);
    assert_eq!((short.len(), short.expected_finish(&shares, &[4, 4])), (8, 4.5));
    let few = Scenarios::from_residuals(&[&steady[..MIN_SCENARIOS - 1], other.as_slice()]);
    assert!(few.is_empty());
    assert_eq!(few.expected_finish(&shares, &[4, 2]), finish_s(&shares, &[4, 2]));
    assert_eq!(allocate_expected(&shares, &few, 7, 1), allocate(&shares, 7, 1));
    assert!(Scenarios::from_residuals(&[] as &[Vec<f64>]).is_empty());
}

/// Of workers with the same expected speed, an uncertain one gets less. That makes unseen iterations shorter.
#[test]
fn workers_with_uncertain_forecasts_get_less() {
    let random = &mut ChaCha8Rng::seed_from_u64(3);
    let draw = |random: &mut ChaCha8Rng, i: usize| {
        let spread = if i == 0 { 0.5 } else { 0.1 };
        (0..64).map(|_| random.random_range(-spread..spread)).collect::<Vec<f64>>()
    };
    let shares = vec![SplitWorker::new(Curve::at_speed(100.0)); 4];
    let record: Vec<Vec<f64>> = (0..4).map(|i| draw(random, i)).collect();
    let to_come: Vec<Vec<f64>> = (0..4).map(|i| draw(random, i)).collect();
    let batches = allocate_expected(&shares, &Scenarios::from_residuals(&record), 1024, 1).unwrap();
    assert!(batches[0] < 235 && batches[1..].iter().all(|batch| *batch > 256), "{batches:?}");
    let unseen = Scenarios::from_residuals(&to_come);
    let gain = 1.0 - unseen.expected_finish(&shares, &batches) / unseen.expected_finish(&shares, &[256; 4]);
    assert!(gain > 0.02, "{gain}");
}

/// With two equal workers and heavy tails, every gain over the even split is chance. Following it would cost
/// time in unseen iterations.
#[test]
fn random_noise_does_not_change_the_plan() {
    let random = &mut ChaCha8Rng::seed_from_u64(4);
    let mut residual = || {
        let usual = random.random_range(-0.1..0.1);
        if random.random_bool(0.1) { usual - random.random_range(0.0..2.0) } else { usual }
    };
    let mut draw =
        |count: usize| -> [Vec<f64>; 2] { [(); 2].map(|()| (0..count).map(|_| residual()).collect()) };
    let shares = vec![SplitWorker::new(Curve::at_speed(100.0)); 2];
    let (mut weighed_s, mut even_s) = (0.0, 0.0);
    for _ in 0..200 {
        let batches = allocate_expected(&shares, &Scenarios::from_residuals(&draw(64)), 512, 1).unwrap();
        let unseen = Scenarios::from_residuals(&draw(MAX_SCENARIOS));
        weighed_s += unseen.expected_finish(&shares, &batches);
        even_s += unseen.expected_finish(&shares, &[256; 2]);
    }
    let loss = weighed_s / even_s - 1.0;
    assert!(loss < 0.0015, "{loss}");
}

/// The order of the workers does not matter, except for ties such as batches below a saturation point.
#[test]
fn permuting_workers_permutes_the_answer() {
    let random = &mut ChaCha8Rng::seed_from_u64(5);
    for _ in 0..200 {
        let smooth = |random: &mut ChaCha8Rng| SplitWorker {
            curve: Curve::linear(random.random_range(0.0..5.0), random.random_range(0.2..2.0)),
            ..share(random)
        };
        let mut shares: Vec<SplitWorker> = (0..random.random_range(2..24)).map(|_| smooth(random)).collect();
        let mut residuals: Vec<Vec<f64>> =
            shares.iter().map(|_| (0..32).map(|_| random.random_range(-0.5..0.3)).collect()).collect();
        let total = random.random_range(8..60) * shares.len() as u64;
        let Ok(mut batches) = allocate_expected(&shares, &Scenarios::from_residuals(&residuals), total, 1)
        else {
            continue;
        };
        let turn = random.random_range(1..shares.len());
        shares.rotate_left(turn);
        residuals.rotate_left(turn);
        batches.rotate_left(turn);
        let turned = allocate_expected(&shares, &Scenarios::from_residuals(&residuals), total, 1).unwrap();
        assert_eq!(turned, batches);
    }
}
