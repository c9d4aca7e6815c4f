//! Checks the JSON with Grafana's types (grafana-foundation-sdk), and against its source.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use evenstep_tests::binaries::skip;

use crate::shipped::{self, files};

/// Names a Python with the packages of `dashboards/requirements.txt`; scripts/test creates one.
const PYTHON_VARIABLE: &str = "EVENSTEP_TESTS_DASHBOARDS_PYTHON";

/// Returns this Python. Returns `None` and reports the test as skipped if it is missing.
fn python(test: &str) -> Option<PathBuf> {
    let python = env::var_os(PYTHON_VARIABLE).filter(|python| !python.is_empty()).map(PathBuf::from);
    if python.is_none() {
        skip(
            test,
            &format!(
                "{PYTHON_VARIABLE} names no Python with dashboards/requirements.txt; scripts/test creates one"
            ),
        );
    }
    python
}

fn output(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn dashboards_survive_grafanas_types() {
    let Some(python) = python("dashboards::schema::dashboards_survive_grafanas_types") else { return };
    let ran = Command::new(python).arg(shipped::path("roundtrip.py")).args(files("grafana", "json")).output();
    let ran = ran.expect("Python runs");
    assert!(ran.status.success(), "{}", output(&ran));
}

#[test]
fn planted_faults_are_found() {
    let Some(python) = python("dashboards::schema::planted_faults_are_found") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let whole = shipped::text("grafana/job.json");
    for (from, to) in [
        ("\"gridPos\"", "\"gridPosition\""),
        ("\"thresholdsStyle\"", "\"thresholdStyle\""),
        ("\"legendFormat\"", "\"legendFromat\""),
        ("\"custom.lineStyle\"", "\"custom.lineStile\""),
        ("\"allValue\"", "\"allValues\""),
    ] {
        assert!(whole.contains(from), "{from}");
        let file = folder.path().join("job.json");
        fs::write(&file, whole.replacen(from, to, 1)).expect("a file");
        let ran = Command::new(&python)
            .arg(shipped::path("roundtrip.py"))
            .arg(&file)
            .output()
            .expect("Python runs");
        let key = to.trim_matches('"').trim_start_matches("custom.");
        assert!(!ran.status.success() && output(&ran).contains(key), "{from} -> {to}: {}", output(&ran));
    }
}

/// Checks the compose file. No container engine starts it here.
#[test]
fn compose_is_well_formed() {
    let Some(python) = python("dashboards::schema::compose_is_well_formed") else { return };
    let check = |file: &Path| {
        let arguments = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"];
        Command::new(&python).args(arguments).arg(file).output().expect("Python runs")
    };
    let ran = check(&shipped::path("compose.yaml"));
    assert!(ran.status.success(), "{}", output(&ran));
    let whole = shipped::text("compose.yaml");
    let folder = tempfile::tempdir().expect("a folder");
    let broken = folder.path().join("compose.yaml");
    fs::write(&broken, whole.replacen("depends_on", "depend_on", 1)).expect("a file");
    assert!(!check(&broken).status.success(), "an unknown key was not detected");
    // Mounted files exist, and images are pinned.
    for line in whole.lines().map(str::trim) {
        if let Some(mounted) = line.strip_prefix("- ./") {
            let (inside, _) = mounted.split_once(':').expect("a mount");
            assert!(shipped::path(inside).exists(), "{inside}: does not exist");
        }
        if let Some(image) = line.strip_prefix("image: ") {
            let tag = image.split_once(':').map(|(_, tag)| tag).unwrap_or_default();
            assert!(tag.contains('.'), "{image}: not pinned");
        }
    }
}

/// The JSON matches `dashboards/source`.
#[test]
fn generated_json_is_up_to_date() {
    let test = "dashboards::schema::generated_json_is_up_to_date";
    let ran = Command::new("python3").arg("-B").arg(shipped::path("build.py")).arg("--check").output();
    match ran {
        Ok(ran) => assert!(ran.status.success(), "{}", output(&ran)),
        Err(error) => skip(test, &format!("python3: {error}")),
    }
}
