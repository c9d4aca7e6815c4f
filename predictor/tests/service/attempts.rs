//! Runs that start again from an earlier iteration.

use evenstep_protocol::{
    AllocateRequest, AllocateResponse, HistoryView, JobSpec, LiveView, SpeedsView, SummaryView, WorkerReport,
};
use evenstep_tests::{Client, Events};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{Service, allocate_request, join_all, metric, worker_id};

/// A run as its trainer sees it.
struct Run<'a> {
    client: &'a Client,
    job: &'a str,
    generation: u64,
    /// Reports for the next request.
    reports: Vec<WorkerReport>,
}

impl<'a> Run<'a> {
    /// A run whose workers join, perhaps again.
    fn start(client: &'a Client, job: &'a str, workers: usize) -> Self {
        Self { client, job, generation: join_all(client, job, workers), reports: Vec::new() }
    }

    fn request(&self, iteration: u64) -> AllocateRequest {
        AllocateRequest {
            reports: self.reports.clone(),
            ..allocate_request(self.job, self.generation, iteration)
        }
    }

    fn allocate(&self, iteration: u64) -> AllocateResponse {
        self.client.allocate(&self.request(iteration)).json()
    }

    /// Carries out iterations with workers of these speeds. Returns the step time of each over the best one.
    fn iterations(&mut self, iterations: std::ops::Range<u64>, speeds: &[f64]) -> Vec<f64> {
        let step = |iteration| {
            let answer = self.allocate(iteration);
            assert_eq!(answer.iteration, iteration);
            let report = |(worker, speed): (usize, &f64)| {
                let share =
                    answer.allocations.iter().find(|share| share.worker == worker_id(worker)).unwrap();
                WorkerReport::new(
                    worker_id(worker),
                    iteration,
                    share.local_batch,
                    share.local_batch as f64 / speed,
                )
            };
            self.reports = speeds.iter().enumerate().map(report).collect();
            let step_s = self.reports.iter().map(|report| report.compute_time_s).fold(0.0, f64::max);
            step_s / (answer.global_batch as f64 / speeds.iter().sum::<f64>())
        };
        iterations.map(step).collect()
    }
}

fn spec() -> JobSpec {
    JobSpec { lease_s: 3600.0, hedge: evenstep_protocol::Hedge::Off, ..JobSpec::new(96) }
}

fn speeds(client: &Client, job: &str, from: u64, limit: u64) -> SpeedsView {
    client.get(&format!("/v1/jobs/{job}/speeds?from={from}&limit={limit}")).json()
}

/// The speeds of the workers swap while the run is away. It returns within the lease, or after all workers have left.
#[test]
fn a_run_that_starts_again_is_planned_by_its_own_reports() {
    let service = Service::start();
    for (job, leaves) in [("lease", false), ("left", true)] {
        service.client.put_job(job, &spec());
        let mut run = Run::start(&service.client, job, 2);
        run.iterations(0..120, &[100.0, 200.0]);
        run.allocate(120);
        if leaves {
            (0..2).for_each(|worker| drop(service.client.leave(job, worker_id(worker).as_str())));
        }
        let mut run = Run::start(&service.client, job, 2);
        assert_eq!(service.client.job(job).attempt, 1, "a join alone begins nothing");
        let steps = run.iterations(40..110, &[200.0, 100.0]);
        assert!(steps[30..].iter().all(|step| *step < 1.1), "{steps:?}");
        let view = service.client.job(job);
        assert_eq!((view.attempt, view.next_iteration), (2, 110));
        let found = speeds(&service.client, job, 39, 2).speeds;
        let found: Vec<_> = found
            .iter()
            .map(|point| (point.attempt, point.iteration, point.actual_samples_per_s.unwrap().round()))
            .collect();
        assert_eq!(found, [(1, 39, 100.0), (1, 39, 200.0), (2, 40, 200.0), (2, 40, 100.0)]);
    }
}

