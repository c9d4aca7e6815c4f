//! Shared tails: which workers get them, their rules, and the costs that the predictor learns from them.

use evenstep_protocol::{
    AllocateRequest, AllocateResponse, BackgroundSettings, DecisionKind, Hedge, JobSpec, JobView,
    JoinRequest, JoinResponse, TailReport, WorkerOverride, WorkerReport, WorkerView, WorkersView,
};
use evenstep_tests::Client;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{Service, allocate_request, worker_id};

/// Duration of a claim, in seconds.
const CLAIM_S: f64 = 4e-4;

/// Limit of samples that a worker computes in one micro-batch.
const PASS: u64 = 16;

/// Workers of a job whose speeds vary, and their execution of each allocation.
struct Run<'a> {
    service: &'a mut Service,
    generation: u64,
    speeds: Vec<f64>,
    /// Speeds vary by factors up to this, in both directions.
    noise: f64,
    random: ChaCha8Rng,
    reports: Vec<WorkerReport>,
    next: u64,
}

impl<'a> Run<'a> {
    /// Creates the job. `workers` are the join requests and speeds.
    fn new(service: &'a mut Service, spec: &JobSpec, noise: f64, workers: &[(JoinRequest, f64)]) -> Self {
        service.client.put_job("job", spec);
        let mut generation = 0;
        for (request, _) in workers {
            let joined: JoinResponse = service.client.post("/v1/jobs/job/workers", request).json();
            generation = joined.generation;
        }
        let speeds = workers.iter().map(|(_, speed)| *speed).collect();
        let random = ChaCha8Rng::seed_from_u64(11);
        Self { service, generation, speeds, noise, random, reports: Vec::new(), next: 0 }
    }

    fn client(&self) -> &Client {
        &self.service.client
    }

    fn request(&self) -> AllocateRequest {
        let mut request = allocate_request("job", self.generation, self.next);
        request.reports.clone_from(&self.reports);
        request
    }

    /// Requests the next iteration and executes it.
    fn step(&mut self) -> AllocateResponse {
        let request = self.request();
        self.carry_out(&request)
    }

    fn carry_out(&mut self, request: &AllocateRequest) -> AllocateResponse {
        let answer: AllocateResponse = self.client().allocate(request).json();
        whole(&answer);
        let range = (1.0 / self.noise)..=self.noise;
        let paces: Vec<f64> =
            self.speeds.iter().map(|speed| self.random.random_range(range.clone()) / speed).collect();
        self.reports = did(&answer, &paces);
        self.next += 1;
        answer
    }

    fn steps(&mut self, count: u64) -> Vec<AllocateResponse> {
        (0..count).map(|_| self.step()).collect()
    }

    fn job(&self) -> JobView {
        self.client().job("job")
    }

    fn workers(&self) -> Vec<WorkerView> {
        self.client().get("/v1/jobs/job/workers").json::<WorkersView>().workers
    }
}

fn claiming(worker: usize) -> JoinRequest {
    JoinRequest { claims: true, ..JoinRequest::new(worker_id(worker)) }
}

/// Three workers that can claim. Two of them are twice as fast as the third.
fn three() -> Vec<(JoinRequest, f64)> {
    (0..3).map(|worker| (claiming(worker), [400.0, 400.0, 200.0][worker])).collect()
}

