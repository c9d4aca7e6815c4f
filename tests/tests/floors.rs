//! The layers of the workspace, called floors: no crate depends on a crate of a higher floor. `ARCHITECTURE.md` shows them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::process::Command;

use serde_json::Value;

/// Folders of crates by floor, the lowest first. A crate may use the crates in its own folder and on lower floors. Folders of the
/// same floor do not use each other, so a training loop in Rust or Python contains nothing of the predictor.
const FLOORS: [&[&str]; 5] = [
    &["crates/protocol", "crates/tls", "crates/report"],
    &["crates/rules", "crates/sensors", "crates/server"],
    &["crates/client", "crates/observability"],
    &["predictor", "agent", "python", "trainer"],
    &["tests"],
];

/// Returns the floor of a path in the workspace, and its folder.
fn floor(path: &str) -> (usize, &'static str) {
    let is_in = |folder: &&str| path == *folder || path.starts_with(&format!("{folder}/"));
    let found = FLOORS
        .iter()
        .enumerate()
        .find_map(|(at, folders)| Some((at, *folders.iter().find(|folder| is_in(folder))?)));
    found.unwrap_or_else(|| {
        panic!("the crate {path} is on no floor: add its folder to FLOORS and to ARCHITECTURE.md")
    })
}

#[test]
fn no_crate_depends_on_a_higher_floor() {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let asked = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let metadata: Value = serde_json::from_slice(&asked.stdout).unwrap();
    let root = format!("{}/", metadata["workspace_root"].as_str().unwrap());
    let mut upwards = Vec::new();
    let mut arrows = 0;
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = package["manifest_path"].as_str().unwrap();
        let path = manifest.strip_prefix(&root).unwrap().strip_suffix("/Cargo.toml").unwrap();
        let (own, folder) = floor(path);
        // Tests may use crates of any floor.
        for used in package["dependencies"].as_array().unwrap().iter().filter(|used| used["kind"] != "dev") {
            let Some(target) = used["path"].as_str() else { continue };
            let target = target.strip_prefix(&root).unwrap();
            let (below, other) = floor(target);
            arrows += 1;
            if folder != other && below >= own {
                upwards.push(format!("{path} depends on {target}"));
            }
        }
    }
    assert!(upwards.is_empty(), "{upwards:#?}");
    assert!(arrows > 20, "only {arrows} dependencies within the workspace were found");
}
