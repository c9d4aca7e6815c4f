//! Duration of one iteration by the number of workers: every worker reports the previous iteration, and the
//! next one is planned. A cost that grows faster than the number of workers shows in the last column.
//!
//! `cargo bench -p evenstep-predictor --bench workers [-- WORKERS ..]` prints microseconds per iteration and
//! worker. With `state`, it only measures the state of a job, in CPU time of all cores, and with `http` only the service, in
//! wall time.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark prints, and panics if its set-up fails"
)]

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

use evenstep_core::job::{JobState, Models, Restored, WorkerState, controller};
use evenstep_core::membership::{Member, State};
use evenstep_predictor::app::App;
use evenstep_predictor::clock::Clock;
use evenstep_predictor::config::Config;
use evenstep_protocol::{AllocateRequest, JobId, JobSpec, JoinRequest, WorkerId, WorkerReport};
use evenstep_server::config::defaults;

use rustix::time::{ClockId, clock_gettime};
use support::{KeptAliveConnection, percentiles};

/// Numbers of workers that are measured by default.
const WORKERS: [usize; 4] = [10, 100, 1_000, 10_000];
/// Iterations before the measurement: the forecast errors of this number of iterations are kept.
const WARM_UP: u64 = 132;
/// Measured iterations.
const ROUNDS: u64 = 10;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|given| !given.starts_with('-')).collect();
    let asked: Vec<usize> = arguments.iter().filter_map(|given| given.parse().ok()).collect();
    let workers = if asked.is_empty() { WORKERS.to_vec() } else { asked };
    let only = |what: &str| arguments.iter().any(|given| given == what);
    println!("{ROUNDS} iterations after {WARM_UP}; median, ms per iteration and us per worker");
    if !only("http") {
        println!("CPU time of the state of a job");
        println!(
            "{:<10}{:>12}{:>12}{:>12}{:>12}{:>12}",
            "workers", "known", "observe", "decide", "sum", "us/worker"
        );
        for &workers in &workers {
            state(workers);
        }
    }
    if !only("state") {
        println!("wall time of the service, with client and store");
        println!(
            "{:<10}{:>12}{:>12}{:>14}{:>14}{:>14}",
            "workers", "request", "us/worker", "MiB before", "MiB after", "MiB deleted"
        );
        for &workers in &workers {
            http(workers);
        }
    }
}

fn worker(number: usize) -> WorkerId {
    WorkerId::new(format!("node-{}/{}", number / 8, number % 8)).expect("a worker id")
}

fn spec(workers: usize) -> JobSpec {
    JobSpec::new(128 * workers as u64)
}

/// The reports of an iteration: speeds that vary, and the drivers of a trainer.
fn reports(workers: usize, iteration: u64) -> Vec<WorkerReport> {
    let report = |number: usize| {
        let noise = 1.0 + 0.1 * (((iteration as usize * 7 + number * 13) % 17) as f64 / 17.0 - 0.5);
        let base = 0.1 * (1.0 + (number % 5) as f64 * 0.2);
        let wave = (iteration % 10) as f64 / 10.0;
        let drivers = [
            ("psi_cpu_some", wave),
            ("run_queue_wait", 0.08),
            ("other_cpu", 0.9),
            ("own_cpu", 0.97),
            ("procs_running", 3.0),
        ];
        WorkerReport {
            barrier_wait_s: Some(0.01),
            loader_wait_s: Some(0.001),
            drivers: drivers.map(|(name, value)| (name.to_owned(), value)).into(),
            ..WorkerReport::new(worker(number), iteration, 128, base * noise)
        }
    };
    (0..workers).map(report).collect()
}

/// Measures a job's state: the workers of the reports are known and renewed, the reports are learned from,
/// and an iteration is planned.
fn state(workers: usize) {
    let member = |number| Member {
        id: worker(number),
        state: State::Live,
        last_seen_ms: 0,
        departures_ms: VecDeque::new(),
    };
    let known = |number| (worker(number), WorkerState::new(JoinRequest::new(worker(number))));
    let mut state = JobState::restore(Restored {
        kept_from: 0,
        generation: workers as u64,
        departed_generation: 0,
        members: (0..workers).map(member).collect(),
        workers: BTreeMap::from_iter((0..workers).map(known)),
        models: Models::new(),
        learning_rate: controller(&spec(workers)).expect("a rule"),
        last_iteration: None,
        last_allocation: None,
        spec: spec(workers),
    });
    let job = JobId::new("bench").expect("a job id");
    let mut times: [Vec<f64>; 3] = Default::default();
    for iteration in 0..WARM_UP + ROUNDS {
        let reports = if iteration == 0 { Vec::new() } else { reports(workers, iteration - 1) };
        let request = AllocateRequest::new(job.clone(), workers as u64, iteration);
        let marks = [
            timed(|| {
                assert!(reports.iter().all(|report| state.members.knows(&report.worker)));
                reports.iter().for_each(|report| state.members.renew(&report.worker, iteration as i64));
            }),
            timed(|| drop(state.observe(&reports))),
            timed(|| {
                let decided = state.decide(&request).expect("no bounds");
                state.apply(decided);
            }),
        ];
        if iteration >= WARM_UP {
            times.iter_mut().zip(marks).for_each(|(times, ms)| times.push(ms));
        }
    }
    let [known, observe, decide] = times.map(|mut times| percentiles(&mut times)[0]);
    let sum = known + observe + decide;
    println!(
        "{workers:<10}{known:>12.3}{observe:>12.3}{decide:>12.3}{sum:>12.3}{:>12.2}",
        sum * 1e3 / workers as f64
    );
}

/// Measures whole requests over HTTP, and the memory of the process before the job, with it, and after its
/// deletion.
fn http(workers: usize) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let store = format!("sqlite://{}", folder.path().join("service.db").display());
    let config =
        Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), store, ..defaults().expect("the defaults") };
    let app = runtime.block_on(App::open(&config, Clock::system())).expect("the service opens");
    let service = app.address();
    runtime.spawn(app.serve(std::future::pending()));
    let mut client = KeptAliveConnection::to(service);
    let before = resident_mib();
    let options = serde_json::to_string(&spec(workers)).expect("JSON");
    client.call("PUT", "/v1/jobs/bench", &options);
    for number in 0..workers {
        client.call("POST", "/v1/jobs/bench/workers", &format!(r#"{{"worker":"{}"}}"#, worker(number)));
    }
    let mut times = Vec::new();
    for iteration in 0..ROUNDS + 3 {
        let mut request =
            AllocateRequest::new(JobId::new("bench").expect("a job id"), workers as u64, iteration);
        if iteration > 0 {
            request.reports = reports(workers, iteration - 1);
        }
        let body = serde_json::to_string(&request).expect("JSON");
        let started = Instant::now();
        drop(client.call("POST", "/allocate", &body));
        let ms = started.elapsed().as_secs_f64() * 1e3;
        if iteration >= 3 {
            times.push(ms);
        }
    }
    let after = resident_mib();
    client.call("DELETE", "/v1/jobs/bench", "");
    let deleted = resident_mib();
    let [request, _] = percentiles(&mut times);
    println!(
        "{workers:<10}{request:>12.3}{:>12.2}{before:>14.0}{after:>14.0}{deleted:>14.0}",
        request * 1e3 / workers as f64
    );
}

/// Resident memory of this process, in MiB.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib / 1024.0
}

/// Returns the CPU time of all threads, in milliseconds: other programs on the machine hardly change it.
fn timed(what: impl FnOnce()) -> f64 {
    let cpu_s = || {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let started = cpu_s();
    what();
    (cpu_s() - started) * 1e3
}
