//! Number of heap allocations in the service per `/allocate`. They are counted in this process, while a
//! client that allocates nothing sends requests to it. SQLite's own allocations are not included, because
//! they do not use Rust's allocator.
//!
//! `cargo bench -p evenstep-predictor --bench allocations [-- ROUNDS]` prints the allocations (including
//! reallocations) and the bytes per request, as means over the rounds.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark prints, and panics if its set-up fails"
)]

use std::alloc::System;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use evenstep_predictor::app::App;
use evenstep_predictor::clock::Clock;
use evenstep_predictor::config::Config;
use evenstep_server::config::defaults;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Iterations before the measurement.
const WARM_UP: usize = 200;
/// Number of repeated iterations. Their responses and reports are still in memory.
const NEWEST: usize = 32;
/// Size limit of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

fn main() {
    let rounds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(300);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let store = format!("sqlite://{}", folder.path().join("service.db").display());
    let config =
        Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), store, ..defaults().expect("the defaults") };
    let app = runtime.block_on(App::open(&config, Clock::system())).expect("the service opens");
    let service = app.address();
    runtime.spawn(app.serve(std::future::pending()));
    let mut client = Client::new(service);

    println!("{rounds} rounds; per request");
    println!("{:<36}{:>14}{:>12}", "", "allocations", "KiB");
    for (workers, claims) in [(4, false), (4, true), (64, false)] {
        let job = format!("job-{workers}-{claims}");
        client.send(&request(
            "PUT",
            &format!("/v1/jobs/{job}"),
            &format!(r#"{{"global_batch":{}}}"#, 256 * workers),
        ));
        for worker in 0..workers {
            let join = format!(r#"{{"worker":"node/{worker}","claims":{claims}}}"#);
            client.send(&request("POST", &format!("/v1/jobs/{job}/workers"), &join));
        }
        let body = |iteration| request("POST", "/allocate", &allocate(&job, workers, claims, iteration));
        for iteration in 0..WARM_UP {
            client.send(&body(iteration));
        }
        let requests: Vec<Vec<u8>> = (WARM_UP..WARM_UP + rounds).map(body).collect();
        let hedged = if claims { ", shared tail" } else { "" };
        let newest: Vec<&Vec<u8>> = requests.iter().rev().take(NEWEST).collect();
        for (what, requests) in [("new iteration", requests.iter().collect()), ("repeated", newest)] {
            let region = Region::new(ALLOCATOR);
            requests.iter().for_each(|request| client.send(request));
            let counted = region.change();
            println!(
                "{:<36}{:>14.1}{:>12.1}",
                format!("{workers} workers{hedged}, {what}"),
                (counted.allocations + counted.reallocations) as f64 / requests.len() as f64,
                counted.bytes_allocated as f64 / 1024.0 / requests.len() as f64,
            );
        }
    }
}

/// One kept-alive connection that reads responses into the same buffer.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP stream");
        Self { stream, buffer: vec![0; RESPONSE_BYTES_MAX] }
    }

    /// Sends a request that must succeed, and reads its response.
    fn send(&mut self, request: &[u8]) {
        self.stream.write_all(request).expect("the server reads");
        let mut read = 0;
        let (head, length) = loop {
            read += self.stream.read(&mut self.buffer[read..]).expect("the server responds");
            if let Some(end) = self.buffer[..read].windows(4).position(|four| four == b"\r\n\r\n") {
                break (end + 4, content_length(&self.buffer[..end]));
            }
        };
        let whole = head + length;
        self.stream.read_exact(&mut self.buffer[read.min(whole)..whole]).expect("the whole response");
        assert_eq!(&self.buffer[..10], b"HTTP/1.1 2", "{}", String::from_utf8_lossy(&self.buffer[..whole]));
    }
}

fn content_length(head: &[u8]) -> usize {
    let head = std::str::from_utf8(head).expect("headers");
    let length = head.split("\r\n").filter_map(|line| line.split_once(": "));
    let length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    length.map(|(_, length)| length.parse().expect("a length")).next().expect("a content-length")
}

fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    format!("{method} {path} {head}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// The body for an iteration, with the reports of the one before.
fn allocate(job: &str, workers: usize, claims: bool, iteration: usize) -> String {
    let report = |worker: usize| {
        let noise = 1.0 + 0.1 * (((iteration * 7 + worker * 13) % 17) as f64 / 17.0 - 0.5);
        let (before, time, wave) = (iteration - 1, 0.1 * noise, (iteration % 10) as f64 / 10.0);
        let tail = if claims {
            let time = time * 24.0 / 256.0;
            format!(r#""tail":{{"chunks":3,"samples":24,"compute_time_s":{time},"claim_time_s":0.001}},"#)
        } else {
            String::new()
        };
        format!(
            r#"{{"worker":"node/{worker}","iteration":{before},"local_batch":256,"compute_time_s":{time},"barrier_wait_s":0.01,"loader_wait_s":0.001,{tail}"drivers":{{"psi_cpu_some":{wave},"run_queue_wait":0.08,"other_cpu":0.9,"own_cpu":0.97,"procs_running":3}}}}"#
        )
    };
    let reports: Vec<String> = if iteration == 0 { vec![] } else { (0..workers).map(report).collect() };
    format!(
        r#"{{"job_id":"{job}","generation":{workers},"iteration":{iteration},"reports":[{}]}}"#,
        reports.join(",")
    )
}