/// Simulates workers with these paces (seconds per sample): each computes its local batch, then the free
/// workers claim chunks.
fn did(answer: &AllocateResponse, paces: &[f64]) -> Vec<WorkerReport> {
    let mut reports: Vec<WorkerReport> = answer
        .allocations
        .iter()
        .zip(paces)
        .enumerate()
        .map(|(worker, (share, pace_s))| {
            let time_s = share.local_batch as f64 * pace_s;
            WorkerReport {
                micro_batches: Some(share.local_batch.div_ceil(PASS)),
                ..WorkerReport::new(worker_id(worker), answer.iteration, share.local_batch, time_s)
            }
        })
        .collect();
    for chunk in answer.tail.iter().flat_map(|tail| &tail.chunks) {
        let claims = answer.allocations.iter().enumerate().filter(|(_, share)| share.pool.is_some());
        let free_s = |worker: &usize| {
            reports[*worker].compute_time_s + reports[*worker].tail.map_or(0.0, |tail| tail.claim_time_s)
        };
        let first = claims
            .map(|(worker, _)| worker)
            .min_by(|one, other| free_s(one).total_cmp(&free_s(other)))
            .unwrap();
        let (report, time_s) = (&mut reports[first], *chunk as f64 * paces[first]);
        let nothing = TailReport { chunks: 0, samples: 0, compute_time_s: 0.0, claim_time_s: CLAIM_S };
        let tail = report.tail.get_or_insert(nothing);
        report.micro_batches = report.micro_batches.map(|passes| passes + chunk.div_ceil(PASS));
        tail.chunks += 1;
        tail.samples += chunk;
        tail.compute_time_s += time_s;
        tail.claim_time_s += CLAIM_S;
        report.local_batch += chunk;
        report.compute_time_s += time_s;
    }
    reports
}

/// Checks that each sample is in one local batch or in one chunk, and that each worker that claims is in a
/// pool.
fn whole(answer: &AllocateResponse) {
    let mut offset = 0;
    for share in &answer.allocations {
        assert_eq!(share.offset, offset, "{answer:?}");
        assert_eq!(share.gradient_weight, share.local_batch as f64 / answer.global_batch as f64);
        offset += share.local_batch;
    }
    let varies = answer.decision.kind == DecisionKind::Profiling;
    let is_planned = varies || answer.tail.is_some();
    assert!(answer.allocations.iter().all(|share| share.planned_batch.is_some() == is_planned), "{answer:?}");
    let planned: u64 = answer.allocations.iter().filter_map(|share| share.planned_batch).sum();
    assert_eq!(planned, if is_planned { answer.global_batch } else { 0 });
    let Some(tail) = &answer.tail else {
        assert!(answer.allocations.iter().all(|share| share.pool.is_none()), "{answer:?}");
        assert_eq!(offset, answer.global_batch);
        return;
    };
    assert_eq!(tail.offset, offset);
    assert!(!tail.chunks.is_empty() && tail.chunks.iter().all(|chunk| *chunk > 0), "{tail:?}");
    assert_eq!(offset + tail.chunks.iter().sum::<u64>(), answer.global_batch);
    assert!(answer.allocations.iter().filter(|share| share.pool.is_some()).count() >= 2, "{answer:?}");
    assert!(answer.decision.reason.contains("claimed on demand"), "{}", answer.decision.reason);
}

fn tails(answers: &[AllocateResponse]) -> usize {
    answers.iter().filter(|answer| answer.tail.is_some()).count()
}

#[test]
fn unpredictable_work_is_left_to_the_tail() {
    let mut service = Service::start();
    let mut run = Run::new(&mut service, &JobSpec::new(240), 2.0, &three());
    let hedge = run.job().hedge.unwrap();
    assert_eq!((hedge.tail_share, hedge.chunks, hedge.claim_time_s), (0.0, 0, 5e-4));
    let first = run.steps(4);
    assert_eq!(tails(&first), 0, "too few reports yet");
    let answers = run.steps(40);
    assert!(tails(&answers[20..]) >= 15, "{} of 20", tails(&answers[20..]));
    let last = answers.iter().rev().find(|answer| answer.tail.is_some()).unwrap();
    let step_s = last.decision.predicted_step_time_s.unwrap();
    assert!(step_s > 0.0 && step_s.is_finite());

    // The bytes are the same for every rank, and after a crash.
    let iteration = last.iteration;
    let before = run.client().allocated("job", iteration).body;
    let request = allocate_request("job", run.generation, iteration);
    assert_eq!(run.client().allocate(&request).body, before);
    // The gain is restored in the background.
    let job = |run: &Run| JobView { gain: None, ..run.job() };
    let seen = (job(&run), run.workers().iter().map(|worker| worker.pool).collect::<Vec<_>>());
    run.service.kill_and_restart();
    assert_eq!(run.client().allocated("job", iteration).body, before);
    let again = (job(&run), run.workers().iter().map(|worker| worker.pool).collect::<Vec<_>>());
    assert_eq!(again, seen);

    let latest = answers.last().unwrap();
    let hedge = run.job().hedge.unwrap();
    // Except the first claims, whose duration was overestimated.
    assert!((CLAIM_S..1.02 * CLAIM_S).contains(&hedge.claim_time_s), "{hedge:?}");
    let tail = latest.tail.as_ref();
    assert_eq!(hedge.chunks, tail.map_or(0, |tail| tail.chunks.len() as u64));
    let pools: Vec<Option<u64>> = latest.allocations.iter().map(|share| share.pool).collect();
    assert_eq!(again.1, pools);
    assert!(run.workers().iter().all(|worker| worker.claims));
    assert!(tails(&run.steps(5)) > 0, "after a restart too");
}

