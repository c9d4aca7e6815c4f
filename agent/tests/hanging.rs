//! Tests of the real agent with a GPU driver that hangs.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::agent::Agent;
use support::nvml::FakeNvml;
use support::receiver::{Receiver, take};

fn gpu(status: &Value) -> &Value {
    let sources = status["sources"].as_array().unwrap();
    sources.iter().find(|state| state["source"] == "gpu").unwrap()
}

fn command(nvml: &FakeNvml, receiver: &Receiver, spool: &tempfile::TempDir) -> Command {
    let mut command = Agent::command(&receiver.url(), spool.path());
    nvml.replace_in(&mut command);
    command
}

/// While the driver hangs, all paths respond, samples contain the other sources, and the GPU is missing with
/// the reason. Afterwards the GPU is read again.
#[test]
fn a_driver_that_hangs_stops_only_its_own_readings() {
    let (nvml, spool) = (FakeNvml::build(), tempfile::tempdir().unwrap());
    let receiver = Receiver::here(take);
    let agent = Agent::run(&mut command(&nvml, &receiver, &spool));
    let page = format!("/sample?pid={}&gpu=0", std::process::id());
    let busy = || agent.metrics().contains_key("evenstep_gpu_busy_ratio{node=\"node-a\",gpu=\"0\"}");
    agent.wait_until("the GPU is read", |_| busy());
    assert_eq!(agent.get(&page).1["readings"]["gpu_busy"], 0.5);

    nvml.hang();
    agent.wait_until("the GPU hangs", |status| gpu(status).get("hangs_for_s").is_some());
    let (status, reading) = agent.get(&page);
    assert_eq!(status, 200);
    assert!(reading["missing"]["gpu_busy"].as_str().unwrap().starts_with("timed out"), "{reading:#}");
    assert!(reading["readings"]["own_cpu"].is_number(), "{reading:#}");
    assert!(agent.get("/sample").1["readings"]["memory_used"].is_number());
    let taken = agent.status()["samples_taken"].as_u64().unwrap();
    let status = agent
        .wait_until("samples are taken", |status| status["samples_taken"].as_u64().unwrap() >= taken + 20);
    let gap = |entry: &&Value| entry["source"] == "gpu" && entry["name"] == "gpu_busy";
    let missing = status["missing"].as_array().unwrap().iter().find(gap).unwrap();
    assert!(missing["last_reason"].as_str().unwrap().starts_with("timed out"), "{missing}");
    assert!(!busy(), "a reading that timed out has no series");
    let (code, health) = agent.get("/healthz");
    if code == 200 {
        assert!(gpu(&health)["age_s"].as_f64().unwrap() >= 1.0, "{health:#}");
    }
    let age = agent.metrics()["evenstep_agent_source_age_seconds{node=\"node-a\",source=\"gpu\"}"];
    assert!(age >= 1.0);

    nvml.release();
    agent.wait_until("the GPU responds", |status| gpu(status).get("hangs_for_s").is_none());
    agent.wait_until("the GPU is read again", |_| busy());
    assert_eq!(agent.get("/healthz").0, 200);
    assert!(agent.terminate().success());
}

/// After a hang the readers are created again. If the driver then lists no GPU, the known one is still read.
#[test]
fn a_gpu_that_is_no_longer_listed_after_a_hang_is_still_read() {
    let (nvml, spool) = (FakeNvml::build(), tempfile::tempdir().unwrap());
    let receiver = Receiver::here(take);
    let agent = Agent::run(&mut command(&nvml, &receiver, &spool));
    let busy = || agent.metrics().contains_key("evenstep_gpu_busy_ratio{node=\"node-a\",gpu=\"0\"}");
    agent.wait_until("the GPU is read", |_| busy());
    nvml.hang();
    agent.wait_until("the GPU is missing", |_| !busy());
    nvml.lose();
    nvml.release();
    agent.wait_until("the GPU is read again", |_| busy());
    assert!(agent.terminate().success());
}

#[test]
fn an_agent_whose_driver_hangs_ends_and_says_what_hung() {
    let (nvml, spool) = (FakeNvml::build(), tempfile::tempdir().unwrap());
    let receiver = Receiver::here(take);
    nvml.hang();
    let agent = Agent::run(command(&nvml, &receiver, &spool).stderr(Stdio::piped()));
    agent.wait_until("the GPU hangs", |status| gpu(status).get("hangs_for_s").is_some());
    let start = Instant::now();
    let (status, said) = agent.terminate_and_read();
    // Far above the limit of 5 s, but below a wait without a limit.
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("the gpu source"), "{said}");
}
