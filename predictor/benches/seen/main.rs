//! Cost of observation: the duration of `/metrics` with many workers, of charts and lists of jobs with a long history, and
//! the effect of scrapes, event streams and viewers on the `/allocate` of a concurrent training job. All in one run on one
//! machine, alternating.
//!
//! `cargo bench -p evenstep-predictor --bench seen [-- FLAGS]` prints milliseconds and ratios. `--help` lists
//! the flags.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark prints, and panics if its set-up fails"
)]

#[path = "../support/mod.rs"]
mod support;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use evenstep_tests::Predictor;
use evenstep_tests::store::{sqlite_file, sqlite_rows};

use support::{KeptAliveConnection, percentiles, request};

/// Workers of each job that is only observed.
const WORKERS: usize = 100;
/// Workers of the job that sends requests.
const TRAINING_WORKERS: usize = 4;
/// Iterations of each job before the measurement.
const WARM_UP: usize = 30;
/// Workers of the job with many workers whose history is read.
const WIDE_WORKERS: usize = 1024;
/// Number of timed readings of a view.
const LOOKS: usize = 20;
/// Number of alternating blocks.
const BLOCKS: usize = 6;

/// Measure the cost of scrapes and event streams.
#[derive(Debug, Parser)]
struct Args {
    /// Workers over all jobs, 100 in each
    #[arg(long, default_value_t = 1000)]
    workers: usize,
    /// Requests per block
    #[arg(long, default_value_t = 400)]
    asks: usize,
    /// Number of timed scrapes
    #[arg(long, default_value_t = 200)]
    scrapes: usize,
    /// Interval of scrapes during requests, in milliseconds; Prometheus scrapes every 15 s, and at most once
    /// per second
    #[arg(long, default_value_t = 1000)]
    every_ms: u64,
    /// Event streams that follow the job during requests
    #[arg(long, default_value_t = 8)]
    streams: usize,
    /// Iterations of the job with 1,024 workers whose history is read. Each takes half a megabyte on disk
    #[arg(long, default_value_t = 1000)]
    wide_iterations: u64,
    /// Iterations of the job with 4 workers whose history is read
    #[arg(long, default_value_t = 100_000)]
    iterations: u64,
    /// Viewers that read the history during requests
    #[arg(long, default_value_t = 6)]
    viewers: usize,
    /// Flag that cargo adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let predictor = Predictor::start(Path::new(env!("CARGO_BIN_EXE_evenstep-predictor")), folder.path());
    let address: SocketAddr =
        predictor.url.trim_start_matches("http://").parse().expect("the address of the predictor");
    for job in 0..args.workers / WORKERS {
        let mut rank = RankZero::new(address, format!("seen-{job}"), WORKERS);
        (0..WARM_UP).for_each(|_| rank.request());
    }
    let mut scraper = KeptAliveConnection::to(address);
    let scrape = request("", "GET", "/metrics", "");
    let bytes = scraper.send(&scrape).body.len();
    let mut scrapes: Vec<f64> = (0..args.scrapes).map(|_| timed(|| drop(scraper.send(&scrape)))).collect();
    let [p50, p99] = percentiles(&mut scrapes);
    println!(
        "/metrics, {} workers, {} kB: p50 {p50:.1} ms, p99 {p99:.1} ms   aim: under 50",
        args.workers,
        bytes / 1000
    );

    let mut rank = RankZero::new(address, "asking".into(), TRAINING_WORKERS);
    (0..WARM_UP).for_each(|_| rank.request());
    let (mut alone, mut seen) = (Vec::new(), Vec::new());
    for _ in 0..BLOCKS {
        alone.extend((0..args.asks).map(|_| timed(|| rank.request())));
        seen.extend(while_observed(address, &args, || {
            (0..args.asks).map(|_| timed(|| rank.request())).collect()
        }));
    }
    let (alone, seen) = (percentiles(&mut alone), percentiles(&mut seen));
    println!(
        "/allocate, {TRAINING_WORKERS} workers, p50 / p99: alone {:.3} / {:.3} ms; with a scrape every {} ms and {} streams {:.3} / {:.3} ms; ratio {:.2} / {:.2}",
        alone[0],
        alone[1],
        args.every_ms,
        args.streams,
        seen[0],
        seen[1],
        seen[0] / alone[0],
        seen[1] / alone[1],
    );
    for (job, workers, iterations) in
        [("wide", WIDE_WORKERS, args.wide_iterations), ("long", TRAINING_WORKERS, args.iterations)]
    {
        let mut rank_zero = RankZero::new(address, job.into(), workers);
        (0..4).for_each(|_| rank_zero.request());
        lengthen(&sqlite_file(folder.path()), job, iterations);
        let mut viewer = KeptAliveConnection::to(address);
        for path in [
            format!("/v1/jobs/{job}/history?from_unix_ms=0&points=1000"),
            format!("/v1/jobs/{job}/summary"),
            "/v1/jobs".to_owned(),
        ] {
            let look = request("", "GET", &path, "");
            let bytes = viewer.send(&look).body.len();
            let [p50, p99] =
                percentiles(&mut (0..LOOKS).map(|_| timed(|| drop(viewer.send(&look)))).collect::<Vec<_>>());
            println!(
                "{path}, {workers} workers, {iterations} iterations, {} kB: p50 {p50:.1} ms, p99 {p99:.1} ms   aim: under 50",
                bytes / 1000
            );
        }
    }
    let (mut alone, mut seen) = (Vec::new(), Vec::new());
    for _ in 0..BLOCKS {
        alone.extend((0..args.asks).map(|_| timed(|| rank.request())));
        seen.extend(while_viewed(address, &args, || {
            (0..args.asks).map(|_| timed(|| rank.request())).collect()
        }));
    }
    let (alone, seen) = (percentiles(&mut alone), percentiles(&mut seen));
    println!(
        "/allocate, {TRAINING_WORKERS} workers, p50 / p99: alone {:.3} / {:.3} ms; with {} viewers {:.3} / {:.3} ms; ratio {:.2} / {:.2}",
        alone[0],
        alone[1],
        args.viewers,
        seen[0],
        seen[1],
        seen[0] / alone[0],
        seen[1] / alone[1],
    );
}

