//! Fuzz tests: traces and cluster descriptions with arbitrary damage. The commands report an error or complete.

use std::fmt::Write;
use std::fs;

use clap::Parser;
use evenstep_fuzz::{arbitrary, config, damaged};
use proptest::prelude::*;
use proptest::sample::select;

use super::{backtest, simulate};

#[derive(Debug, Parser)]
struct Backtest {
    #[command(flatten)]
    args: backtest::Args,
}

#[derive(Debug, Parser)]
struct Simulate {
    #[command(flatten)]
    args: simulate::Args,
}

/// Cells at the borders of numbers.
const CELLS: [&str; 18] = [
    "",
    "0",
    "-1",
    "1",
    "1e-300",
    "1e300",
    "1e-30",
    "1e30",
    "9007199254740992",
    "NaN",
    "inf",
    "x",
    "\"1",
    "0.5",
    "1000000000",
    "2026-03-29T01:59:30Z",
    "2026-03-29 01:59:30,5",
    "2,324",
];

/// A table of two workers. `changes` are lines and columns of cells, and other texts for them.
fn table(changes: &[(usize, usize, &str)]) -> Vec<u8> {
    let mut text = "worker,t_start,batch,speed,load\n".to_owned();
    for line in 0..2 * ROWS {
        let (row, noise) = (line / 2, (line * 7919 % 13) as f64 / 13.0);
        let worker = format!("w{}", line % 2);
        let cells = [
            worker,
            row.to_string(),
            (16 + row % 5).to_string(),
            (100.0 + noise).to_string(),
            noise.to_string(),
        ];
        let cell = |column: usize| {
            let changed = changes.iter().find(|(at, other, _)| (*at, *other) == (line, column));
            changed.map_or(cells[column].as_str(), |(.., cell)| cell)
        };
        writeln!(text, "{},{},{},{},{}", cell(0), cell(1), cell(2), cell(3), cell(4)).unwrap();
    }
    text.into_bytes()
}

/// Rows of each worker.
const ROWS: usize = 24;

fn trace() -> impl Strategy<Value = Vec<u8>> {
    let whole =
        include_bytes!("../../../../tests/traces/steady.csv").split_inclusive(|byte| *byte == b'\n').take(40);
    let cell = (0..2 * ROWS, 0..5_usize, select(CELLS.to_vec()));
    let changed = prop::collection::vec(cell, 0..6).prop_map(|changes| table(&changes));
    // The same with semicolons and decimal commas.
    let continental = changed
        .clone()
        .prop_map(|text| String::from_utf8_lossy(&text).replace(',', ";").replace('.', ",").into_bytes());
    prop_oneof![1 => arbitrary(), 3 => damaged(vec![whole.flatten().copied().collect()]), 6 => changed, 3 => continental]
}

const CLUSTER: &str = "[[group]]\nname = \"a\"\ncount = 2\nspeed = 100.0\nfixed_s = 0.01\nsaturation = 8\nnoise = 0.1\n\
    [[group]]\nname = \"b\"\ncount = 1\nspeed = 50.0\njoins = 3\nleaves = 20\n\
    slow_downs = { share = 0.2, factor = 2.0, mean_iterations = 5.0 }\n";

/// A description of a cluster with some values replaced.
fn cluster() -> impl Strategy<Value = Vec<u8>> {
    let values: Vec<String> = CELLS
        .iter()
        .filter(|cell| !cell.is_empty())
        .map(|cell| (*cell).to_owned())
        .chain(["true".into()])
        .collect();
    let change = (any::<prop::sample::Index>(), select(values));
    let changed = prop::collection::vec(change, 0..4).prop_map(|changes| {
        let mut words: Vec<String> = CLUSTER.split_inclusive([' ', '\n']).map(str::to_owned).collect();
        for (at, value) in changes {
            let numbers: Vec<usize> =
                (0..words.len()).filter(|at| words[*at].starts_with(|c: char| c.is_ascii_digit())).collect();
            if !numbers.is_empty() {
                let word = &mut words[numbers[at.index(numbers.len())]];
                let end = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').to_owned();
                *word = value + &end;
            }
        }
        words.concat().into_bytes()
    });
    prop_oneof![1 => arbitrary(), 3 => damaged(vec![CLUSTER.as_bytes().to_vec()]), 6 => changed]
}

const BACKTESTS: [&str; 2] =
    ["--models last,ma,ema,hold,ar,arx,arx_pooled,mix,mix_step", "--models last --target-time speed"];
const SIMULATIONS: [&str; 2] = ["--seed 1", "--quantum 4 --global-batch 96"];

/// Runs `backtest` on a trace.
fn evaluate(trace: &[u8], flags: &str) -> anyhow::Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), trace)?;
    let words = ["backtest", "--trace", file.path().to_str().unwrap_or_default()];
    let args = Backtest::parse_from(words.into_iter().chain(flags.split(' '))).args;
    assert_eq!(args.check(), Ok(()));
    backtest::rehearse(&args)
}

/// Runs `simulate` on a trace or a cluster.
fn simulate(input: &str, bytes: &[u8], flags: &str) -> anyhow::Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), bytes)?;
    let length = if input == "--cluster" { "--iterations 24" } else { "--fixed-share 0.5" };
    let flags = format!("{flags} {length} --networks no");
    let words = ["simulate", input, file.path().to_str().unwrap_or_default()];
    let args = Simulate::parse_from(words.into_iter().chain(flags.split(' '))).args;
    assert_eq!(args.check(), Ok(()));
    simulate::rehearse(&args)
}

proptest! {
    #![proptest_config(config(32))]

    #[test]
    fn any_trace_is_evaluated_or_an_error(bytes in trace(), flags in select(BACKTESTS.to_vec())) {
        if let Err(error) = evaluate(&bytes, flags) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn any_trace_or_cluster_is_simulated_or_an_error(
        (input, bytes) in prop_oneof![
            trace().prop_map(|bytes| ("--trace", bytes)), cluster().prop_map(|bytes| ("--cluster", bytes)),
        ],
        flags in select(SIMULATIONS.to_vec()),
    ) {
        if let Err(error) = simulate(input, &bytes, flags) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

/// Otherwise the tests above would test nothing.
#[test]
fn undamaged_inputs_are_used() {
    let whole = table(&[]);
    BACKTESTS.iter().for_each(|flags| evaluate(&whole, flags).unwrap());
    for flags in SIMULATIONS {
        simulate("--trace", &whole, flags).unwrap();
        simulate("--cluster", CLUSTER.as_bytes(), flags).unwrap();
    }
}
