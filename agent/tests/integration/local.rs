//! Tests of the agent's local HTTP API.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::support::agent::Agent;
use crate::support::receiver::{Receiver, take};

#[test]
fn a_fresh_reading_covers_the_time_since_the_previous_request() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    let page = format!("/sample?pid={}", std::process::id());
    let (status, first) = agent.get(&page);
    assert_eq!(status, 200);
    assert!(first.get("window_s").is_none() && first["missing"]["own_cpu"].is_string(), "{first:#}");
    let start = Instant::now();
    let (_, second) = agent.get(&page);
    assert!(second["window_s"].as_f64().unwrap() <= start.elapsed().as_secs_f64() + 1.0);
    assert!(second["readings"]["own_cpu"].is_number(), "{second:#}");
    // A requested process is also added to the samples.
    agent.wait_until("watched", |status| status["watched_pids"][0] == std::process::id());
    assert!(agent.get("/sample").1["readings"]["memory_used"].is_number());
}

/// Any local user can request processes. That must not end the sampling of the configured process, nor of one
/// that is requested between the others.
#[test]
fn requests_for_many_processes_do_not_displace_the_others() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let sleeping = || Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let mut children: Vec<_> = (0..82).map(|_| sleeping()).collect();
    let pids: Vec<u32> = children.iter().map(Child::id).collect();
    let (configured, worker, others) = (pids[0], pids[1], &pids[2..]);
    let agent = Agent::start(&receiver.url(), spool.path(), &["--watch-pid", &configured.to_string()]);
    for part in others.chunks(40) {
        agent.get(&format!("/sample?pid={worker}"));
        for pid in part {
            assert_eq!(agent.get(&format!("/sample?pid={pid}")).0, 200);
        }
    }
    let watched = agent.status()["watched_pids"].clone();
    let watched: Vec<u32> = serde_json::from_value(watched).unwrap();
    assert!(watched.contains(&configured) && watched.contains(&worker), "{watched:?}");
    assert_eq!(watched.len(), 1 + 64);
    // Processes that have ended leave the list.
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    agent.wait_until("no process is watched", |status| status["watched_pids"].as_array().unwrap().is_empty());
}

#[test]
fn invalid_requests_get_problem_responses() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    for (page, status, slug) in [
        ("/sample?pid=x", 400, "malformed"),
        ("/sample?pdi=1", 400, "malformed"),
        ("/sample?pid=self", 400, "malformed"),
        ("/sample?gpu=0", 400, "malformed"),
        ("/sample?pid=4294967294", 404, "unknown-process"),
        ("/nothing", 404, "unknown-path"),
    ] {
        let (code, problem) = agent.get(page);
        assert_eq!(
            (code, problem["type"].as_str().unwrap()),
            (status, &*format!("urn:evenstep:problem:{slug}"))
        );
        assert_eq!(problem["status"], status);
    }
    assert_eq!(agent.get("/healthz").0, 200);
}

#[test]
fn missing_readings_are_counted_in_the_status() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    let status = agent.wait_until("sampled", |status| status["samples_taken"].as_u64().unwrap() >= 10);
    let missing = status["missing"].as_array().unwrap();
    let cpu_busy = missing.iter().find(|entry| entry["name"] == "cpu_busy").unwrap();
    // At an interval of 20 ms, the first samples do not reach the look-back of 100 ms.
    assert!(cpu_busy["count"].as_u64().unwrap() >= 1 && cpu_busy["source"] == "host", "{status:#}");
}

#[test]
fn a_spool_and_an_address_in_use_are_named() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    let taken = agent.listening.to_string();
    let other = tempfile::tempdir().unwrap();
    for (directory, listen, named) in
        [(spool.path(), "127.0.0.1:0", "--spool-dir"), (other.path(), taken.as_str(), taken.as_str())]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenstep-agent"));
        let output = command.args(["--listen", listen, "--spool-dir"]).arg(directory).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(named), "{text}");
    }
}

/// The overflow user of Linux, `nobody`.
const NOBODY: u32 = 65534;
/// Sends a request for the process in `$2`, or of the shell itself, to the port in `$1`, and prints the response.
const ASK: &str = r#"
exec 3<> /dev/tcp/127.0.0.1/$1
printf 'GET /sample?pid=%s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n' "${2:-$$}" >&3
cat <&3
"#;

#[test]
fn only_root_reads_the_processes_of_other_users() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!(
            "SKIPPED only_root_reads_the_processes_of_other_users: only root can run a process of another user"
        );
        return;
    }
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let ask = |agent: &Agent, pid: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", ASK, "bash", &agent.listening.port().to_string(), pid]).uid(NOBODY).gid(NOBODY);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let own = std::process::id().to_string();
    let mut child = Command::new("cat").stdin(Stdio::piped()).uid(NOBODY).spawn().unwrap();
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    let rejection = ask(&agent, &own);
    assert!(rejection.starts_with("HTTP/1.1 403 ") && rejection.contains("foreign-process"), "{rejection}");
    assert!(rejection.contains("belongs to user 0, and the request is from user 65534"), "{rejection}");
    assert_eq!(agent.status()["watched_pids"].as_array().unwrap().len(), 0, "a rejection changes nothing");
    for pid in ["", &child.id().to_string()] {
        let response = ask(&agent, pid);
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }
    assert_eq!(agent.get(&format!("/sample?pid={}", child.id())).0, 200, "root may read all");
    drop(agent);
    let agent = Agent::start(&receiver.url(), spool.path(), &["--any-user"]);
    assert!(ask(&agent, &own).starts_with("HTTP/1.1 200 "));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn pages_of_other_sites_read_nothing() {
    let (spool, receiver) = (tempfile::tempdir().unwrap(), Receiver::here(take));
    let agent = Agent::start(&receiver.url(), spool.path(), &[]);
    let ask = |path: &str, host: &str| {
        let mut stream = TcpStream::connect(agent.listening).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    };
    for path in ["/sample", "/status", "/metrics"] {
        for host in
            ["evil.example", "evil.example:7118", "localhost.evil.example", "127.0.0.1.evil.example", ""]
        {
            let rejection = ask(path, host);
            assert!(
                rejection.starts_with("HTTP/1.1 421 ") && rejection.contains("foreign-host"),
                "{host}: {rejection}"
            );
        }
        for host in ["localhost", "LocalHost:7118", "127.0.0.1:7118", "[::1]:7118"] {
            let response = ask(path, host);
            assert!(response.starts_with("HTTP/1.1 200 "), "{host}: {response}");
        }
    }
    assert!(ask("/healthz", "evil.example").starts_with("HTTP/1.1 200 "));
}
