//! Where the programs under test are, and what is skipped where one is missing.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

/// Names a file that skipped tests are written to, a line each, for whoever sums up the run.
const SKIPPED_VARIABLE: &str = "EVENSTEP_TESTS_SKIPPED";

/// A program of the workspace: what `EVENSTEP_<NAME>` says, or what cargo built beside this test.
///
/// None where it is not there, or where the variable is empty; then the test by this name is skipped, loudly.
pub fn find(program: &str, test: &str) -> Option<PathBuf> {
    let variable = program.to_uppercase().replace('-', "_");
    if let Some(path) = env::var_os(&variable).map(PathBuf::from) {
        if path.as_os_str().is_empty() {
            skip(test, &format!("{variable} is empty: no test is to use {program}"));
            return None;
        }
        assert!(path.is_file(), "{variable}={}: no such file", path.display());
        return Some(path);
    }
    // target/debug/deps/this-test
    let test_file = env::current_exe().expect("the path of this test");
    let path = test_file.ancestors().nth(2).expect("cargo's folders").join(program);
    if path.is_file() {
        return Some(path);
    }
    skip(
        test,
        &format!("{} is not built (cargo build --workspace) and {variable} is not set", path.display()),
    );
    None
}

/// Says that a test was skipped, also where the test runner keeps what passing tests print to itself.
pub fn skip(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error");
    if let Some(file) = env::var_os(SKIPPED_VARIABLE) {
        let mut file =
            OpenOptions::new().create(true).append(true).open(file).expect("the list of skipped tests");
        file.write_all(line.as_bytes()).expect("a line in the list of skipped tests");
    }
}
