//! Cuts that are the same in Rust and in Python, on every platform and in every release: `cuts.json`.
//!
//! `python/tests/test_cut.py` checks the same file. A change of a cut needs the same release on all ranks of a run. To write
//! the file again: `cargo test -p evenstep-rules cut_golden -- --ignored`.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::draws::draw;
use evenstep_rules::{Cut, PassRules};
use serde::{Deserialize, Serialize};

/// A cut. The names are as in Python's `Cut`.
#[derive(Debug, Serialize, Deserialize)]
struct Golden {
    name: String,
    costs: Vec<f64>,
    weights: Vec<u64>,
    options: Options,
    parts: Vec<Vec<Vec<usize>>>,
    passes: usize,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Options {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lengths: Option<Vec<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    padded: bool,
    least: usize,
    passes: usize,
    is_equal: bool,
}

fn cut(costs: &[f64], weights: &[u64], options: &Options) -> Cut {
    let rules = PassRules {
        lengths: options.lengths.as_deref(),
        max_tokens: options.max_tokens,
        is_padded: options.padded,
        least: options.least,
        passes: options.passes,
        is_equal: options.is_equal,
    };
    Cut::new(costs, weights, &rules).expect("valid rules")
}

fn parts(cut: &Cut) -> Vec<Vec<Vec<usize>>> {
    cut.parts().iter().map(|part| part.passes.clone()).collect()
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cuts.json")
}

#[test]
fn cuts_are_as_in_the_file() {
    let text = std::fs::read_to_string(path()).expect("the file");
    let goldens: Vec<Golden> = serde_json::from_str(&text).expect("cuts");
    assert!(goldens.len() >= 12);
    for golden in goldens {
        let cut = cut(&golden.costs, &golden.weights, &golden.options);
        assert_eq!(parts(&cut), golden.parts, "{}", golden.name);
        assert_eq!(cut.passes(), golden.passes, "{}", golden.name);
    }
}

#[test]
#[ignore = "writes the file"]
fn write() {
    let plain = Options { least: 1, passes: 1, is_equal: true, ..Options::default() };
    let mut goldens = Vec::new();
    let mut add = |name: &str, costs: &[f64], weights: &[u64], options: Options| {
        let cut = cut(costs, weights, &options);
        let (parts, passes) = (parts(&cut), cut.passes());
        let (name, costs, weights) = (name.to_owned(), costs.to_vec(), weights.to_vec());
        goldens.push(Golden { name, costs, weights, options, parts, passes });
    };
    let few = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0];
    add("one part", &few, &[7], plain.clone());
    add("no samples", &[], &[1, 2], plain.clone());
    add("equal costs", &[1.0; 18], &[1, 2, 2, 4], plain.clone());
    add("a part without weight", &few, &[2, 0, 1], plain.clone());
    add("fractions", &[0.1, 0.2, 0.3, 0.7, 1e-3, 0.25], &[3, 5], plain.clone());
    add("several passes", &few, &[3, 1], Options { passes: 4, ..plain.clone() });
    add("too few samples for all parts", &few[..3], &[1, 1, 1, 1], Options { passes: 2, ..plain.clone() });
    add("at least two samples", &few, &[1, 1, 4], Options { least: 2, ..plain.clone() });
    let drawn = draw(1, 40, 0.8, 0.0, None);
    let packed = Options { lengths: Some(drawn.lengths.clone()), max_tokens: Some(4096), ..plain.clone() };
    let padded = Options { padded: true, ..packed.clone() };
    add("plain", &drawn.costs, &drawn.weights, plain.clone());
    add("packed", &drawn.costs, &drawn.weights, packed.clone());
    add("padded", &drawn.costs, &drawn.weights, padded.clone());
    add("packed, unequal", &drawn.costs, &drawn.weights, Options { is_equal: false, ..packed.clone() });
    add(
        "padded, least 2, 2 passes",
        &drawn.costs,
        &drawn.weights,
        Options { least: 2, passes: 2, max_tokens: Some(8192), ..padded },
    );
    add(
        "bases and chunks",
        &drawn.costs,
        &[20, 45, 40, 90, 12, 9, 5, 3],
        Options { is_equal: false, ..packed },
    );
    let drawn = draw(2, 64, 1.0, 1.0 / 8192.0, Some(8));
    add("attention, 8 random speeds", &drawn.costs, &drawn.weights, plain.clone());
    let lengths: Vec<u64> = drawn.lengths.iter().map(|length| 4000 + length / 2).collect();
    let costs: Vec<f64> = lengths.iter().map(|&length| length as f64).collect();
    let tight = Options { lengths: Some(lengths), max_tokens: Some(8192), ..plain };
    add("a pass for nearly each sample", &costs, &drawn.weights, tight);
    let mut text = String::from("[\n");
    for (at, golden) in goldens.iter().enumerate() {
        let separator = if at + 1 < goldens.len() { "," } else { "" };
        writeln!(text, "{}{separator}", serde_json::to_string(golden).expect("numbers")).expect("a string");
    }
    text.push_str("]\n");
    std::fs::write(path(), text).expect("the file is written");
}
