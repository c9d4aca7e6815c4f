use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Command, Stdio};

/// Environment variable with the path of a file to which skipped tests are appended, one per line.
const SKIPPED_VARIABLE: &str = "EVENSTEP_TESTS_SKIPPED";

/// Returns the complaints of `promtool check metrics` about a text. If promtool is not installed, reports the
/// test as skipped.
pub fn complaints(test: &str, text: &str) -> Option<String> {
    let started = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = started else {
        skip(test, "promtool is not installed (Debian: package prometheus)");
        return None;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some(format!(
        "{}{}",
        String::from_utf8_lossy(&said),
        if output.status.success() { "" } else { "rejected" }
    ))
}

fn skip(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    if let Some(file) = std::env::var_os(SKIPPED_VARIABLE) {
        let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
}