/// Repeats the third iteration of a job in the store, as long as it is to be.
fn lengthen(file: &Path, job: &str, iterations: u64) {
    let stored = format!("SELECT shown FROM step WHERE job_id = '{job}' AND iteration = 2");
    while sqlite_rows(file, &stored).is_empty() {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let numbers =
        format!("WITH RECURSIVE n(i) AS (SELECT 4 UNION ALL SELECT i + 1 FROM n WHERE i < {iterations})");
    for (table, columns) in [
        ("allocation", "generation, answer"),
        ("step", "shown"),
        ("report", "worker, local_batch, compute_time_s, barrier_wait_s, drivers"),
    ] {
        let insert = format!(
            "{numbers} INSERT INTO {table} (job_id, iteration, at_unix_ms, {columns})
             SELECT job_id, i, at_unix_ms + i, {columns} FROM n CROSS JOIN {table}
             WHERE job_id = '{job}' AND iteration = 2 ORDER BY i"
        );
        sqlite_rows(file, &insert);
    }
}

/// Runs `work` while viewers read the history of the long job without a pause.
fn while_viewed(address: SocketAddr, args: &Args, work: impl FnOnce() -> Vec<f64>) -> Vec<f64> {
    let (over, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..args.viewers {
            scope.spawn(|| {
                let mut viewer = KeptAliveConnection::to(address);
                let look = request("", "GET", "/v1/jobs/long/history?from_unix_ms=0&points=1000", "");
                while !over.load(Ordering::Relaxed) {
                    viewer.send(&look);
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while looks.load(Ordering::Relaxed) < args.viewers {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })
}

/// Runs `work` during scrapes and event streams.
fn while_observed(address: SocketAddr, args: &Args, work: impl FnOnce() -> Vec<f64>) -> Vec<f64> {
    let (over, open) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut scraper = KeptAliveConnection::to(address);
            let scrape = request("", "GET", "/metrics", "");
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                scraper.send(&scrape);
                open.fetch_add(1, Ordering::Relaxed);
                while begun.elapsed() < Duration::from_millis(args.every_ms) && !over.load(Ordering::Relaxed)
                {
                    std::thread::park_timeout(Duration::from_millis(5));
                }
            }
        });
        for _ in 0..args.streams {
            scope.spawn(|| follow(address, &over, &open));
        }
        while open.load(Ordering::Relaxed) <= args.streams {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })
}

/// Reads a stream until it is over.
fn follow(address: SocketAddr, over: &AtomicBool, open: &AtomicUsize) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let ask = request("", "GET", "/v1/jobs/asking/live", "");
    std::io::Write::write_all(&mut stream, &ask).expect("a request");
    let (mut buffer, mut is_open) = ([0; 65_536], false);
    while !over.load(Ordering::Relaxed) {
        if matches!(stream.read(&mut buffer), Ok(read) if read > 0) && !is_open {
            is_open = true;
            open.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Duration of `work`, in milliseconds.
fn timed(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64() * 1e3
}

/// Rank 0 of one job.
struct RankZero {
    connected: KeptAliveConnection,
    job: String,
    workers: usize,
    iteration: usize,
}

impl RankZero {
    fn new(address: SocketAddr, job: String, workers: usize) -> Self {
        let mut connected = KeptAliveConnection::to(address);
        connected.call(
            "PUT",
            &format!("/v1/jobs/{job}"),
            &format!(r#"{{"global_batch":{}}}"#, 256 * workers),
        );
        for worker in 0..workers {
            let join = format!(r#"{{"worker":"node/{worker}","device":"cpu"}}"#);
            connected.call("POST", &format!("/v1/jobs/{job}/workers"), &join);
        }
        Self { connected, job, workers, iteration: 0 }
    }

    /// Requests the next iteration, with the reports of the previous one.
    fn request(&mut self) {
        let report = |worker: usize| {
            let noise = 1.0 + 0.1 * (((self.iteration * 7 + worker * 13) % 17) as f64 / 17.0 - 0.5);
            let (before, time) = (self.iteration - 1, 0.1 * noise);
            format!(
                r#"{{"worker":"node/{worker}","iteration":{before},"local_batch":256,"compute_time_s":{time},"barrier_wait_s":0.01,"drivers":{{"psi_cpu_some":0.2}}}}"#
            )
        };
        let reported = if self.iteration == 0 { 0 } else { self.workers };
        let reports = (0..reported).map(report).collect::<Vec<String>>().join(",");
        let body = format!(
            r#"{{"job_id":"{}","generation":{},"iteration":{},"reports":[{reports}]}}"#,
            self.job, self.workers, self.iteration
        );
        let answer = self.connected.send(&request("", "POST", "/allocate", &body));
        assert_eq!(answer.status, 200, "{}", answer.body);
        self.iteration += 1;
    }
}
