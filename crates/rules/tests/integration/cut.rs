//! Laws of the cut of an iteration, and its errors.

use crate::draws::{Case, cases, draw};
use evenstep_rules::{Cut, CutError, LENGTH_MAX, PassRules};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_cut_keeps_its_rules(case in cases(60, 9)) {
        let cut = case.cut();
        let (parts, max_tokens) = (cut.parts(), case.rules().max_tokens);
        let mut positions: Vec<usize> = parts.iter().flat_map(|part| part.passes.concat()).collect();
        positions.sort_unstable();
        prop_assert_eq!(positions, (0..case.costs.len()).collect::<Vec<_>>(), "every sample once");
        let busy: Vec<_> = parts.iter().filter(|part| !part.passes.is_empty()).collect();
        for (part, &weight) in parts.iter().zip(&case.weights) {
            prop_assert!(weight > 0 || part.passes.is_empty(), "a part without weight: {part:?}");
            let samples = part.passes.concat();
            let cost: f64 = samples.iter().map(|&position| case.costs[position]).sum();
            prop_assert!((part.cost - cost).abs() <= 1e-9 * cost);
        }
        for part in &busy {
            if case.is_equal {
                prop_assert_eq!(part.passes.len(), cut.passes());
            }
                // Otherwise the whole iteration has too few samples.
            if busy.len() > 1 || case.costs.len() >= case.least * cut.passes() {
                prop_assert!(part.passes.iter().all(|pass| pass.len() >= case.least), "{part:?}");
                prop_assert!(part.passes.len() >= case.passes || case.costs.len() < case.least * case.passes);
            }
            prop_assert!(max_tokens.is_some() || part.passes.len() <= case.passes);
            for pass in &part.passes {
                prop_assert!(!pass.is_empty() && pass.is_sorted());
                prop_assert!(max_tokens.is_none_or(|most| case.tokens(pass) <= most), "{pass:?}");
            }
        }
        prop_assert!(cut.excess() >= 0.0 && cut.excess().is_finite());
    }

    #[test]
    fn multiples_of_the_weights_give_the_same_cut(case in cases(40, 6), factor in 2_u64..1_000_000_007) {
        let weights = case.weights.iter().map(|weight| weight * factor).collect();
        prop_assert_eq!(case.cut(), Case { weights, ..case }.cut());
    }

    #[test]
    fn permuted_parts_give_permuted_costs(case in cases(40, 6), turn in 0_usize..6) {
        let mut turned = case.clone();
        turned.weights.rotate_left(turn % case.weights.len());
        let by_weight = |case: &Case| {
            let cut = case.cut();
            let mut parts: Vec<(u64, u64)> =
                case.weights.iter().zip(cut.parts()).map(|(&weight, part)| (weight, part.cost.to_bits())).collect();
            parts.sort_unstable();
            parts
        };
        prop_assert_eq!(by_weight(&case), by_weight(&turned));
    }
}

/// Returns the number of samples of each part.
fn counts(cut: &Cut) -> Vec<usize> {
    cut.parts().iter().map(|part| part.passes.iter().map(Vec::len).sum()).collect()
}

#[test]
fn a_part_with_too_few_samples_gets_cheap_ones_or_none() {
    let costs = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0];
    let rules = |passes| PassRules { passes, ..PassRules::default() };
    let cut = |costs: &[f64], weights: &[u64], passes| {
        Cut::new(costs, weights, &rules(passes)).expect("valid rules")
    };
    assert_eq!(cut(&costs, &[8, 1], 1).parts()[1].passes, [[5, 8]]);
    assert_eq!(cut(&costs, &[8, 1], 2).parts()[1].passes, [[5], [8]]);
    let filled = cut(&costs, &[3, 1], 4);
    assert_eq!((counts(&filled), filled.parts()[1].cost), (vec![5, 4], 11.0));
    // Three samples cost at least 6, so both parts would finish later than one part with everything, at 45 / 8.
    assert_eq!(counts(&cut(&costs, &[8, 1], 3)), [9, 0]);
    assert_eq!(
        counts(&cut(&costs, &[8, 1], 5)),
        [9, 0],
        "nine samples are too few for two parts with five passes"
    );
    assert_eq!(counts(&cut(&costs[..3], &[1, 1, 1, 1], 2)), [3, 0, 0, 0]);
    assert_eq!(cut(&costs[..3], &[1, 1], 4).passes(), 3, "a pass has at least one sample");
    assert_eq!(cut(&[], &[1, 1], 4).passes(), 0);
}

