//! Paths of the programs under test, and the skipping of tests if a program is missing.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

/// Names a file that lists skipped tests, one per line, for the summary of the run.
const SKIPPED_VARIABLE: &str = "EVENSTEP_TESTS_SKIPPED";

/// Returns the path of a program of the workspace: the value of `EVENSTEP_<NAME>`, or cargo's build next to
/// this test.
///
/// Returns `None` and reports the test `test` as skipped if the program is missing or the variable is empty.
pub fn find(program: &str, test: &str) -> Option<PathBuf> {
    let variable = program.to_uppercase().replace('-', "_");
    if let Some(path) = env::var_os(&variable).map(PathBuf::from) {
        if path.as_os_str().is_empty() {
            skip(test, &format!("{variable} is empty: tests with {program} are disabled"));
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

/// Reports a test as skipped, even if the test runner hides the output of passing tests.
pub fn skip(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error");
    if let Some(file) = env::var_os(SKIPPED_VARIABLE) {
        let mut file =
            OpenOptions::new().create(true).append(true).open(file).expect("the list of skipped tests");
        file.write_all(line.as_bytes()).expect("a line in the list of skipped tests");
    }
}
