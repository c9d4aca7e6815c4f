//! A run that starts again from a checkpoint while its earlier process still sends requests, or while some of them are late.

use std::collections::{BTreeMap, BTreeSet};

use evenstep_predictor::jobs::{Allocated, JobError};
use evenstep_protocol::{
    AllocateRequest, AllocateResponse, JobId, JobSpec, JoinRequest, JoinResponse, WorkerId, WorkerReport,
};
use evenstep_store::access::AuditEntry;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::world::World;

const WORKERS: usize = 2;
/// Number of messages while the earlier process lives.
const MESSAGES: u64 = 60;
/// Iterations of the new process after the earlier one has ended.
const UNDISTURBED: u64 = 4;

fn job_id() -> JobId {
    JobId::new("job").unwrap()
}

fn workers() -> [WorkerId; WORKERS] {
    ["node/0", "node/1"].map(|worker| WorkerId::new(worker).unwrap())
}

/// A process of the run, with a connection as in `evenstep-client`.
#[derive(Debug)]
struct Process {
    /// Time per sample, in seconds: the reports of each process differ.
    sample_s: f64,
    next: u64,
    /// Number of workers that have joined since it lost its connection.
    joined: usize,
    generation: u64,
    /// The attempt of its responses; 0 before the first.
    attempt: u64,
    /// The next reports.
    reports: Vec<WorkerReport>,
}

impl Process {
    fn new(first: u64, sample_s: f64) -> Self {
        Self { sample_s, next: first, joined: 0, generation: 0, attempt: 0, reports: Vec::new() }
    }

    fn is_connected(&self) -> bool {
        self.joined == WORKERS
    }

    fn joins(&mut self, response: &JoinResponse) {
        self.joined += 1;
        self.generation = response.generation;
    }

    fn request(&self) -> AllocateRequest {
        let reports = self.reports.clone();
        AllocateRequest { reports, ..AllocateRequest::new(job_id(), self.generation, self.next) }
    }

    /// Carries out the iteration of a response.
    fn train(&mut self, response: &AllocateResponse) {
        self.attempt = self.attempt.max(response.attempt);
        let shares = response.allocations.iter();
        let report = |(worker, local_batch): (&WorkerId, u64)| {
            WorkerReport::new(worker.clone(), self.next, local_batch, local_batch as f64 * self.sample_s)
        };
        self.reports = shares.map(|share| report((&share.worker, share.local_batch))).collect();
        self.next += 1;
    }
}

struct Simulation {
    random: ChaCha8Rng,
    world: World,
    /// Messages of the earlier process that arrive late, or again.
    late: Vec<AllocateRequest>,
    late_joins: Vec<WorkerId>,
    /// The body for each attempt and iteration.
    responses: BTreeMap<(u64, u64), Vec<u8>>,
    refused: u64,
}

impl Simulation {
    async fn new(seed: u64) -> Self {
        let world = World::new().await;
        let jobs = world.jobs();
        let spec = JobSpec::new(60);
        let entry = AuditEntry::anonymous("job.create", "job");
        world.finish(async move { jobs.put_job(&job_id(), spec, &entry).await }).await.unwrap();
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self {
            random,
            world,
            late: Vec::new(),
            late_joins: Vec::new(),
            responses: BTreeMap::new(),
            refused: 0,
        }
    }

    async fn join(&self, worker: WorkerId) -> JoinResponse {
        let jobs = self.world.jobs();
        let join = async move { jobs.job(&job_id()).await?.join(JoinRequest::new(worker)).await };
        self.world.finish(join).await.unwrap()
    }

    async fn allocate(&mut self, request: AllocateRequest) -> Result<AllocateResponse, JobError> {
        let jobs = self.world.jobs();
        let allocate = async move { jobs.job(&job_id()).await?.allocate(request).await };
        let Allocated { response, .. } = self.world.finish(allocate).await?;
        let parsed: AllocateResponse = serde_json::from_slice(&response.body).unwrap();
        let known =
            self.responses.entry((parsed.attempt, parsed.iteration)).or_insert(response.body.to_vec());
        assert_eq!(*known, response.body, "two allocations of one iteration");
        Ok(parsed)
    }

    /// A message of the earlier process. Returns false if it gives way to another run.
    async fn old(&mut self, old: &mut Process) -> bool {
        if !old.is_connected() {
            let jobs = self.world.jobs();
            let view = async move { jobs.job(&job_id()).await?.view().await };
            if old.attempt > 0 && self.world.finish(view).await.unwrap().attempt > old.attempt {
                return false;
            }
            for worker in workers() {
                if self.random.random_bool(0.1) {
                    self.late_joins.push(worker.clone());
                }
                let joined = self.join(worker).await;
                old.joins(&joined);
            }
            return true;
        }
        let request = old.request();
        let fate = self.random.random_range(0..10);
        if fate < 4 {
            self.late.push(request.clone());
        }
        if fate < 2 {
            // It stops waiting, and the request arrives later.
            old.joined = 0;
            return true;
        }
        match self.allocate(request).await {
            Ok(response) => old.train(&response),
            Err(JobError::StaleGeneration { .. }) => old.joined = 0,
            Err(error) => panic!("{error}"),
        }
        true
    }

