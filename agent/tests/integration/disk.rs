//! Tests of the real agent with a disk that hangs or is full.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::agent::Agent;
use crate::support::receiver::{Receiver, take};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// The uplink saves its position to a FIFO, which hangs. The sampler then waits for the spool. All paths still
/// respond, and the agent ends after SIGTERM.
#[test]
fn a_disk_that_hangs_stops_neither_the_local_api_nor_the_shutdown() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    mkfifo(&spool.path().join("acknowledged.new"), Mode::S_IRWXU).unwrap();
    let agent = Agent::run(Agent::command(&receiver.url(), spool.path()).stderr(Stdio::piped()));
    receiver.wait_until("a batch arrives", |store| store.count() > 0);
    let stopped = |(code, problem): (u16, serde_json::Value)| {
        code == 503 && problem["detail"].as_str().unwrap().starts_with("no sample taken")
    };
    let status = agent.wait_until("no samples are taken", |_| stopped(agent.get("/healthz")));
    assert!(status["spool"]["bytes"].as_u64().unwrap() > 0, "{status:#}");
    assert!(agent.metrics().contains_key("evenstep_agent_spool_bytes{node=\"node-a\"}"));
    assert!(agent.get("/sample").1["readings"]["memory_used"].is_number());
    let start = Instant::now();
    let (status, said) = agent.terminate_and_read();
    // Far above the limit of 5 s, but below a wait without a limit.
    assert!(start.elapsed() < Duration::from_secs(150));
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("the sampler"), "{said}");
}

/// The limit of the file size makes each write fail, as on a full disk.
#[test]
fn a_full_disk_leaves_no_empty_segments() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let agent = Agent::command(&receiver.url(), spool.path());
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh"]);
    limited.arg(agent.get_program()).args(agent.get_args());
    let agent = Agent::run(limited.stderr(Stdio::null()));
    let lost = |status: &serde_json::Value| status["spool"]["dropped_unwritable"].as_u64().unwrap();
    let status = agent.wait_until("samples are lost", |status| lost(status) >= 20);
    assert_eq!(status["spool"]["bytes"], 0);
    assert!(agent.terminate().success());
    let files = std::fs::read_dir(spool.path()).unwrap().map(|entry| entry.unwrap().path());
    let segments: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|end| end == "segment")).collect();
    assert!(segments.is_empty(), "{segments:?}");
}
