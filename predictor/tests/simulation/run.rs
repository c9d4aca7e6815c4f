//! One run: the decisions of the scheduler, and the clients' requests.

use evenstep_core::attempts::{Attempts, Segment};
use evenstep_predictor::jobs::JobError;
use evenstep_protocol::{
    AllocateRequest, JobSpec, JoinRequest, OomReport, WorkerId, WorkerOverride, WorkerReport, WorkerState,
};
use evenstep_store::access::AuditEntry;
use evenstep_store::{Fate, StoredSegment};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinHandle;

use crate::ledger::Ledger;
use crate::request::{Request, Response, job, job_id, send, worker_id};
use crate::world::World;

/// Limit of concurrent requests.
const REQUESTS_MAX: usize = 4;
/// Samples of an iteration per worker.
const BATCH: u64 = 20;
const LEASE_S: f64 = 1.0;
/// Longest step of the clock, in milliseconds. After a pause of half a lease, workers would get new leases.
const STEP_MS_MAX: i64 = 450;

/// Counts of events in runs.
#[derive(Debug, Default, Clone)]
pub struct Totals {
    allocations: u64,
    /// Allocations for wide jobs.
    wide: u64,
    repeated: u64,
    rejected: u64,
    failed_commits: u64,
    lost_confirmations: u64,
    cut: u64,
    crashes: u64,
    restarts: u64,
    expired: u64,
    attempts: u64,
}

impl Totals {
    pub fn add(&mut self, other: &Self) {
        self.allocations += other.allocations;
        self.wide += other.wide;
        self.repeated += other.repeated;
        self.rejected += other.rejected;
        self.failed_commits += other.failed_commits;
        self.lost_confirmations += other.lost_confirmations;
        self.cut += other.cut;
        self.crashes += other.crashes;
        self.restarts += other.restarts;
        self.expired += other.expired;
        self.attempts += other.attempts;
    }

    pub fn cover_all_events(&self) -> bool {
        [
            self.allocations,
            self.wide,
            self.repeated,
            self.rejected,
            self.failed_commits,
            self.lost_confirmations,
            self.cut,
            self.crashes,
            self.restarts,
            self.expired,
            self.attempts,
        ]
        .iter()
        .all(|events| *events > 0)
    }
}

/// The result of a run.
pub struct Done {
    pub totals: Totals,
    pub decisions: Vec<String>,
}

/// The job of a run.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    workers: u64,
    /// Decisions with faults.
    decisions: u64,
    /// Whether the first worker hardly ever reports.
    is_lossy: bool,
}

impl Shape {
    /// One job in twenty has many workers, and one in three a worker that hardly ever reports.
    pub fn of(seed: u64) -> Self {
        let (workers, decisions) = if seed % 20 == 7 { (1000, 60) } else { (3, 150) };
        Self { workers, decisions, is_lossy: seed % 3 == 1 }
    }

    fn global_batch(self) -> u64 {
        BATCH * self.workers
    }

    fn is_wide(self) -> bool {
        self.workers > 100
    }
}

/// Runs the simulation of a seed to its end.
///
/// # Panics
/// If an invariant does not hold.
pub fn run(seed: u64) -> Done {
    let shape = Shape::of(seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // No timeout of the service expires, however busy the machine is: its time stands still while this thread blocks.
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    let (ends, ended) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || ended.recv());
    runtime.block_on(async {
        let mut run = Run::new(seed, shape).await;
        for _ in 0..shape.decisions {
            run.decide().await;
        }
        run.end_all_faults().await;
        drop(ends);
        Done { totals: std::mem::take(&mut run.totals), decisions: std::mem::take(&mut run.decisions) }
    })
}

struct Run {
    shape: Shape,
    random: ChaCha8Rng,
    world: World,
    ledger: Ledger,
    requests: Vec<(Request, JoinHandle<Result<Response, JobError>>)>,
    /// Requests whose outcome their client does not know.
    unanswered: Vec<Request>,
    totals: Totals,
    decisions: Vec<String>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.decisions.join("\n"));
        }
    }
}

