//! Duration of a durable `/allocate` with several concurrent jobs, compared with bare commits of the same
//! bytes on the same disk at the same concurrency: the same number of threads, each with its own connection.
//! All in one run on one machine, alternating.
//!
//! `cargo bench -p evenstep-predictor --bench durable [-- FLAGS]` prints milliseconds and ratios. `--help`
//! lists the flags.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark prints, and panics if its set-up fails"
)]

mod bare;
mod restart;
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use clap::Parser;
use evenstep_tests::Predictor;
use evenstep_tests::postgres::Database;

use bare::Committer;
use support::{KeptAliveConnection, percentiles, request};

/// Workers of each job.
const WORKERS: usize = 4;
/// Iterations of each job before the measurement.
const WARM_UP: usize = 50;
/// Number of alternating blocks.
const BLOCKS: usize = 5;

/// Compare durable /allocate with bare commits of the same bytes.
#[derive(Debug, Parser)]
struct Args {
    /// Numbers of concurrent jobs to measure, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16])]
    jobs: Vec<usize>,
    /// Commits of each kind, per number of jobs
    #[arg(long, default_value_t = 2000)]
    commits: usize,
    /// URL of a PostgreSQL database used as the store; it must allow creating databases (`scripts/postgres
    /// start`)
    #[arg(long)]
    postgres: Option<String>,
    /// Instead, measure restarts of a job with this number of workers; takeovers on PostgreSQL
    #[arg(long)]
    restart: Option<usize>,
    /// Iterations of that job
    #[arg(long, default_value_t = 300)]
    iterations: u64,
    /// Iterations of that job since its models were stored; without it, they never were
    #[arg(long)]
    since_stored: Option<u64>,
    /// Flag that cargo adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    if let Some(workers) = args.restart {
        return restart::measure(workers, args.iterations, args.since_stored, args.postgres.as_deref());
    }
    let store = if args.postgres.is_some() { "PostgreSQL" } else { "SQLite WAL with a sync at every commit" };
    println!("{WORKERS} workers per job, {store}; ms");
    println!(
        "{:>6}{:>26}{:>26}{:>18}",
        "jobs", "bare commit p50 / p99", "/allocate p50 / p99", "ratio p50 / p99"
    );
    for jobs in &args.jobs {
        let [bare, allocate] = measure(*jobs, args.commits, args.postgres.as_deref());
        println!(
            "{jobs:>6}{:>26}{:>26}{:>18}   aim: 2",
            format!("{:.3} / {:.3}", bare[0], bare[1]),
            format!("{:.3} / {:.3}", allocate[0], allocate[1]),
            format!("{:.2} / {:.2}", allocate[0] / bare[0], allocate[1] / bare[1]),
        );
    }
}

fn measure(jobs: usize, commits: usize, postgres: Option<&str>) -> [[f64; 2]; 2] {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let database = postgres.map(Database::on);
    let binary = Path::new(env!("CARGO_BIN_EXE_evenstep-predictor"));
    let predictor = match &database {
        Some(database) => Predictor::start_over(binary, &database.url(), &[]),
        None => Predictor::start(binary, folder.path()),
    };
    let address: SocketAddr =
        predictor.url.trim_start_matches("http://").parse().expect("the address of the predictor");
    let mut ranks: Vec<RankZero> = (0..jobs).map(|job| RankZero::new(address, job)).collect();
    // Bytes stored per round: the response and the reports.
    let kept = ranks[0].request().len() + allocate_request("job-0", WARM_UP).len();
    let committer = |_| match &database {
        Some(database) => Committer::postgres(&database.url(), kept),
        None => Committer::sqlite(&folder.path().join("bare.db"), kept),
    };
    let mut committers: Vec<Committer> = (0..jobs).map(committer).collect();
    let (mut bare, mut allocate) = (vec![], vec![]);
    let each = (commits / jobs / BLOCKS).max(1);
    for _ in 0..BLOCKS {
        bare.extend(at_once(&mut committers, each, Committer::commit));
        allocate.extend(at_once(&mut ranks, each, |rank| drop(rank.request())));
    }
    [percentiles(&mut bare), percentiles(&mut allocate)]
}

/// Durations of `rounds` rounds in all threads at once, in milliseconds.
fn at_once<T: Send>(all: &mut [T], rounds: usize, round: impl Fn(&mut T) + Sync) -> Vec<f64> {
    let ready = Barrier::new(all.len());
    std::thread::scope(|scope| {
        let (ready, round) = (&ready, &round);
        let threads: Vec<_> = all
            .iter_mut()
            .map(|one| {
                scope.spawn(move || {
                    ready.wait();
                    let timed = |_| {
                        let started = Instant::now();
                        round(one);
                        started.elapsed().as_secs_f64() * 1e3
                    };
                    (0..rounds).map(timed).collect::<Vec<f64>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    })
}

/// Rank 0 of one job.
struct RankZero {
    connected: KeptAliveConnection,
    job: String,
    iteration: usize,
}

impl RankZero {
    fn new(address: SocketAddr, job: usize) -> Self {
        let mut connected = KeptAliveConnection::to(address);
        let job = format!("job-{job}");
        connected.call("PUT", &format!("/v1/jobs/{job}"), r#"{"global_batch":1024}"#);
        for worker in 0..WORKERS {
            let join = format!(r#"{{"worker":"node/{worker}"}}"#);
            connected.call("POST", &format!("/v1/jobs/{job}/workers"), &join);
        }
        let mut rank = Self { connected, job, iteration: 0 };
        for _ in 0..WARM_UP {
            rank.request();
        }
        rank
    }

    /// Requests the next iteration.
    fn request(&mut self) -> String {
        let request = request("", "POST", "/allocate", &allocate_request(&self.job, self.iteration));
        let answer = self.connected.send(&request);
        assert_eq!(answer.status, 200, "{}", answer.body);
        self.iteration += 1;
        answer.body
    }
}

/// A request for an iteration with the reports of the previous one.
fn allocate_request(job: &str, iteration: usize) -> String {
    let report = |worker: usize| {
        let noise = 1.0 + 0.1 * (((iteration * 7 + worker * 13) % 17) as f64 / 17.0 - 0.5);
        let (before, time, wave) = (iteration - 1, 0.1 * noise, (iteration % 10) as f64 / 10.0);
        format!(
            r#"{{"worker":"node/{worker}","iteration":{before},"local_batch":256,"compute_time_s":{time},"barrier_wait_s":0.01,"drivers":{{"psi_cpu_some":{wave},"run_queue_wait":0.08,"other_cpu":0.9,"own_cpu":0.97,"procs_running":3}}}}"#
        )
    };
    let reports: Vec<String> = if iteration == 0 { vec![] } else { (0..WORKERS).map(report).collect() };
    let reports = reports.join(",");
    format!(r#"{{"job_id":"{job}","generation":{WORKERS},"iteration":{iteration},"reports":[{reports}]}}"#)
}
