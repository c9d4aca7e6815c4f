//! Tests the splits, the walk and the metric of the Python side of `tests/bench/peers`, if a suitable Python is
//! installed.

#![allow(clippy::expect_used, reason = "a test panics if its set-up fails")]

use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Command, Output};

/// Names a file that lists skipped tests, one per line, for the summary of the run.
const SKIPPED_VARIABLE: &str = "EVENSTEP_TESTS_SKIPPED";

/// Returns the script's exit code and output. Returns `None` and reports the test as skipped if no suitable
/// Python is installed.
fn peers(test: &str, arguments: &[&str]) -> Option<(Option<i32>, String)> {
    let recent_enough = ["-c", "import sys; sys.exit(sys.version_info < (3, 11))"];
    if !Command::new("python3").args(recent_enough).status().is_ok_and(|status| status.success()) {
        let line = format!("SKIPPED {test}: python3 3.11 or newer is not installed\n");
        std::io::stderr().write_all(line.as_bytes()).expect("standard error");
        if let Some(file) = std::env::var_os(SKIPPED_VARIABLE) {
            let mut file = OpenOptions::new().create(true).append(true).open(file).expect("a list");
            file.write_all(line.as_bytes()).expect("a line in the list of skipped tests");
        }
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/peers");
    let Output { status, stdout, stderr } =
        Command::new("python3").arg(script).args(arguments).output().expect("python3 starts");
    let said = [stdout, stderr].concat();
    Some((status.code(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn the_self_check_of_the_peers_holds() {
    if let Some((code, said)) = peers("the_self_check_of_the_peers_holds", &["--self-check"]) {
        assert!(code == Some(0) && said.contains("self-check: metric ok"), "{said}");
    }
}

#[test]
fn unmeasurable_settings_are_named() {
    let cases: [(&[&str], &str); 3] = [
        (&[], "--traces"),
        (&["--traces", "none.csv"], "none.csv"),
        (&["--pai", env!("CARGO_MANIFEST_DIR"), "--peers", "oracle"], "oracle"),
    ];
    for (arguments, named) in cases {
        if let Some((code, said)) = peers("unmeasurable_settings_are_named", arguments) {
            assert!(code == Some(2) && said.contains(named), "{arguments:?}: {said}");
        }
    }
}
