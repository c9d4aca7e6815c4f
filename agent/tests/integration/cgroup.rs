//! Readings of a process in a real cgroup with a CPU limit.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::agent::Agent;
use crate::support::receiver::{Receiver, take};
use evenstep_tests::binaries::skip;
use evenstep_tests::wait::until;

const TEST: &str = "a_process_at_its_cpu_limit_is_seen";

/// A cgroup with a CPU limit of 20 %, removed with the value.
struct Limited(PathBuf);

impl Limited {
    /// Creates the cgroup below the hierarchy that has the CPU controller: version 1, or version 2 if it is enabled for the
    /// children of the root.
    fn create() -> std::io::Result<Self> {
        let name = format!("evenstep-test-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/cpu");
        let (root, files): (&Path, &[(&str, &str)]) = if v1.join("cpu.cfs_quota_us").exists() {
            (v1, &[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "20000")])
        } else {
            (Path::new("/sys/fs/cgroup"), &[("cpu.max", "20000 100000")])
        };
        let limited = Self(root.join(name));
        fs::create_dir(&limited.0)?;
        for (file, text) in files {
            // Not created: without the controller, there is no such file.
            fs::OpenOptions::new().write(true).open(limited.0.join(file))?.write_all(text.as_bytes())?;
        }
        Ok(limited)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_process_at_its_cpu_limit_is_seen() {
    let limited = match Limited::create() {
        Ok(limited) => limited,
        Err(error) => return skip(TEST, &format!("cannot create a cgroup with a CPU limit: {error}")),
    };
    let mut child = Command::new("sh")
        .args(["-c", "read go; while :; do :; done"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let entered = fs::write(limited.0.join("cgroup.procs"), child.id().to_string());
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    if entered.is_ok() {
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let sample = || agent.get(&format!("/sample?pid={}", child.id())).1;
        let throttled = until("the limit stops the process", || {
            sample()["readings"]["cgroup_cpu_throttled"].as_f64().filter(|share| *share > 0.0)
        });
        assert!(throttled <= 1.0, "{throttled}");
        assert_eq!(sample()["readings"]["cgroup_cpu_limit"], 0.2);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    if let Err(error) = entered {
        skip(TEST, &format!("cannot put a process into a cgroup: {error}"));
    }
}