    /// A message of the new process. Returns false if its request was rejected.
    async fn new_process(&mut self, new: &mut Process) -> bool {
        if !new.is_connected() {
            let joined = self.join(workers()[new.joined].clone()).await;
            new.joins(&joined);
            return true;
        }
        match self.allocate(new.request()).await {
            Ok(response) => {
                new.train(&response);
                true
            }
            Err(JobError::StaleGeneration { .. }) => {
                new.joined = 0;
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A late message of the earlier process.
    async fn late(&mut self, has_begun: bool) {
        if let Some(worker) = self.late_joins.pop() {
            self.join(worker).await;
        } else if !self.late.is_empty() {
            let at = self.random.random_range(0..self.late.len());
            let request = self.late.swap_remove(at);
            let outcome = self.allocate(request).await;
            let is_stale = matches!(outcome, Err(JobError::StaleGeneration { .. }));
            self.refused += u64::from(is_stale);
            assert!(is_stale || !has_begun, "{outcome:?}");
        }
    }
}

/// Returns the number of refused requests of the earlier process, and whether the new one began an attempt.
async fn simulate(seed: u64) -> (u64, bool) {
    let mut world = Simulation::new(seed).await;
    let mut old = Process::new(0, 0.001);
    let mut new: Option<Process> = None;
    let starts = world.random.random_range(10..30);
    let dies = starts + world.random.random_range(0..20);
    let mut is_alive = true;
    let mut requested = BTreeSet::new();
    let mut must_begin = false;
    for message in 0..MESSAGES {
        if message == starts {
            // From a checkpoint, or from the beginning. The earlier process has reported the iterations before its latest one.
            let first = world.random.random_range(0..=old.next);
            must_begin = first + 1 < old.next;
            new = Some(Process::new(first, 0.002));
        }
        is_alive &= message < dies;
        let has_begun = new.as_ref().is_some_and(|new| new.attempt > 0);
        match world.random.random_range(0..20) {
            0 => world.world.crash().await,
            1..=4 => world.late(has_begun && must_begin).await,
            // Two processes that register at the same moment are one run for the predictor.
            5..=11
                if is_alive
                    && (old.is_connected() || new.as_ref().is_none_or(|new| new.joined % WORKERS == 0)) =>
            {
                is_alive = world.old(&mut old).await;
            }
            _ => {
                if let Some(new) = &mut new {
                    requested.insert(new.next);
                    world.new_process(new).await;
                }
            }
        }
    }
    let mut new = new.unwrap();
    while !world.late.is_empty() || !world.late_joins.is_empty() {
        world.late(new.attempt > 0 && must_begin).await;
    }
    // The earlier process has ended. At most one request is rejected.
    let mut rejected = 0;
    let end = new.next + UNDISTURBED;
    while new.next < end {
        requested.insert(new.next);
        rejected += u64::from(!world.new_process(&mut new).await);
        assert!(rejected <= 1, "the new process is locked out");
    }
    assert!(!must_begin || new.attempt == 2, "it began attempt {}", new.attempt);
    if new.attempt == 2 {
        world.audit(&new, &requested).await;
    }
    (world.refused, new.attempt == 2)
}

impl Simulation {
    /// The attempt of the new process has its reports and its iterations only.
    async fn audit(&self, new: &Process, requested: &BTreeSet<u64>) {
        let store = self.world.store();
        let read = async move {
            let segments = store.segments(&job_id()).await.unwrap();
            let begin = segments.last().unwrap().first_position;
            let planned = store.answers(&job_id(), begin, u64::MAX).await.unwrap();
            (begin, planned, store.recent_arrivals(&job_id(), 0).await.unwrap())
        };
        let (begin, planned, arrivals) = self.world.finish(read).await;
        for planned in planned {
            let planned: AllocateResponse = serde_json::from_slice(&planned.answer).unwrap();
            assert!(requested.contains(&planned.iteration), "{} was planned", planned.iteration);
        }
        for report in arrivals.into_iter().flat_map(|(_, reports)| reports) {
            let expected_s = report.local_batch as f64 * new.sample_s;
            let is_own = (report.compute_time_s - expected_s).abs() < 1e-9;
            assert!(report.iteration < begin || is_own, "a report of the earlier process: {report:?}");
        }
    }
}

/// Two ranks never get two allocations of one iteration. After the first request of the new process, no request of the earlier one
/// plans or reports anything, and the new process is never locked out.
#[test]
fn late_requests_of_an_earlier_process_change_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut refused, mut begun) = (0, 0);
    for seed in crate::seeds() {
        eprintln!("seed {seed}");
        let (late, is_begun) = runtime.block_on(simulate(seed));
        (refused, begun) = (refused + late, begun + u64::from(is_begun));
    }
    eprintln!("{refused} requests refused, {begun} attempts");
    assert!(crate::seeds().count() < 40 || refused.min(begun) > 0);
}
