//! Distance of the cut from the optimum: from all cuts of tiny iterations, and from a lower bound.

use crate::draws::{Case, Draw, cases, draw};
use evenstep_rules::{Cut, PassRules};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// Sets of numbers of passes, as bits, into which each set of samples, as bits, can be divided.
fn divisions(case: &Case) -> Vec<u64> {
    let subset = |mask: usize| (0..case.costs.len()).filter(|at| mask >> at & 1 == 1).collect::<Vec<_>>();
    let may_share = |mask: usize| {
        let pass = subset(mask);
        pass.len() >= case.least && case.rules().max_tokens.is_none_or(|most| case.tokens(&pass) <= most)
    };
    let is_pass: Vec<bool> = (0..1 << case.costs.len()).map(may_share).collect();
    let mut divisions = vec![1];
    for mask in 1..is_pass.len() {
        // The first sample is in some pass with a subset of the rest.
        let rest = mask & (mask - 1);
        let mut others = rest;
        let mut found = 0;
        loop {
            if is_pass[mask & !others] {
                found |= divisions[others] << 1;
            }
            if others == 0 {
                break;
            }
            others = (others - 1) & rest;
        }
        divisions.push(found);
    }
    divisions
}

/// Returns the earliest finish of all cuts of a tiny iteration; `None` if no cut keeps the rules.
fn optimum(case: &Case) -> Option<f64> {
    let divisions = divisions(case);
    let allowed = if case.has_limit { u64::MAX << case.passes } else { 1 << case.passes };
    let parts = case.weights.len();
    let finishes = (0..parts.pow(case.costs.len() as u32)).filter_map(|mut number| {
        let (mut masks, mut costs) = (vec![0_usize; parts], vec![0.0; parts]);
        for (at, cost) in case.costs.iter().enumerate() {
            masks[number % parts] |= 1 << at;
            costs[number % parts] += cost;
            number /= parts;
        }
        let mut busy = (0..parts).filter(|&part| masks[part] > 0);
        let is_valid = if case.is_equal {
            busy.fold(allowed, |common, part| common & divisions[masks[part]]) > 0
        } else {
            busy.all(|part| allowed & divisions[masks[part]] > 0)
        };
        let finish = |(cost, &weight): (&f64, &u64)| if *cost > 0.0 { cost / weight as f64 } else { 0.0 };
        is_valid.then(|| costs.iter().zip(&case.weights).map(finish).fold(0.0, f64::max))
    });
    finishes.min_by(f64::total_cmp)
}

fn finish(case: &Case, cut: &Cut) -> f64 {
    let busy = cut.parts().iter().zip(&case.weights).filter(|(_, weight)| **weight > 0);
    busy.map(|(part, &weight)| part.cost / weight as f64).fold(0.0, f64::max)
}

#[test]
fn cuts_of_tiny_iterations_are_nearly_always_optimal() {
    for (has_limit, worst) in [(false, 1.1), (true, 1.5)] {
        let mut runner = TestRunner::deterministic();
        let (mut cuts, mut optimal) = (0, 0);
        while cuts < 1000 {
            let case = cases(7, 3).new_tree(&mut runner).expect("a case").current();
            let case = match has_limit {
                true => Case { has_limit, ..case },
                false => Case { has_limit, least: 1, passes: 1, ..case },
            };
            let Some(best) = optimum(&case).filter(|finish| *finish > 0.0) else { continue };
            let cut = case.cut();
            let finish = finish(&case, &cut);
            let bound = finish / (1.0 + cut.excess());
            assert!(bound <= best * (1.0 + 1e-9), "a bound of {bound}, but a finish of {best}: {case:?}");
            assert!(finish <= worst * best, "{finish} instead of {best}: {case:?}");
            cuts += 1;
            optimal += usize::from(finish <= best * (1.0 + 1e-4));
        }
        assert!(optimal >= 990, "{optimal} of {cuts} cuts are optimal; has_limit: {has_limit}");
    }
}

/// Returns the optimum of samples of descending cost that finishes before `limit`, or `limit`.
fn optimum_of_few(costs: &[f64], weights: &[u64], loads: &mut Vec<f64>, limit: f64) -> f64 {
    let Some((cost, rest)) = costs.split_first() else {
        return loads.iter().zip(weights).map(|(load, &weight)| load / weight as f64).fold(0.0, f64::max);
    };
    let mut best = limit;
    for (part, &weight) in weights.iter().enumerate() {
        if (loads[part] + cost) / (weight as f64) < best {
            loads[part] += cost;
            best = best.min(optimum_of_few(rest, weights, loads, best));
            loads[part] -= cost;
        }
    }
    best
}

#[test]
fn the_excess_is_relative_to_the_largest_bound() {
    let excess = |costs: &[f64], weights: &[u64]| {
        Cut::new(costs, weights, &PassRules::default()).expect("valid rules").excess()
    };
    assert!((excess(&[1.0; 4], &[1, 1, 1]) - 0.5).abs() < 1e-12, "all costs over all weights");
    assert!((excess(&[10.0, 10.0], &[1, 1, 8]) - 0.125).abs() < 1e-12, "two costs over two weights");
    assert_eq!(excess(&[9.0, 1.0], &[1, 1]).to_bits(), 0, "the largest cost over the largest weight");
}

#[test]
fn cuts_are_near_the_lower_bound() {
    // The aims are 0.002 and 0.003.
    for (samples, limit) in [(512, 0.0002), (64, 0.001)] {
        for (sigma, quadratic) in [(0.5, 0.0), (0.8, 0.0), (1.0, 0.0), (1.0, 1.0 / 8192.0)] {
            for parts in [None, Some(8)] {
                for seed in 0..100 {
                    let Draw { mut costs, weights, .. } = draw(seed, samples, sigma, quadratic, parts);
                    let cut = Cut::new(&costs, &weights, &PassRules::default()).expect("valid rules");
                    if cut.excess() <= limit {
                        continue;
                    }
                    // The bound lets parts share a sample. A few large samples alone can need longer.
                    costs.sort_by(|a, b| b.total_cmp(a));
                    let finish =
                        cut.parts().iter().zip(&weights).map(|(part, &weight)| part.cost / weight as f64);
                    let finish = finish.fold(0.0, f64::max);
                    let best = optimum_of_few(&costs[..7], &weights, &mut vec![0.0; weights.len()], finish);
                    assert!(
                        finish <= best * (1.0 + limit),
                        "{} above the bound with seed {seed}: {samples} samples, {sigma}, {quadratic}, {parts:?}",
                        cut.excess()
                    );
                }
            }
        }
    }
}

#[test]
fn equal_passes_of_few_samples_cost_little() {
    // The longest sample fills a pass, and the fastest worker needs about as many passes as the slowest has samples.
    for (samples, parts) in [(64, Some(8)), (512, None), (512, Some(8))] {
        for seed in 0..20 {
            let mut drawn = draw(seed, samples, 0.8, 0.0, parts);
            for length in &mut drawn.lengths {
                *length = (*length * 1366 / 512).min(4096);
            }
            drawn.costs = drawn.lengths.iter().map(|&length| length as f64).collect();
            let rules =
                PassRules { lengths: Some(&drawn.lengths), max_tokens: Some(4096), ..PassRules::default() };
            let cut = Cut::new(&drawn.costs, &drawn.weights, &rules).expect("valid rules");
            assert!(cut.excess() < 0.003, "{} of {samples} samples, seed {seed}", cut.excess());
            assert!(cut.parts().iter().all(|part| part.passes.len() == cut.passes()));
        }
    }
}