#[test]
fn unequal_passes_are_as_few_as_the_tokens_need() {
    let lengths = [10; 24];
    let costs = [1.0; 24];
    let equal = PassRules { lengths: Some(&lengths), max_tokens: Some(40), least: 2, ..PassRules::default() };
    let passes = |rules| {
        let cut = Cut::new(&costs, &[1, 1, 2, 2], &rules).expect("valid rules");
        cut.parts().iter().map(|part| part.passes.len()).collect::<Vec<_>>()
    };
    assert_eq!(passes(equal), [2, 2, 2, 2]);
    assert_eq!(passes(PassRules { is_equal: false, ..equal }), [1, 1, 2, 2]);
    assert_eq!(passes(PassRules { is_equal: false, is_padded: true, ..equal }), [1, 1, 2, 2]);
    assert_eq!(passes(PassRules { is_equal: false, passes: 2, ..equal }), [2, 2, 2, 2]);
}

#[test]
fn padded_passes_contain_samples_of_similar_length() {
    let drawn = draw(3, 512, 0.8, 0.0, None);
    let packed =
        PassRules { lengths: Some(&drawn.lengths), max_tokens: Some(16_384), ..PassRules::default() };
    let padding = |rules: PassRules<'_>| {
        let cut = Cut::new(&drawn.costs, &drawn.weights, &rules).expect("valid rules");
        let passes = cut.parts().iter().flat_map(|part| &part.passes);
        let padded: u64 = passes
            .map(|pass| {
                let lengths = pass.iter().map(|&position| drawn.lengths[position]);
                pass.len() as u64 * lengths.max().unwrap_or(0)
            })
            .sum();
        padded as f64 / drawn.lengths.iter().sum::<u64>() as f64 - 1.0
    };
    let (sorted, mixed) = (padding(PassRules { is_padded: true, ..packed }), padding(packed));
    assert!(sorted < 0.2 && mixed > 1.0, "padding of {sorted} if padded, {mixed} if packed");
}

#[test]
fn passes_of_a_part_are_balanced() {
    let drawn = draw(4, 512, 0.8, 1.0 / 8192.0, Some(8));
    let packed =
        PassRules { lengths: Some(&drawn.lengths), max_tokens: Some(16_384), ..PassRules::default() };
    for rules in [packed, PassRules { passes: 4, ..PassRules::default() }] {
        let cut = Cut::new(&drawn.costs, &drawn.weights, &rules).expect("valid rules");
        for part in cut.parts() {
            let cost = |pass: &Vec<usize>| pass.iter().map(|&position| drawn.costs[position]).sum::<f64>();
            let costs: Vec<f64> = part.passes.iter().map(cost).collect();
            assert!(costs.is_sorted_by(|a, b| a >= b), "the first is the most expensive");
            // An assignment of the longest first differs by the cost of a sample.
            let longest = part.passes.iter().flatten().map(|&at| drawn.costs[at]).fold(0.0, f64::max);
            assert!(costs[0] - costs[costs.len() - 1] <= longest, "{costs:?}");
        }
    }
}

#[test]
fn invalid_input_is_named() {
    let lengths = [5, 6];
    let plain = PassRules::default();
    let rules = PassRules { lengths: Some(&lengths), ..plain };
    let message = |costs: &[f64], weights: &[u64], rules: &PassRules<'_>| {
        Cut::new(costs, weights, rules).expect_err("an invalid argument").to_string()
    };
    let costs = [1.0, 1.0];
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-31, 1e31] {
        let error = message(&[1.0, bad], &[1], &plain);
        assert_eq!(error, format!("cost {bad} of sample 1: must be a number from 1e-30 to 1e30"));
    }
    for weights in [vec![], vec![0, 0]] {
        let error = message(&costs, &weights, &plain);
        assert!(error.starts_with(&format!("none of the {} weights is positive", weights.len())), "{error}");
    }
    assert_eq!(
        message(&costs[..1], &[1], &rules),
        "2 lengths for 1 costs: each sample must have one length and one cost"
    );
    assert_eq!(
        Cut::new(&costs, &[1], &PassRules { max_tokens: Some(5), least: 1, ..rules }),
        Err(CutError::TooLong { position: 1, length: 6, least: 1, max_tokens: 5 })
    );
    assert_eq!(
        message(&costs, &[1], &PassRules { max_tokens: Some(9), least: 2, ..rules }),
        "length 5 of sample 0: exceeds max_tokens 9 divided by least 2; raise max_tokens or shorten the sample"
    );
    assert_eq!(
        message(&costs, &[1], &PassRules { max_tokens: Some(9), ..plain }),
        "max_tokens requires the lengths of the samples"
    );
    assert_eq!(
        message(&costs, &[1], &PassRules { is_padded: true, ..plain }),
        "padded requires the lengths of the samples"
    );
    let long = [1, LENGTH_MAX + 1];
    assert!(
        message(&costs, &[1], &PassRules { lengths: Some(&long), ..plain })
            .starts_with("length 274877906945 of sample 1")
    );
    assert_eq!(
        message(&costs, &[1], &PassRules { least: 0, ..plain }),
        "least 0: must be from 1 to 16777216"
    );
    assert_eq!(
        message(&costs, &[1], &PassRules { passes: usize::MAX, ..plain }),
        format!("passes {}: must be from 1 to 16777216", usize::MAX)
    );
}
