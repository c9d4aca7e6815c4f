//! Recording rules and alerts, tested with promtool: they are well formed and return the expected results for
//! known series.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use evenstep_tests::prometheus::program;

use crate::shipped::{self, files};

/// Prometheus' promtool.
#[derive(Debug)]
pub struct Promtool(PathBuf);

/// Result of a check, with the output.
#[derive(Debug)]
pub enum Checked {
    /// The check passed.
    Fine(String),
    /// The check failed.
    Wrong(String),
}

/// Returns `promtool` on the PATH. Returns `None` and reports the test as skipped if it is not installed.
pub fn promtool(test: &str) -> Option<Promtool> {
    program("promtool", test).map(Promtool)
}

impl Promtool {
    /// Runs promtool in a folder.
    pub fn run(&self, folder: &Path, arguments: &[&str], files: &[PathBuf]) -> Checked {
        checked(Command::new(&self.0).args(arguments).args(files).current_dir(folder))
    }

    /// Checks a page of metrics.
    pub fn check_metrics(&self, page: &str) -> Checked {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("metrics");
        fs::write(&file, page).expect("a file");
        let mut command = Command::new(&self.0);
        command.args(["check", "metrics"]).stdin(fs::File::open(&file).expect("the file"));
        checked(&mut command)
    }

    /// Checks the text of a file of rules.
    pub fn check_rules(&self, rules: &str) -> Checked {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rules.yaml");
        fs::write(&file, rules).expect("a file");
        self.run(folder.path(), &["check", "rules"], &[file])
    }
}

fn checked(command: &mut Command) -> Checked {
    let ran = command.output().expect("promtool runs");
    let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    if ran.status.success() { Checked::Fine(said) } else { Checked::Wrong(said) }
}

/// Returns a copy of `dashboards/prometheus`, with a replacement in its alerts.
fn with_alerts(from: &str, to: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for inside in ["rules", "tests"] {
        fs::create_dir(folder.path().join(inside)).expect("a folder");
        for file in files(&format!("prometheus/{inside}"), "yaml") {
            let text = fs::read_to_string(&file).expect("text");
            let changed = if file.ends_with("alerts.yaml") { text.replacen(from, to, 1) } else { text };
            fs::write(folder.path().join(inside).join(file.file_name().expect("a name")), changed)
                .expect("a file");
        }
    }
    folder
}

#[test]
fn rules_and_their_tests_pass() {
    let Some(promtool) = promtool("dashboards::rules::rules_and_their_tests_pass") else { return };
    let folder = shipped::path("prometheus");
    for (arguments, files) in [
        (["check", "rules"], files("prometheus/rules", "yaml")),
        (["check", "config"], vec![shipped::path("prometheus/prometheus.yaml")]),
        (["test", "rules"], files("prometheus/tests", "yaml")),
    ] {
        if let Checked::Wrong(said) = promtool.run(&folder, &arguments, &files) {
            panic!("promtool {arguments:?}:\n{said}");
        }
    }
}

/// Every alert must have a test and a runbook.
#[test]
fn alerts_are_tested_and_have_runbooks() {
    let alerts = shipped::text("prometheus/rules/alerts.yaml");
    let runbooks = shipped::text("../docs/how-to/alerts.md");
    let tests: String = files("prometheus/tests", "yaml")
        .iter()
        .map(|file| fs::read_to_string(file).expect("text"))
        .collect();
    let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    for name in [
        "WorkerStraggling",
        "PredictionErrorDrift",
        "AgentSilent",
        "GpuUnreadable",
        "AllocateSlow",
        "RefitFailing",
        "StoreLagging",
    ] {
        assert!(names.contains(&name), "{name}: no such alert");
    }
    for name in &names {
        let tested: Vec<&str> = tests
            .split(&format!("alertname: {name}\n"))
            .skip(1)
            .map(|rest| rest.lines().next().unwrap_or_default().trim())
            .collect();
        let quiet = tested.iter().filter(|expected| **expected == "exp_alerts: []").count();
        assert!(
            0 < quiet && quiet < tested.len(),
            "{name}: must have tests with and without firing: {tested:?}"
        );
        assert!(runbooks.contains(&format!("\n## {name}\n")), "{name}: docs/how-to/alerts.md has no section");
        assert!(
            alerts.contains(&format!("runbook: docs/how-to/alerts.md#{}\n", name.to_lowercase())),
            "{name}: no link to its runbook"
        );
    }
    for wanted in ["summary: ", "description: ", "severity: "] {
        assert_eq!(alerts.matches(wanted).count(), names.len(), "{wanted}");
    }
}

#[test]
fn planted_faults_are_found() {
    let Some(promtool) = promtool("dashboards::rules::planted_faults_are_found") else { return };
    for (from, to) in [
        // An alert that never fires, fires at once, or fires for every worker; broken PromQL; an unknown key.
        ("evenstep_node_last_sample_timestamp_seconds", "evenstep_node_last_sampel_timestamp_seconds"),
        ("for: 1m", "for: 0m"),
        ("ratio_rate5m < 0.05", "ratio_rate5m < 0.95"),
        ("> 0.25", "> > 0.25"),
        ("severity: critical\n        annotations", "severity: critical\n        anotations"),
    ] {
        let folder = with_alerts(from, to);
        let tests: Vec<PathBuf> = files("prometheus/tests", "yaml");
        let found = tests.iter().any(|file| {
            let file = folder.path().join("tests").join(file.file_name().expect("a name"));
            matches!(promtool.run(folder.path(), &["test", "rules"], &[file]), Checked::Wrong(_))
        });
        assert!(found, "{from} -> {to} was not detected");
    }
}
