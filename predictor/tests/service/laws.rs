//! Rules that hold for every allocation, for any job and speeds.

use std::cell::Cell;

use evenstep_protocol::{AllocateResponse, JobSpec, JoinRequest};
use evenstep_tests::Client;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::support::{Service, allocate_request, report, worker_id};

/// A job, and floor, cap and speed of each worker.
#[derive(Debug, Clone)]
struct Case {
    spec: JobSpec,
    workers: Vec<(Option<u64>, Option<u64>, f64)>,
    ragged: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let bound = |max: u64| prop::option::weighted(0.3, 1..=max);
    (1u64..=16, 1u64..=24).prop_flat_map(move |(quantum, quanta)| {
        let batch = quantum * quanta;
        let worker = (bound(batch / 2 + 1), bound(batch), 10.0f64..1000.0);
        (prop::collection::vec(worker, 1..=6), bound(batch / 3 + 1), bound(batch), 1..=batch).prop_map(
            move |(mut workers, floor, cap, ragged)| {
                let crossed = |floor: Option<u64>, cap: Option<u64>| {
                    floor.zip(cap).is_some_and(|(floor, cap)| floor > cap)
                };
                for worker in workers.iter_mut().filter(|worker| crossed(worker.0, worker.1)) {
                    worker.0 = None;
                }
                let floor = floor.filter(|floor| !crossed(Some(*floor), cap));
                let spec =
                    JobSpec { quantum, min_local_batch: floor, max_local_batch: cap, ..JobSpec::new(batch) };
                Case { spec, workers, ragged }
            },
        )
    })
}

/// Floor and cap in whole quanta, of a worker with its own floor and cap.
fn bounds(spec: &JobSpec, own_floor: Option<u64>, own_cap: Option<u64>) -> (u64, u64) {
    let floor = spec.min_local_batch.unwrap_or(spec.quantum).max(own_floor.unwrap_or(0));
    let cap = [spec.max_local_batch, own_cap].into_iter().flatten().min().unwrap_or(spec.global_batch);
    (floor.next_multiple_of(spec.quantum), cap - cap % spec.quantum)
}

/// The part of the floor that is not a default, in whole quanta.
fn required(spec: &JobSpec, own_floor: Option<u64>) -> u64 {
    spec.min_local_batch.max(own_floor).unwrap_or(0).next_multiple_of(spec.quantum)
}

#[test]
fn every_allocation_sums_to_the_batch_within_all_bounds() {
    let service = Service::start();
    let (feasible, infeasible, refused) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config { cases: 192, failure_persistence: None, ..Config::default() });
    let check = |mut case: Case| -> Result<(), TestCaseError> {
        let job = format!("job-{}", feasible.get() + infeasible.get() + refused.get());
        let generation = create(&service.client, &job, &mut case, &refused);
        if case.workers.is_empty() {
            return Ok(());
        }
        let mut bounds: Vec<(u64, u64)> =
            case.workers.iter().map(|worker| bounds(&case.spec, worker.0, worker.1)).collect();
        let (mut floors, caps) = bounds.iter().fold((0, 0), |sum, bound| (sum.0 + bound.0, sum.1 + bound.1));
        let batch = case.spec.global_batch;
        if floors > batch {
            // Default floors yield.
            for (bound, worker) in bounds.iter_mut().zip(&case.workers) {
                bound.0 = required(&case.spec, worker.0);
            }
            floors = bounds.iter().map(|bound| bound.0).sum();
        }
        if caps < batch {
            infeasible.set(infeasible.get() + 1);
            let problem =
                service.client.allocate(&allocate_request(&job, generation, 0)).problem(422, "infeasible");
            prop_assert_eq!(problem.global_batch, Some(batch));
            prop_assert_eq!(problem.sum_of_floors, Some(floors));
            return Ok(());
        }
        feasible.set(feasible.get() + 1);
        let mut shares: Vec<u64> = Vec::new();
        for iteration in 0..5 {
            let mut request = allocate_request(&job, generation, iteration);
            let each = shares.iter().zip(&case.workers).enumerate();
            request.reports = each
                .filter(|(_, (share, _))| **share > 0)
                .map(|(rank, (share, worker))| report(rank, iteration - 1, *share, worker.2))
                .collect();
            let answer: AllocateResponse = service.client.allocate(&request).json();
            whole(&answer, batch)?;
            shares = answer.allocations.iter().map(|share| share.local_batch).collect();
            for (share, (floor, cap)) in shares.iter().zip(&bounds) {
                prop_assert!(share.is_multiple_of(case.spec.quantum), "quantum: {:?}", shares);
                prop_assert!(floor <= share && share <= cap, "{} to {}: {:?}", floor, cap, shares);
            }
        }
        let mut ragged = allocate_request(&job, generation, 5);
        ragged.global_batch = Some(case.ragged);
        let answer = service.client.allocate(&ragged);
        if answer.status == 200 {
            whole(&answer.json(), case.ragged)?;
        } else {
            // With tight caps, the remainder may not fit.
            answer.problem(422, "infeasible");
            prop_assert!(case.ragged + case.spec.quantum > caps, "{} of {}", case.ragged, caps);
        }
        Ok(())
    };
    runner.run(&cases(), check).unwrap();
    let (feasible, infeasible, refused) = (feasible.get(), infeasible.get(), refused.get());
    assert!(
        feasible > 10 && infeasible > 10 && refused > 10,
        "all kinds occurred: {feasible}, {infeasible}, {refused}"
    );
}

