//! More telemetry than the store can write: every connection repeats rejected requests at once and ignores
//! Retry-After. The table shows the memory of the service, the rejected requests, and the duration of
//! `/allocate` meanwhile. At the end, every acknowledged sample must be stored once.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenstep_protocol::NodesView;

use crate::Place;
use crate::samples::{Row, body, sample};
use crate::support::{KeptAliveConnection, percentiles, request};

/// Samples in a batch: the limit of the API.
const SAMPLES: usize = 1000;
/// Number of sending connections per connection of `--connections`.
const CONNECTIONS_FACTOR: usize = 16;
/// Number of lines of the table.
const LINES: u32 = 30;
/// Placeholder for the sequence number of a request.
const SEQUENCE: &str = "1000000000";

#[derive(Default)]
struct Counts {
    taken: AtomicU64,
    refused: AtomicU64,
    longest_retry_after_s: AtomicU64,
    allocate_ms: Mutex<Vec<f64>>,
}

/// Runs the benchmark with 16 times `connections` connections.
pub fn run(place: &Place, lasts: Duration, connections: usize) {
    let connections = connections * CONNECTIONS_FACTOR;
    let (predictor, address) = place.start();
    let counts = Counts::default();
    let until = Instant::now() + lasts;
    println!(
        "{connections} connections, batches of {SAMPLES} samples, at full speed for {} s",
        lasts.as_secs()
    );
    println!(
        "{:>8}{:>12}{:>12}{:>12}{:>10}{:>12}{:>16}",
        "s", "memory MB", "samples/s", "429s/s", "share", "retry s", "allocate ms"
    );
    std::thread::scope(|scope| {
        let counts = &counts;
        for node in 0..connections {
            scope.spawn(move || send(address, node, until, counts));
        }
        scope.spawn(move || allocate(address, until, counts));
        let begun = Instant::now();
        let mut before = Seen::default();
        for line in 1..=LINES {
            pause_until(begun + lasts / LINES * line);
            let now = Seen::of(counts, begun);
            now.print(&before, memory_mb(predictor.process.id(), "VmRSS"), counts);
            before = now;
        }
    });
    let taken = counts.taken.load(Ordering::Relaxed) * SAMPLES as u64;
    let stored: NodesView =
        serde_json::from_str(&KeptAliveConnection::to(address).call("GET", "/v1/nodes", ""))
            .expect("the nodes");
    let stored: u64 = stored.nodes.iter().map(|node| node.samples).sum();
    println!(
        "{taken} samples acknowledged, {stored} stored, peak memory {} MB",
        memory_mb(predictor.process.id(), "VmHWM")
    );
    assert_eq!(taken, stored, "each acknowledged sample is stored once, and no others are");
}

/// Sends the batches of one node, one after the other.
fn send(address: SocketAddr, node: usize, until: Instant, counts: &Counts) {
    let first: u64 = SEQUENCE.parse().expect("a number");
    let row = |at: usize| Row { sequence: (first as usize + at) as i64, at_unix_ms: 0, sample: sample(at) };
    let rows: Vec<Row> = (0..SAMPLES).map(row).collect();
    let mut request = request("", "POST", "/v1/telemetry", &body(&format!("node-{node}"), &rows));
    let marked = format!("\"sequence\":{SEQUENCE}");
    let found = request.windows(marked.len()).position(|bytes| bytes == marked.as_bytes());
    let digits = found.expect("a sequence number") + marked.len() - SEQUENCE.len();
    let mut connected = KeptAliveConnection::to(address);
    let (mut sequence, mut text) = (first, String::new());
    while Instant::now() < until {
        text.clear();
        write!(text, "{sequence}").expect("text");
        request[digits..digits + SEQUENCE.len()].copy_from_slice(text.as_bytes());
        let answer = connected.send(&request);
        match answer.status {
            200 => {
                counts.taken.fetch_add(1, Ordering::Relaxed);
                sequence += SAMPLES as u64;
            }
            429 => {
                counts.refused.fetch_add(1, Ordering::Relaxed);
                let after = answer.retry_after_s.expect("429 has Retry-After");
                counts.longest_retry_after_s.fetch_max(after, Ordering::Relaxed);
            }
            status => panic!("{status}: {}", answer.body),
        }
    }
}

/// Runs one job meanwhile.
fn allocate(address: SocketAddr, until: Instant, counts: &Counts) {
    let mut connected = KeptAliveConnection::to(address);
    // The workers do not report: without a long lease they would expire after two minutes.
    connected.call("PUT", "/v1/jobs/bench", r#"{"global_batch":1024,"lease_s":86400}"#);
    for worker in 0..2 {
        connected.call("POST", "/v1/jobs/bench/workers", &format!(r#"{{"worker":"node/{worker}"}}"#));
    }
    for iteration in 0.. {
        if Instant::now() > until {
            return;
        }
        let started = Instant::now();
        connected.call(
            "POST",
            "/allocate",
            &format!(r#"{{"job_id":"bench","generation":2,"iteration":{iteration}}}"#),
        );
        let took_ms = started.elapsed().as_secs_f64() * 1e3;
        counts.allocate_ms.lock().expect("no panic").push(took_ms);
        pause_until(Instant::now() + Duration::from_millis(50));
    }
}

/// A snapshot of the counts.
#[derive(Default)]
struct Seen {
    at_s: f64,
    taken: u64,
    refused: u64,
}

impl Seen {
    fn of(counts: &Counts, begun: Instant) -> Self {
        Self {
            at_s: begun.elapsed().as_secs_f64(),
            taken: counts.taken.load(Ordering::Relaxed),
            refused: counts.refused.load(Ordering::Relaxed),
        }
    }

    /// Prints a line about the changes since `before`.
    fn print(&self, before: &Self, memory_mb: u64, counts: &Counts) {
        let lasted_s = self.at_s - before.at_s;
        let (taken, refused) = (self.taken - before.taken, self.refused - before.refused);
        let mut allocate_ms = std::mem::take(&mut *counts.allocate_ms.lock().expect("no panic"));
        // If no allocation completed meanwhile, the line shows NaN.
        let [p50, p99] = if allocate_ms.is_empty() { [f64::NAN; 2] } else { percentiles(&mut allocate_ms) };
        println!(
            "{:>8.0}{memory_mb:>12}{:>12.0}{:>12.0}{:>10.3}{:>12}{:>16}",
            self.at_s,
            (taken * SAMPLES as u64) as f64 / lasted_s,
            refused as f64 / lasted_s,
            refused as f64 / (taken + refused).max(1) as f64,
            counts.longest_retry_after_s.swap(0, Ordering::Relaxed),
            format!("{p50:.1} / {p99:.1}"),
        );
    }
}

/// A value of a process's memory, from the kernel.
fn memory_mb(process: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the service lives");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).expect("a line of memory");
    kilobytes.parse::<u64>().expect("kilobytes") / 1024
}

#[expect(clippy::disallowed_methods, reason = "pacing: samples and requests are sent at fixed times")]
fn pause_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}