/// No response, view or metric shows a position, however often the run returns.
#[test]
fn positions_stay_inside() {
    let mut service = Service::start();
    service.client.put_job("job", &spec());
    let mut truth = Vec::new();
    let mut attempt = 0;
    for (from, to) in [(0, 60), (20, 50), (45, 48), (0, 30), (29, 40)] {
        attempt += 1;
        let mut run = Run::start(&service.client, "job", 3);
        run.iterations(from..to, &[100.0, 150.0, 200.0]);
        truth.truncate(from as usize);
        truth.extend((from..to).map(|iteration| (attempt, iteration)));
        // The last reports arrive with a request for the next iteration.
        assert_eq!(run.allocate(to).attempt, attempt);
        if attempt == 3 {
            service.kill_and_restart();
            // On a busy machine the job may take a while to load.
            service.client = Client::patient(service.predictor.client().url());
        }
    }
    let client = &service.client;
    let next = truth.len() as u64 + 1;
    assert_eq!((client.job("job").attempt, client.job("job").next_iteration), (attempt, next));
    assert_eq!(client.join("job", "node/0").next_iteration, next);
    assert_eq!(metric(client, "evenstep_job_iteration"), next as f64);
    let points = speeds(client, "job", 0, 100).speeds;
    let of_one = points.iter().filter(|point| point.worker == worker_id(0));
    assert_eq!(of_one.map(|point| (point.attempt, point.iteration)).collect::<Vec<_>>(), truth);
    let answers: Vec<AllocateResponse> = client.get("/v1/jobs/job/allocations?from=0&limit=100").json();
    truth.push((attempt, next - 1));
    assert_eq!(answers.iter().map(|answer| (answer.attempt, answer.iteration)).collect::<Vec<_>>(), truth);
    let history: HistoryView = client.get("/v1/jobs/job/history?since_s=86400&points=1000").json();
    let shown: Vec<_> = history.attempts.iter().copied().zip(history.iterations.iter().copied()).collect();
    assert_eq!(shown, truth);
    let live = Events::open(&format!("{}/v1/live", client.url())).next_of(&["jobs"]).unwrap();
    let live: LiveView = live.json();
    assert_eq!((live.jobs[0].attempt, live.jobs[0].iteration), (Some(attempt), Some(next - 2)));
    let summary: SummaryView = client.get("/v1/jobs/job/summary").json();
    assert_eq!(summary.iterations, next - 1, "as the client counts, without those planned ahead");
    let missing = client.allocated("job", 500).problem(404, "not-answered");
    assert!(missing.detail.contains("iteration 500 "), "{}", missing.detail);
    let far = client.allocate(&allocate_request("job", client.job("job").generation, 500));
    assert!(far.status == 200 || far.problem(422, "invalid").detail.contains(&format!(" {next}")), "{far:?}");
}

/// Only the first request of a run that starts again begins an attempt, and every rank gets its allocation.
#[test]
fn repeated_and_late_requests_begin_nothing() {
    let mut service = Service::start();
    service.client.put_job("job", &spec());
    let mut run = Run::start(&service.client, "job", 2);
    run.iterations(0..20, &[100.0, 200.0]);
    let late = |iteration| {
        let report = |report: &WorkerReport| WorkerReport { iteration: iteration - 1, ..report.clone() };
        let reports = run.reports.iter().map(report).collect();
        AllocateRequest { reports, ..allocate_request("job", run.generation, iteration) }
    };
    run.allocate(20);
    let old = service.client.allocated("job", 15);
    // No worker joined.
    assert_eq!(run.client.allocate(&allocate_request("job", run.generation, 15)), old);
    assert_eq!(service.client.join("job", "node/0").generation, run.generation);
    // The requests carry reports of earlier iterations.
    for iteration in [15, 16] {
        let answer: AllocateResponse = run.client.allocate(&late(iteration)).json();
        assert_eq!((answer.attempt, answer.iteration), (1, iteration));
    }
    // A rank must not get the allocation of the earlier attempt before another rank begins the next attempt.
    assert_eq!(service.client.allocated("job", 10).problem(404, "not-answered").status, 404);
    let first = service.client.allocate(&allocate_request("job", run.generation, 10));
    assert_eq!(first.json::<AllocateResponse>().attempt, 2);
    let generation = run.generation;
    // The other rank joins again, the first request is repeated, and the predictor starts again.
    for step in 0..6 {
        match step {
            0 => drop(service.client.join("job", "node/1")),
            2 => service.kill_and_restart(),
            4 => drop(join_all(&service.client, "job", 2)),
            _ => {}
        }
        let again = service.client.allocate(&allocate_request("job", generation, 10));
        assert_eq!((again.status, &again.body), (200, &first.body), "step {step}");
        assert_eq!(service.client.allocated("job", 10).body, first.body, "step {step}");
    }
    let mut run = Run::start(&service.client, "job", 2);
    run.iterations(10..14, &[100.0, 200.0]);
    assert_eq!(service.client.job("job").attempt, 2);
    // Earlier iterations belong to the first attempt.
    let earlier: AllocateResponse = service.client.allocated("job", 9).json();
    assert_eq!((earlier.attempt, earlier.iteration), (1, 9));
}

