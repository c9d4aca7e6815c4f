use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::allocate::Communication;
use crate::curve::Curve;

fn scenarios(random: &mut impl Rng, workers: usize, spread: f64) -> Scenarios {
    let one = |random: &mut dyn Rng| -> Vec<f64> {
        let spread = spread * random.random_range(0.2..1.0);
        // Mostly small, now and then a long slow-down.
        let residual = |random: &mut dyn Rng| {
            let usual = random.random_range(-spread..spread);
            if random.random_bool(0.1) { usual - 3.0 * spread } else { usual }
        };
        (0..24).map(|_| residual(random)).collect()
    };
    let residuals: Vec<Vec<f64>> = (0..workers).map(|_| one(random)).collect();
    Scenarios::from_residuals(&residuals)
}

fn share(random: &mut impl Rng) -> Share {
    let per_sample_s = random.random_range(0.2..2.0);
    let curve = match random.random_range(0..3) {
        0 => Curve::at_speed(1.0 / per_sample_s),
        1 => Curve::linear(random.random_range(0.0..5.0), per_sample_s),
        _ => Curve::saturating(random.random_range(1.0..6.0), random.random_range(1..8), per_sample_s),
    };
    let communication = match random.random_range(0..3) {
        0 => Communication { exposed_s: random.random_range(0.0..2.0), hidden_s: 3.0, begins: 0.5 },
        _ => Communication::default(),
    };
    Share {
        communication,
        floor: random.random_range(0..3),
        cap: random.random_bool(0.3).then(|| random.random_range(8..20)),
        ..Share::new(curve)
    }
}

/// The smallest expected finish of all splits.
fn brute_force(shares: &[Share], scenarios: &Scenarios, total: u64, batches: &mut Vec<u64>) -> f64 {
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
        let shares: Vec<Share> = (0..random.random_range(2..5)).map(|_| share(random)).collect();
        let scenarios = scenarios(random, shares.len(), 0.4);
        let total = random.random_range(6..26);
        let Ok(problem) = Problem::new(&shares, total, 1) else { continue };
        let plain = search::split(&problem);
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
