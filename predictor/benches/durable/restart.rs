//! The time to the first allocation of a job with many workers after its predictor was killed, and the `/allocate` of a job with
//! few workers meanwhile.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use evenstep_protocol::{AllocateRequest, JobId, JobSpec, JoinRequest, WorkerId, WorkerReport, driver};
use evenstep_tests::postgres::{Database, rows};
use evenstep_tests::store::{sqlite_file, sqlite_rows};
use evenstep_tests::{Client, Predictor};

use crate::support::{percentiles, request};

/// Workers of the job with few workers.
const FEW: usize = 8;
/// Pause between two requests for that job.
const PACE: Duration = Duration::from_millis(10);
/// Pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(20);
/// Lease of a predictor on PostgreSQL, in seconds.
const LEASE_S: f64 = 1.0;
/// Time after the first allocation in which the other job is still watched.
const AFTER: Duration = Duration::from_secs(2);

/// Number of its requests that are measured before.
const ALONE: usize = 200;

/// How the client of the wide job requests.
const CASES: [(&str, Option<Duration>); 3] = [
    ("patient", None),
    ("gives up after 2 s", Some(Duration::from_secs(2))),
    ("gives up after 50 ms", Some(Duration::from_millis(50))),
];

/// Measures restarts, or takeovers by another predictor if the store is PostgreSQL.
pub fn measure(workers: usize, iterations: u64, since_stored: Option<u64>, postgres: Option<&str>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let database = postgres.map(Database::on);
    let binary = Path::new(env!("CARGO_BIN_EXE_evenstep-predictor"));
    let refit = format!("--refit-interval-s={}", if since_stored.is_some() { 5 } else { 3600 });
    let lease = format!("--lease-s={LEASE_S}");
    let start = || match &database {
        Some(database) => Predictor::start_over(binary, &database.url(), &[&refit, &lease]),
        None => {
            Predictor::start_over(binary, &evenstep_tests::store::sqlite_address(folder.path()), &[&refit])
        }
    };
    let mut owner = start();
    let mut wide = Job::begin(&owner.url, "wide", workers);
    let mut few = Job::begin(&owner.url, "few", FEW);
    for _ in 0..iterations {
        wide.next(&owner.url);
        few.next(&owner.url);
    }
    println!(
        "{workers} workers, {iterations} iterations, models stored {} before; {} with a job of {FEW} workers",
        since_stored.map_or("never".into(), |later| format!("{later} iterations")),
        if database.is_some() { "takeover" } else { "restart" },
    );
    println!(
        "{:>22}{:>16}{:>12}{:>16}{:>12}{:>22}{:>22}",
        "client", "allocation s", "CPU s", "other up s", "rejected", "other p50 / p99 ms", "before"
    );
    for (client, gives_up) in CASES {
        if let Some(later) = since_stored {
            let stored =
                "SELECT CAST(at_unix_ms AS TEXT) FROM model_state WHERE job_id = 'wide' AND part = 0";
            let stored = || match &database {
                Some(database) => rows(&database.url(), stored),
                None => sqlite_rows(&sqlite_file(folder.path()), stored),
            };
            let before = stored();
            wide.next(&owner.url);
            while stored() == before || stored().is_empty() {
                park_timeout(PAUSE);
            }
            (1..later).for_each(|_| wide.next(&owner.url));
        }
        let next = database.is_some().then(&start);
        if let Some(next) = &next {
            // Without a job, a predictor has nothing to lose.
            few = Job::begin(&next.url, &format!("few-{}", next.process.id()), FEW);
            (0..100).for_each(|_| few.next(&next.url));
        }
        let watched = next.as_ref().unwrap_or(&owner).url.clone();
        let mut alone_ms = few.watch(&watched, |seen| seen == ALONE).times_ms;
        owner.process.kill();
        match next {
            Some(next) => owner = next,
            None => owner.restart(),
        }
        while !Client::new(&owner.url).try_get("/readyz").is_ok_and(|reply| reply.status == 200) {
            park_timeout(PAUSE);
        }
        let (url, over, before) = (owner.url.clone(), AtomicBool::new(false), cpu_s(owner.process.id()));
        let began = Instant::now();
        let (first, mut seen) = std::thread::scope(|scope| {
            let watched = scope.spawn(|| few.watch(&url, |_| over.load(Ordering::Relaxed)));
            let first = wide.first(&url, gives_up);
            park_timeout(AFTER);
            over.store(true, Ordering::Relaxed);
            (first, watched.join().expect("a thread"))
        });
        let cpu_s = cpu_s(owner.process.id()) - before;
        let up_s = seen.up.map_or(f64::NAN, |up| (up - began).as_secs_f64());
        let shown = |times_ms: &mut [f64]| {
            let [p50, p99] = percentiles(times_ms);
            format!("{p50:.1} / {p99:.1}")
        };
        println!(
            "{client:>22}{first:>16.2}{cpu_s:>12.2}{up_s:>16.2}{:>12}{:>22}{:>22}",
            seen.rejected,
            shown(&mut seen.times_ms),
            shown(&mut alone_ms),
        );
    }
}