impl Run {
    async fn new(seed: u64, shape: Shape) -> Self {
        let world = World::new().await;
        let spec = JobSpec { lease_s: LEASE_S, ..JobSpec::new(shape.global_batch()) };
        let jobs = world.jobs();
        world
            .finish(async move {
                jobs.put_job(&job_id(), spec, &AuditEntry::anonymous("job.create", "job")).await
            })
            .await
            .unwrap();
        let mut run = Self {
            shape,
            random: ChaCha8Rng::seed_from_u64(seed),
            world,
            ledger: Ledger::default(),
            requests: Vec::new(),
            unanswered: Vec::new(),
            totals: Totals::default(),
            decisions: Vec::new(),
        };
        if shape.is_wide() {
            run.join_all().await;
        }
        run
    }

    /// Makes one decision, and waits until nothing moves.
    async fn decide(&mut self) {
        let is_waiting = self.world.commits().is_waiting();
        assert!(
            is_waiting || self.requests.is_empty(),
            "requests wait, and no commit does: {:?}",
            self.requests
        );
        match self.random.random_range(0..100) {
            0..=2 => self.crash().await,
            3 => self.restart().await,
            4..=17 => self.advance(),
            18..=22 if !self.requests.is_empty() => self.cut(),
            23..=58 if is_waiting => self.commit(),
            _ if self.requests.len() < REQUESTS_MAX => self.start(),
            _ => self.commit(),
        }
        self.world.settle().await;
        self.receive().await;
    }

    fn note(&mut self, decision: String) {
        self.decisions.push(decision);
    }

    fn commit(&mut self) {
        let fate = match self.random.random_range(0..20) {
            0 => Fate::Fails,
            1 => Fate::LosesItsConfirmation,
            _ => Fate::Proceeds,
        };
        self.totals.failed_commits += u64::from(fate == Fate::Fails);
        self.totals.lost_confirmations += u64::from(fate == Fate::LosesItsConfirmation);
        self.note(format!("commit {fate:?}"));
        self.world.commits().decide(fate);
    }

    fn cut(&mut self) {
        let at = self.random.random_range(0..self.requests.len());
        let (request, task) = self.requests.remove(at);
        task.abort();
        self.totals.cut += 1;
        self.note(format!("cut {request}"));
        self.unanswered.push(request);
    }

    fn advance(&mut self) {
        let ms = self.random.random_range(STEP_MS_MAX / 2..=STEP_MS_MAX);
        self.note(format!("advance {ms}"));
        self.world.advance(ms);
    }

    fn start(&mut self) {
        let request = if !self.unanswered.is_empty() && self.random.random_bool(0.5) {
            let at = self.random.random_range(0..self.unanswered.len());
            self.unanswered.remove(at)
        } else {
            self.request()
        };
        self.note(format!("start {request}"));
        let task = tokio::spawn(send(self.world.jobs(), request.clone()));
        self.requests.push((request, task));
    }

    fn request(&mut self) -> Request {
        let worker = worker_id(self.random.random_range(0..self.shape.workers));
        match self.random.random_range(0..100) {
            0..=14 => Request::Join(JoinRequest::new(worker)),
            15..=18 => Request::Leave(worker),
            19..=20 => {
                let iteration = self.ledger.next_iteration().saturating_sub(1);
                Request::OutOfMemory(worker, OomReport { iteration, local_batch: 30 })
            }
            21..=23 => {
                let max_local_batch = Some(self.random.random_range(BATCH..=self.shape.global_batch()));
                let wanted = self.random.random_bool(0.5);
                Request::Override(
                    worker,
                    wanted.then(|| WorkerOverride { max_local_batch, ..WorkerOverride::default() }),
                )
            }
            24..=29 => Request::Expire,
            _ => Request::Allocate(self.allocate_request()),
        }
    }

