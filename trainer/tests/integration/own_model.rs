//! The example `own_model` as a user runs it: one program that is the launcher and its workers.

use std::env;
use std::process::{Command, Stdio};

/// Runs the example with these variables. Returns its output and whether it succeeded.
fn run(variables: &[(&str, &str)]) -> (String, bool) {
    // target/debug/deps/this-test; cargo builds the examples of a package with its tests.
    let test = env::current_exe().unwrap();
    let example = test.ancestors().nth(2).unwrap().join("examples/own_model");
    assert!(example.is_file(), "{}: build it with cargo build --example own_model", example.display());
    let mut command = Command::new(example);
    command.envs(variables.iter().copied()).stdin(Stdio::null());
    let output = command.output().unwrap();
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.success())
}

#[test]
fn a_model_of_your_own_trains_on_two_workers() {
    let (words, succeeded) = run(&[("EVENSTEP_POLICY", "even")]);
    assert!(succeeded, "{words}");
    assert!(
        words.contains("rank 0: 2 workers, Sine, float32, 4096 samples, global batch 64, 512 iterations"),
        "{words}"
    );
    let loss = words.split("final loss ").nth(1).and_then(|rest| rest.trim().parse::<f64>().ok());
    // Squared error of a sine; the mean square of the sine itself is 0.5.
    assert!(loss.is_some_and(|loss| loss < 0.1), "{words}");
}

#[test]
fn impossible_values_are_named() {
    let (words, succeeded) = run(&[("EVENSTEP_POLICY", "sometimes")]);
    assert!(!succeeded && words.contains("sometimes"), "{words}");
    let (words, succeeded) = run(&[("EVENSTEP_POLICY", "even"), ("EVENSTEP_TRAINER_WORKER", "{}")]);
    assert!(!succeeded && words.contains("only the launcher sets this variable"), "{words}");
}