/// CPU time of a process so far, in seconds.
fn cpu_s(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("Linux");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let ticks = |at: usize| fields.split_whitespace().nth(at).and_then(|ticks| ticks.parse().ok());
    ticks(11).zip(ticks(12)).map_or(f64::NAN, |(user, system): (f64, f64)| (user + system) / 100.0)
}

/// Requests an allocation and cuts the connection after a time. Returns whether the response was a redirect.
fn is_redirected(url: &str, body: &str, after: Duration) -> bool {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).expect("it listens");
    stream.set_read_timeout(Some(after)).expect("a time limit");
    stream.write_all(&request("", "POST", "/allocate", body)).expect("it reads");
    let mut status = [0; 12];
    stream.read_exact(&mut status).is_ok() && status.ends_with(b"307")
}

/// A job, and its next iteration.
struct Job {
    id: JobId,
    workers: Vec<WorkerId>,
    iteration: u64,
}

/// The requests for a job while another one is loaded.
struct Seen {
    /// Time of the first response.
    up: Option<Instant>,
    /// Number of requests that were rejected.
    rejected: usize,
    times_ms: Vec<f64>,
}

impl Job {
    fn begin(url: &str, id: &str, workers: usize) -> Self {
        let client = Client::new(url);
        client.put_job(id, &JobSpec { lease_s: 3600.0, ..JobSpec::new(128 * workers as u64) });
        let worker = |number| WorkerId::new(format!("node-{}/{}", number / 8, number % 8)).expect("an id");
        let workers: Vec<WorkerId> = (0..workers).map(worker).collect();
        for worker in &workers {
            let joined = client.post(&format!("/v1/jobs/{id}/workers"), &JoinRequest::new(worker.clone()));
            assert_eq!(joined.status / 100, 2, "{joined:?}");
        }
        Self { id: JobId::new(id).expect("an id"), workers, iteration: 0 }
    }

    /// The next request, with the reports of the iteration before: speeds that vary, and the drivers that agents read.
    fn request(&self) -> AllocateRequest {
        let Some(before) = self.iteration.checked_sub(1) else {
            return AllocateRequest::new(self.id.clone(), self.workers.len() as u64, 0);
        };
        let report = |(number, worker): (usize, &WorkerId)| {
            let noise = 1.0 + 0.1 * (((before as usize * 7 + number * 13) % 17) as f64 / 17.0 - 0.5);
            let base = 0.1 * (1.0 + (number % 5) as f64 * 0.2);
            let drivers = driver::ALL
                .iter()
                .enumerate()
                .map(|(at, name)| ((*name).to_owned(), 0.1 * ((at as u64 + before) % 10) as f64));
            WorkerReport {
                barrier_wait_s: Some(0.01),
                loader_wait_s: Some(0.001),
                drivers: drivers.collect(),
                ..WorkerReport::new(worker.clone(), before, 128, base * noise)
            }
        };
        AllocateRequest {
            reports: self.workers.iter().enumerate().map(report).collect(),
            ..AllocateRequest::new(self.id.clone(), self.workers.len() as u64, self.iteration)
        }
    }

    fn next(&mut self, url: &str) {
        let answer = Client::new(url).allocate(&self.request());
        assert_eq!(answer.status, 200, "{answer:?}");
        self.iteration += 1;
    }

    /// Repeats the next request until there is a response, and returns the time from the first request that another predictor
    /// does not redirect. A client that `gives_up` cuts its first request.
    fn first(&mut self, url: &str, gives_up: Option<Duration>) -> f64 {
        let (client, wanted) = (Client::new(url), self.request());
        let mut began = Instant::now();
        let body = serde_json::to_string(&wanted).expect("JSON");
        while gives_up.is_some_and(|after| is_redirected(url, &body, after)) {
            park_timeout(PAUSE);
            began = Instant::now();
        }
        loop {
            match client.try_post("/allocate", &wanted) {
                Ok(answer) if answer.status == 200 => break,
                Ok(answer) if answer.status == 307 => began = Instant::now(),
                Ok(answer) => assert_eq!(answer.status, 503, "{answer:?}"),
                Err(_) => {}
            }
            park_timeout(PAUSE);
        }
        self.iteration += 1;
        began.elapsed().as_secs_f64()
    }

    /// Requests iterations at its pace until it is over after a number of responses.
    fn watch(&mut self, url: &str, is_over: impl Fn(usize) -> bool) -> Seen {
        let client = Client::new(url);
        let mut seen = Seen { up: None, rejected: 0, times_ms: Vec::new() };
        while !is_over(seen.times_ms.len()) {
            let (wanted, began) = (self.request(), Instant::now());
            match client.try_post("/allocate", &wanted) {
                Ok(answer) if answer.status == 200 => {
                    seen.times_ms.push(began.elapsed().as_secs_f64() * 1e3);
                    seen.up.get_or_insert_with(Instant::now);
                    self.iteration += 1;
                }
                _ => seen.rejected += 1,
            }
            park_timeout(PACE);
        }
        seen
    }
}