/// Workers claim while they would otherwise wait, so that only the limit adds time.
#[test]
fn claiming_workers_have_no_slack() {
    let mut service = Service::start();
    let background = Some(BackgroundSettings { slow_down_limit: 1.25 });
    let spec = JobSpec { background, ..JobSpec::new(240) };
    let mut run = Run::new(&mut service, &spec, 2.0, &three());
    let answers = run.steps(40);
    assert!(tails(&answers) >= 10, "{}", tails(&answers));
    for answer in answers.iter().filter(|answer| answer.tail.is_some()) {
        let step_s = answer.decision.predicted_step_time_s.unwrap();
        for share in &answer.allocations {
            let budget = share.background.unwrap();
            assert!(share.pool.is_some() && budget.slack_s == 0.0, "{answer:?}");
            assert!((budget.budget_s - 0.25 * step_s).abs() < 1e-9, "{answer:?}");
        }
    }
}

/// Hysteresis compares plans without their tails: across a restart, and if tails appear and disappear.
#[test]
fn the_plan_in_force_is_the_one_without_a_tail() {
    let mut service = Service::start();
    let spec = JobSpec { min_gain: 0.9, ..JobSpec::new(240) };
    let mut run = Run::new(&mut service, &spec, 2.0, &three());
    let planned = |answer: &AllocateResponse| -> Vec<u64> {
        answer.allocations.iter().map(|share| share.planned_batch.unwrap_or(share.local_batch)).collect()
    };
    let before = run.steps(40).pop().unwrap();
    assert!(before.tail.is_some(), "{}", before.decision.reason);
    run.service.kill_and_restart();
    let after = run.step();
    assert_eq!(planned(&after), planned(&before));
    assert!(after.decision.reason.starts_with("a change would save"), "{}", after.decision.reason);
}

#[test]
fn jobs_without_hedging_or_claims_get_no_tail() {
    let off = JobSpec { hedge: Hedge::Off, ..JobSpec::new(240) };
    let few = JobSpec { distinct_sizes: Some(2), ..JobSpec::new(240) };
    let auto = JobSpec::new(240);
    let only = |who: fn(usize) -> bool| -> Vec<(JoinRequest, f64)> {
        let join = |worker| JoinRequest { claims: who(worker), ..claiming(worker) };
        (0..3).map(|worker| (join(worker), 300.0)).collect()
    };
    for (spec, workers, views) in [
        (&off, three(), false),
        (&few, three(), true),
        (&auto, only(|_| false), false),
        (&auto, only(|worker| worker == 1), false),
    ] {
        let mut service = Service::start();
        let mut run = Run::new(&mut service, spec, 2.0, &workers);
        assert_eq!(tails(&run.steps(30)), 0, "{spec:?}");
        assert_eq!(run.job().hedge.is_some(), views);
    }
    // Two of three workers can claim. The third gets its whole share as its local batch.
    let mut service = Service::start();
    let mut run = Run::new(&mut service, &auto, 2.0, &only(|worker| worker != 1));
    let answers = run.steps(40);
    assert!(tails(&answers) >= 10, "{}", tails(&answers));
    for answer in answers.iter().filter(|answer| answer.tail.is_some()) {
        let pools: Vec<bool> = answer.allocations.iter().map(|share| share.pool.is_some()).collect();
        assert_eq!(pools, [true, false, true]);
        assert_eq!(answer.allocations[1].planned_batch, Some(answer.allocations[1].local_batch));
    }
}

