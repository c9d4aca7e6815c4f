//! Even shares are held while planned ones are slower.

use evenstep_protocol::{AllocateRequest, AllocateResponse, Hedge, JobSpec, JobView, WorkerReport};

use crate::support::{Service, allocate_request, join_all, worker_id};

/// A job of two workers that are slow one after the other, each for two iterations. Reports arrive two iterations late, so plans favour the worker
/// that is slow.
struct Run {
    service: Service,
    generation: u64,
    next: u64,
    /// The reports that have not arrived.
    late: Vec<Vec<WorkerReport>>,
}

impl Run {
    fn new() -> Self {
        let service = Service::start();
        service.client.put_job("job", &JobSpec { hedge: Hedge::Off, ..JobSpec::new(64) });
        let generation = join_all(&service.client, "job", 2);
        Self { service, generation, next: 0, late: vec![Vec::new(); 2] }
    }

    fn step(&mut self) -> AllocateResponse {
        let request = AllocateRequest {
            reports: self.late.remove(0),
            ..allocate_request("job", self.generation, self.next)
        };
        let answer: AllocateResponse = self.service.client.allocate(&request).json();
        let report = |worker: usize| {
            let is_slow = self.next / 2 % 2 == worker as u64;
            let samples = answer.allocations[worker].local_batch;
            let time_s = samples as f64 * if is_slow { 0.03 } else { 0.01 };
            WorkerReport::new(worker_id(worker), self.next, samples, time_s)
        };
        self.late.push(vec![report(0), report(1)]);
        self.next += 1;
        answer
    }
}

fn batches(
    answer: &AllocateResponse,
    of: fn(&evenstep_protocol::Allocation) -> Option<u64>,
) -> Vec<Option<u64>> {
    answer.allocations.iter().map(of).collect()
}

#[test]
fn even_shares_are_held_while_planned_ones_are_slower() {
    let mut run = Run::new();
    let mut answers: Vec<AllocateResponse> = (0..40).map(|_| run.step()).collect();
    let first = answers.iter().position(|answer| answer.allocations[0].held_batch.is_some()).unwrap();
    assert!(answers[..first].iter().any(|answer| answer.allocations[0].local_batch != 32), "{answers:?}");
    // The state is part of the stored models.
    run.service.kill_and_restart();
    answers.extend((0..4).map(|_| run.step()));
    for answer in &answers[first..] {
        let held = batches(answer, |share| share.held_batch);
        // A plan of equal shares has nothing to hold.
        assert_eq!(batches(answer, |share| Some(share.local_batch)), [Some(32); 2], "{answer:?}");
        if held.iter().any(Option::is_some) {
            assert_eq!(held.iter().flatten().sum::<u64>(), 64);
            let reason = &answer.decision.reason;
            assert!(reason.starts_with("even shares, because planned ones were"), "{reason}");
        }
    }
    let held = answers[40..].iter().filter(|answer| answer.allocations[0].held_batch.is_some());
    assert!(held.count() > 0, "after the restart");
    let job: JobView = run.service.client.job("job");
    assert!(job.last_decision.is_some_and(|decision| decision.reason.starts_with("even shares, because")));
}