    /// A request for an iteration that is new, repeated, or further ahead, with reports of earlier iterations; or for an earlier one
    /// without reports.
    fn allocate_request(&mut self) -> AllocateRequest {
        let next = self.ledger.next_iteration();
        let kind = self.random.random_range(0..12);
        let iteration = match kind {
            0 | 10..=11 => self.random.random_range(0..=next),
            1 => next + self.random.random_range(0..3),
            2..=3 => next.saturating_sub(1),
            _ => next,
        };
        let generation = self.ledger.generation();
        let mut request = AllocateRequest::new(job_id(), generation, iteration);
        // As a run that starts again.
        if kind >= 10 {
            return request;
        }
        for earlier in iteration.saturating_sub(3)..iteration.min(next) {
            for (worker, local_batch) in self.ledger.shares(earlier) {
                let is_lossy = self.shape.is_lossy && worker == worker_id(0);
                if local_batch > 0 && self.random.random_bool(if is_lossy { 0.02 } else { 0.6 }) {
                    request.reports.push(report(worker, earlier, local_batch));
                }
            }
        }
        request
    }

    /// Processes the responses that have arrived.
    async fn receive(&mut self) {
        let (finished, waiting) =
            std::mem::take(&mut self.requests).into_iter().partition(|(_, task)| task.is_finished());
        self.requests = waiting;
        for (request, task) in finished {
            self.response(request, task.await.unwrap());
        }
    }

    fn response(&mut self, request: Request, outcome: Result<Response, JobError>) {
        match (outcome, request) {
            (Ok(Response::Allocated(allocated)), Request::Allocate(request)) => {
                self.totals.allocations += u64::from(allocated.is_new);
                self.totals.wide += u64::from(allocated.is_new && self.shape.is_wide());
                self.totals.repeated += u64::from(!allocated.is_new);
                self.note(format!("allocated {} in {}", request.iteration, allocated.response.generation));
                let known = self.ledger.attempt();
                self.ledger.allocated(request.iteration, self.shape.global_batch(), &allocated.response);
                self.totals.attempts += self.ledger.attempt() - known;
                self.ledger.reported(&request.reports);
            }
            (Ok(Response::Members(members)), _) => {
                self.note(format!("generation {}", members.generation));
                self.ledger.joined(members);
            }
            (Ok(_), _) => {}
            (Err(JobError::Store(error)), request) => {
                self.note(format!("unanswered: {error}"));
                self.unanswered.push(request);
            }
            (Err(error), _) => {
                self.totals.rejected += 1;
                self.note(format!("rejected: {error}"));
            }
        }
    }

    /// The service crashes and starts again. Everything that it had confirmed is still there.
    async fn crash(&mut self) {
        self.note("crash".into());
        self.totals.crashes += 1;
        for (request, task) in std::mem::take(&mut self.requests) {
            task.abort();
            let _ = task.await;
            self.unanswered.push(request);
        }
        self.world.crash().await;
        self.audit().await;
    }

    /// The service finishes all requests, ends and starts again. It then knows the same as before.
    async fn restart(&mut self) {
        self.note("restart".into());
        self.totals.restarts += 1;
        self.finish_requests().await;
        let before = self.knowledge().await;
        self.world.crash().await;
        let after = self.knowledge().await;
        assert!(after == before, "after a restart: {after}\nbefore: {before}");
        self.audit().await;
    }

    /// The forecasts of all workers.
    async fn knowledge(&self) -> String {
        let jobs = self.world.jobs();
        let view = self.world.finish(async move { job(&jobs).await?.forecast().await }).await.unwrap();
        serde_json::to_string_pretty(&view.workers).unwrap()
    }

    async fn finish_requests(&mut self) {
        loop {
            self.world.settle().await;
            self.receive().await;
            if !self.world.commits().is_waiting() {
                break;
            }
            self.world.commits().decide(Fate::Proceeds);
        }
        assert!(self.requests.is_empty(), "requests wait, and no commit does: {:?}", self.requests);
    }