/// An elastic run continues without a worker: in the same attempt if it repeats the present iteration, in the next one if it
/// returns to an earlier one.
#[test]
fn a_departure_begins_an_attempt_only_if_the_run_returns() {
    let service = Service::start();
    service.client.put_job("job", &spec());
    let mut run = Run::start(&service.client, "job", 3);
    run.iterations(0..20, &[100.0, 100.0, 100.0]);
    // Ahead, out of order.
    let [ahead, present] = [21, 20].map(|iteration| run.allocate(iteration));
    assert_eq!((ahead.allocations.len(), present.allocations.len()), (3, 3));
    run.generation = service.client.leave("job", "node/2").generation;
    service.client.allocated("job", 20).problem(409, "stale-generation");
    let ranks = [21, 20, 21, 20].map(|iteration| run.allocate(iteration));
    assert_eq!((&ranks[0], &ranks[1]), (&ranks[2], &ranks[3]));
    assert!(ranks.iter().all(|answer| answer.attempt == 1 && answer.allocations.len() == 2));
    run.reports.clear();
    run.iterations(20..25, &[100.0, 100.0]);
    run.allocate(25);
    run.generation = service.client.leave("job", "node/1").generation;
    run.reports.clear();
    run.iterations(22..24, &[100.0]);
    let view = service.client.job("job");
    assert_eq!((view.attempt, view.next_iteration), (2, 24));
}

/// A better plan gains less than `min_gain`, so the current plan is held. The ragged end of an epoch is planned for itself.
#[test]
fn a_restart_after_the_ragged_end_of_an_epoch_keeps_the_plan() {
    let mut service = Service::start();
    let spec = JobSpec { profile: false, hedge: evenstep_protocol::Hedge::Off, ..JobSpec::new(960) };
    service.client.put_job("job", &spec);
    let mut run = Run::start(&service.client, "job", 2);
    run.iterations(0..30, &[100.0, 200.0]);
    run.iterations(30..33, &[103.0, 200.0]);
    let batches =
        |answer: AllocateResponse| answer.allocations.iter().map(|share| share.local_batch).collect();
    let before: Vec<u64> = batches(run.allocate(33));
    let ragged = AllocateRequest { global_batch: Some(100), ..run.request(34) };
    assert_eq!(service.client.allocate(&ragged).json::<AllocateResponse>().global_batch, 100);
    let next = allocate_request("job", run.generation, 35);
    service.kill_and_restart();
    let after: Vec<u64> = batches(service.client.allocate(&next).json());
    assert_eq!((before, after), (vec![320, 640], vec![320, 640]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// After any returns and restarts of the predictor, the models equal the models of a predictor that was never restarted.
    #[test]
    fn a_restart_of_the_predictor_changes_nothing(seed in any::<u64>()) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut services = [Service::start(), Service::start()];
        services.iter().for_each(|service| drop(service.client.put_job("job", &spec())));
        let mut next = 0;
        for _ in 0..5 {
            let (begin, end) = (random.random_range(0..=next), next + random.random_range(1..12));
            for (restarts, service) in services.iter_mut().enumerate() {
                let mut run = Run::start(&service.client, "job", 2);
                run.iterations(begin..end, &[100.0 + begin as f64, 200.0]);
                run.allocate(end);
                if restarts == 1 {
                    service.kill_and_restart();
                }
            }
            next = end;
        }
        let [one, other] = services.each_ref().map(|service| service.client.forecast("job").workers);
        prop_assert_eq!(one, other);
        let [one, other] = services.each_ref().map(|service| speeds(&service.client, "job", 0, 100));
        prop_assert_eq!(one, other);
    }
}