/// With any number of micro-batches, the plan follows the workers' speeds as far as possible.
#[test]
fn predictable_speeds_leave_no_tail() {
    let mut service = Service::start();
    let workers: Vec<(JoinRequest, f64)> =
        (0..4).map(|worker| (claiming(worker), [100.0, 200.0, 200.0, 400.0][worker])).collect();
    let mut run = Run::new(&mut service, &JobSpec::new(360), 1.002, &workers);
    let answers = run.steps(40);
    assert_eq!(tails(&answers), 0);
    let batches: Vec<u64> = answers[39].allocations.iter().map(|share| share.local_batch).collect();
    let near = |(batch, planned): (&u64, u64)| batch.abs_diff(planned) <= 2;
    assert!(batches.iter().zip([40, 80, 80, 160]).all(near), "{batches:?}");
}

/// A configured cap bounds local batch and claims together. A memory cap bounds each of them alone.
#[test]
fn caps_hold() {
    let mut service = Service::start();
    let mut workers: Vec<(JoinRequest, f64)> = (0..4).map(|worker| (claiming(worker), 300.0)).collect();
    workers[0].0.max_local_batch = Some(70);
    workers[1].0.memory_bytes = Some(120);
    let mut run = Run::new(&mut service, &JobSpec::new(240), 2.0, &workers);
    let mut request = run.request();
    let (mut hedged, mut unfit) = (0, 0);
    for _ in 0..50 {
        let answer = run.carry_out(&request);
        request = run.request();
        // 10 bytes per sample: nine or ten samples in one micro-batch.
        let at_once = answer.allocations[1].local_batch;
        request.reports[1].peak_memory_bytes = Some(10 * (at_once + 1));
        let cap = run.workers()[1].cap.map(|cap| cap.max_local_batch);
        let Some(tail) = &answer.tail else { continue };
        hedged += 1;
        let claimed: u64 = tail.chunks.iter().sum();
        let first = &answer.allocations[0];
        let most = first.local_batch + if first.pool.is_some() { claimed } else { 0 };
        assert!(most <= 70, "{answer:?}");
        let second = &answer.allocations[1];
        let cap = cap.unwrap();
        let largest = tail.chunks.iter().copied().max().unwrap();
        assert!(second.local_batch <= cap && (second.pool.is_none() || largest <= cap), "{cap}: {answer:?}");
        unfit += u64::from(largest > cap);
    }
    assert!(hedged >= 10 && unfit > 0, "{unfit} of {hedged} tails have chunks that one worker cannot hold");
    // An override applies too: a pinned worker gets exactly its batch.
    let pinned = WorkerOverride { pinned_local_batch: Some(50), ..WorkerOverride::default() };
    assert_eq!(run.client().put("/v1/jobs/job/workers/node%2F2/override", &pinned).status, 204);
    for answer in run.steps(10) {
        let share = &answer.allocations[2];
        assert_eq!((share.local_batch, share.pool), (50, None), "{answer:?}");
    }
}

/// Also for the smaller last batch of an epoch, in which one local batch is not a multiple of the quantum.
#[test]
fn the_quantum_holds() {
    let mut service = Service::start();
    let spec = JobSpec { quantum: 8, min_chunk: Some(16), ..JobSpec::new(480) };
    let mut run = Run::new(&mut service, &spec, 2.0, &three());
    let answers = run.steps(40);
    assert!(tails(&answers) >= 10, "{}", tails(&answers));
    for answer in &answers {
        assert!(answer.allocations.iter().all(|share| share.local_batch % 8 == 0), "{answer:?}");
        let chunks = answer.tail.iter().flat_map(|tail| &tail.chunks);
        assert!(chunks.into_iter().all(|chunk| chunk % 8 == 0 && *chunk >= 16), "{answer:?}");
    }
    for left in [479, 101, 9, 1] {
        let mut request = run.request();
        request.global_batch = Some(left);
        let answer = run.carry_out(&request);
        assert_eq!(answer.global_batch, left);
        let odd = answer.allocations.iter().filter(|share| share.local_batch % 8 != 0).count();
        assert!(odd <= 1, "{answer:?}");
    }
}