    async fn audit(&mut self) {
        let store = self.world.store();
        let read = async move {
            let segments = store.segments(&job_id()).await.unwrap();
            let stored = store.answers(&job_id(), 0, u64::MAX).await.unwrap();
            let arrivals = store.recent_arrivals(&job_id(), 0).await.unwrap();
            (segments, stored, arrivals)
        };
        let (segments, stored, arrivals) = self.world.finish(read).await;
        let segments =
            segments.into_iter().map(|StoredSegment { attempt, first_iteration, first_position }| Segment {
                attempt,
                first_iteration,
                first_position,
            });
        let attempts = Attempts::restore(segments);
        let stored = stored.into_iter().map(|stored| (stored.iteration, stored)).collect();
        self.ledger.stored(&attempts, &stored);
        for iteration in self.ledger.iterations() {
            let jobs = self.world.jobs();
            let found = self.world.finish(async move { job(&jobs).await?.allocated(iteration).await }).await;
            match (found, stored.get(&attempts.position(iteration))) {
                (Ok(found), Some(stored)) => assert_eq!(found.body, stored.answer, "iteration {iteration}"),
                (Err(JobError::Void { planned, current, .. }), Some(stored)) => {
                    assert!(
                        planned == stored.generation && planned < current,
                        "iteration {iteration} is valid"
                    );
                }
                // The run may start again with it, or has returned to an iteration before it.
                (Err(JobError::NotAllocated { .. }), _) => {}
                (found, stored) => panic!("iteration {iteration}: {found:?}, stored: {stored:?}"),
            }
        }
        let reports = arrivals.into_iter().flat_map(|(_, reports)| reports);
        let reports: Vec<_> = reports.map(|report| (report.iteration, report.worker)).collect();
        self.ledger.stored_reports(&attempts, &reports);
    }

    async fn join_all(&mut self) {
        for worker in 0..self.shape.workers {
            let request = Request::Join(JoinRequest::new(worker_id(worker)));
            let outcome = self.world.finish(send(self.world.jobs(), request.clone())).await;
            self.response(request, outcome);
        }
    }

    /// Without faults, all requests end, workers join, and iterations are planned.
    async fn end_all_faults(&mut self) {
        self.note("faults end".into());
        self.finish_requests().await;
        let jobs = self.world.jobs();
        let view = self.world.finish(async move { job(&jobs).await?.workers().await }).await.unwrap();
        let expired = view.workers.iter().filter(|worker| worker.state == WorkerState::Expired);
        self.totals.expired += expired.count() as u64;
        for worker in 0..self.shape.workers {
            let request = Request::Override(worker_id(worker), None);
            let outcome = self.world.finish(send(self.world.jobs(), request.clone())).await;
            self.response(request, outcome);
        }
        self.join_all().await;
        for _ in 0..3 {
            let generation = self.ledger.generation();
            let next = self.ledger.next_iteration();
            let request = Request::Allocate(AllocateRequest::new(job_id(), generation, next));
            let outcome = self.world.finish(send(self.world.jobs(), request.clone())).await;
            assert!(outcome.is_ok(), "no progress: {:?}", outcome.err());
            self.response(request, outcome);
        }
        self.audit().await;
        self.restart().await;
    }
}

/// The report of a worker about its share, the same whenever it is sent.
fn report(worker: WorkerId, iteration: u64, local_batch: u64) -> WorkerReport {
    let place = worker.as_str().bytes().map(u64::from).sum::<u64>();
    let noise = (iteration * 7919 + place * 104_729) % 1000;
    let speed = (place % 5 + 1) as f64 * 100.0 * (1.0 + noise as f64 / 5000.0);
    WorkerReport::new(worker, iteration, local_batch, local_batch as f64 / speed)
}
