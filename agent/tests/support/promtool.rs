use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Command, Stdio};

/// Names a file that skipped tests are written to, a line each, for whoever sums up the run.
const SKIPPED_VARIABLE: &str = "EVENSTEP_TESTS_SKIPPED";

/// What `promtool check metrics` has against a text; the test by this name is skipped, loudly, where there is none.
pub fn complaints(test: &str, text: &str) -> Option<String> {
    let started = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = started else {
        skip(test, "there is no promtool (Debian: prometheus)");
        return None;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some(format!(
        "{}{}",
        String::from_utf8_lossy(&said),
        if output.status.success() { "" } else { "refused" }
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