/// Creates a job and joins its workers. A worker is rejected, and removed from the case, if its own floor exceeds its own
/// cap, or if the batch is too small for its floor. All are removed if the job options contradict each other.
fn create(client: &Client, job: &str, case: &mut Case, refused: &Cell<u64>) -> u64 {
    let Case { spec, workers, .. } = case;
    let crossed = |own_floor: Option<u64>, own_cap: Option<u64>| {
        let (floor, cap) = bounds(spec, own_floor, own_cap);
        floor > cap.min(spec.global_batch)
    };
    if crossed(None, None) {
        refused.set(refused.get() + 1);
        client.put(&format!("/v1/jobs/{job}"), spec).problem(422, "invalid");
        workers.clear();
        return 0;
    }
    client.put_job(job, spec);
    let mut generation = 0;
    let (mut rank, mut floors) = (0, 0);
    workers.retain(|(min_local_batch, max_local_batch, _)| {
        let request = JoinRequest {
            device: Some("cpu".into()),
            min_local_batch: *min_local_batch,
            max_local_batch: *max_local_batch,
            ..JoinRequest::new(worker_id(rank))
        };
        let reply = client.post(&format!("/v1/jobs/{job}/workers"), &request);
        if crossed(*min_local_batch, *max_local_batch) {
            refused.set(refused.get() + 1);
            let problem = reply.problem(422, "invalid");
            assert!(problem.detail.contains(worker_id(rank).as_str()), "{problem:?}");
            return false;
        }
        let needed = required(spec, *min_local_batch);
        if floors + needed > spec.global_batch {
            refused.set(refused.get() + 1);
            let problem = reply.problem(409, "conflict");
            assert!(problem.detail.contains("largest floor"), "{problem:?}");
            return false;
        }
        floors += needed;
        generation = reply.json::<evenstep_protocol::JoinResponse>().generation;
        rank += 1;
        true
    });
    generation
}

/// The whole batch, without gap or overlap, in rank order, with matching gradient weights.
fn whole(answer: &AllocateResponse, batch: u64) -> Result<(), TestCaseError> {
    prop_assert_eq!(answer.global_batch, batch);
    let mut offset = 0;
    for (rank, share) in (0..).zip(&answer.allocations) {
        prop_assert_eq!(share.rank, rank);
        prop_assert_eq!(&share.worker, &worker_id(rank as usize));
        prop_assert_eq!(share.offset, offset);
        prop_assert_eq!(share.gradient_weight, share.local_batch as f64 / batch as f64);
        offset += share.local_batch;
    }
    prop_assert_eq!(offset, batch);
    Ok(())
}
