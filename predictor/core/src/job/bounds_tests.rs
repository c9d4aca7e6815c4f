//! Bounds of a worker never contradict each other, whatever was accepted before.

use evenstep_protocol::{JobSpec, JoinRequest, WorkerId, WorkerOverride, WorkerReport};
use proptest::prelude::*;

use super::tests::{job, request, worker};
use super::*;
use crate::plan::Unplannable;

/// A call that changes bounds. The service applies it only if the check accepts it.
#[derive(Debug, Clone)]
enum Call {
    Put(JobSpec),
    Join(JoinRequest),
    Override(WorkerId, Option<WorkerOverride>),
    OutOfMemory(WorkerId, u64),
    Report(WorkerReport),
}

const GLOBAL_BATCH: u64 = 96;

fn bound() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.4, 0u64..120)
}

fn cap() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.4, 1u64..120)
}

fn calls() -> impl Strategy<Value = Call> {
    let id = || (0usize..2).prop_map(worker);
    let sizes = prop::sample::subsequence(vec![0u64, 8, 12, 16, 32, 48, 64, 96, 128], 1..5);
    let sizes = prop::option::weighted(0.3, sizes).prop_map(Option::unwrap_or_default);
    let quantum = prop::sample::select(vec![1u64, 8, 16, 32]);
    let put = (quantum, bound(), cap(), sizes, any::<bool>()).prop_map(
        |(quantum, min_local_batch, max_local_batch, allowed_sizes, accumulation)| {
            Call::Put(JobSpec {
                quantum,
                min_local_batch,
                max_local_batch,
                allowed_sizes,
                accumulation,
                ..JobSpec::new(GLOBAL_BATCH)
            })
        },
    );
    let join = (id(), bound(), cap()).prop_map(|(worker, min_local_batch, max_local_batch)| {
        let memory_bytes = Some(1000);
        Call::Join(JoinRequest { min_local_batch, max_local_batch, memory_bytes, ..JoinRequest::new(worker) })
    });
    let wanted = (any::<bool>(), bound(), bound(), cap()).prop_map(|(paused, pinned, least, most)| {
        let pinned_local_batch = pinned.filter(|_| !paused);
        WorkerOverride { paused, pinned_local_batch, min_local_batch: least, max_local_batch: most }
    });
    let wanted = (id(), prop::option::of(wanted)).prop_map(|(id, wanted)| Call::Override(id, wanted));
    let failed = (id(), 2u64..120).prop_map(|(id, batch)| Call::OutOfMemory(id, batch));
    let report = (id(), 1u64..90, 1u64..2000).prop_map(|(id, batch, peak)| {
        Call::Report(WorkerReport { peak_memory_bytes: Some(peak), ..WorkerReport::new(id, 0, batch, 0.1) })
    });
    prop_oneof![put, join, wanted, failed, report]
}

/// Applies a call as the service does. Returns whether it was accepted.
fn apply(state: &mut JobState, call: Call, iteration: u64) -> bool {
    match call {
        Call::Put(spec) => {
            let accepted = check_spec(&spec).is_ok() && state.check_spec(&spec).is_ok();
            if accepted {
                state.spec = spec;
            }
            accepted
        }
        Call::Join(request) => {
            let accepted = state.check_join(&request).is_ok();
            if accepted {
                let worker = request.worker.clone();
                state.workers.get_mut(&worker).unwrap().request = request;
            }
            accepted
        }
        Call::Override(worker, wanted) => {
            let accepted = wanted.as_ref().is_none_or(|wanted| state.check_override(&worker, wanted).is_ok());
            if accepted {
                state.workers.get_mut(&worker).unwrap().operator_override = wanted;
            }
            accepted
        }
        Call::OutOfMemory(worker, failed) => {
            let cap = state.models.worker(&worker).map(|known| known.memory.clone()).unwrap_or_default();
            let quantum = if state.spec.accumulation { 1 } else { state.quantum() };
            state.workers.get_mut(&worker).unwrap().oom_cap = Some(cap.after_failure(failed, quantum));
            true
        }
        Call::Report(report) => {
            state.observe(&[WorkerReport { iteration, ..report }]);
            true
        }
    }
}

proptest! {
    /// After any accepted calls, each worker has a local batch within its own floor and cap, of an allowed
    /// size. So no plan fails because of a single worker.
    #[test]
    fn accepted_bounds_leave_every_worker_a_local_batch(calls in prop::collection::vec(calls(), 1..40)) {
        let mut state = job(JobSpec::new(GLOBAL_BATCH));
        for (iteration, call) in (0..).zip(calls) {
            let said = format!("{call:?}");
            apply(&mut state, call, iteration);
            for id in state.live() {
                let Bounds { floor, cap, .. } = state.bounds(&id);
                let cap = cap.unwrap_or(u64::MAX);
                let spec = &state.spec;
                let sizes = if spec.allowed_sizes.is_empty() {
                    (0..=GLOBAL_BATCH).step_by(usize::try_from(spec.quantum).unwrap()).collect()
                } else {
                    spec.allowed_sizes.clone()
                };
                let idle = (floor, cap) == (0, 0);
                let has_batch = sizes.iter().any(|size| (floor..=cap.min(GLOBAL_BATCH)).contains(size));
                prop_assert!(idle || has_batch, "{} to {} after {}", floor, cap, said);
            }
            let planned = state.decide(&request(iteration));
            if let Err(DecideError::Unplannable(Unplannable::Infeasible(error))) = planned {
                prop_assert_eq!(error.crossed, None, "{}", error);
            }
        }
    }
}

#[test]
fn a_contradiction_names_both_values_and_their_settings() {
    let mut state = job(JobSpec { quantum: 16, ..JobSpec::new(64) });
    let join = |most| JoinRequest { max_local_batch: Some(most), ..JoinRequest::new(worker(1)) };
    let error = state.check_join(&join(8)).unwrap_err().to_string();
    let bounds =
        ["floor of 16 (quantum, the default min_local_batch)", "cap of 8 (max_local_batch of the worker)"];
    for named in bounds.into_iter().chain(["worker node/1: ", "no multiple of quantum 16 is between them"]) {
        assert!(error.contains(named), "{named}: {error}");
    }
    assert_eq!(state.check_join(&join(16)), Ok(()));
    state.spec.min_local_batch = Some(0);
    assert_eq!(state.check_join(&join(8)), Ok(()), "with a floor of 0, a worker may compute nothing");
    state.spec.min_local_batch = Some(20);
    let error = check_spec(&JobSpec { max_local_batch: Some(30), ..state.spec.clone() }).unwrap_err();
    assert!(error.to_string().contains("floor of 20") && error.to_string().contains("cap of 30"), "{error}");
    let pinned = WorkerOverride { pinned_local_batch: Some(80), ..WorkerOverride::default() };
    let error = state.check_override(&worker(0), &pinned).unwrap_err().to_string();
    assert!(error.contains("80 (pinned_local_batch") && error.contains("64 (global_batch"), "{error}");
}

/// A worker rejects an allocation above its own cap, so an operator cannot pin it there.
#[test]
fn a_pin_stays_within_the_cap_of_its_worker() {
    let mut state = job(JobSpec::new(64));
    state.workers.get_mut(&worker(0)).unwrap().request.max_local_batch = Some(24);
    let pinned = |samples| WorkerOverride { pinned_local_batch: Some(samples), ..WorkerOverride::default() };
    let error = state.check_override(&worker(0), &pinned(25)).unwrap_err().to_string();
    assert!(error.contains("25 (pinned_local_batch") && error.contains("24 (max_local_batch"), "{error}");
    assert_eq!(state.check_override(&worker(0), &pinned(24)), Ok(()));
    // Earlier versions stored such pins.
    state.workers.get_mut(&worker(0)).unwrap().operator_override = Some(pinned(25));
    let Bounds { floor, cap, .. } = state.bounds(&worker(0));
    assert_eq!((floor, cap), (24, Some(24)));
    state.spec.quantum = 16;
    let Bounds { floor, cap, .. } = state.bounds(&worker(0));
    assert_eq!((floor, cap), (16, Some(24)), "the sizes between have no quantum");
}

/// The caps of a job may be too small for the workers that have joined so far, but not for any number of
/// workers.
#[test]
fn job_options_that_no_number_of_workers_can_satisfy_are_contradictions() {
    let spec = JobSpec { quantum: 16, ..JobSpec::new(64) };
    assert_eq!(check_spec(&JobSpec { max_local_batch: Some(16), ..spec.clone() }), Ok(()));
    assert_eq!(check_spec(&JobSpec { min_workers: 4, ..spec.clone() }), Ok(()));
    let error = check_spec(&JobSpec { min_workers: 5, ..spec.clone() }).unwrap_err();
    assert!(matches!(error, Contradiction::Floors { floors: 80, global_batch: 64, .. }), "{error}");
    let growing = JobSpec { per_worker_batch: Some(32), max_local_batch: Some(40), ..spec };
    assert_eq!(check_spec(&growing), Ok(()));
    let error = check_spec(&JobSpec { max_local_batch: Some(31), ..growing.clone() }).unwrap_err();
    assert!(matches!(error, Contradiction::Caps { cap: 31, held: 16, per_worker_batch: 32 }), "{error}");
    assert_eq!(
        check_spec(&JobSpec { max_local_batch: Some(31), accumulation: true, ..growing.clone() }),
        Ok(())
    );
    let error =
        check_spec(&JobSpec { min_local_batch: Some(33), max_local_batch: None, ..growing }).unwrap_err();
    assert!(matches!(error, Contradiction::Floors { floors: 48, global_batch: 32, .. }), "{error}");
}

/// Memory takes precedence over floors: the job continues with what the worker can hold.
#[test]
fn a_worker_without_memory_for_any_size_computes_nothing() {
    for (spec, expected) in [
        (JobSpec { quantum: 16, ..JobSpec::new(64) }, [64, 0]),
        (JobSpec { allowed_sizes: vec![16, 32, 64], ..JobSpec::new(64) }, [64, 0]),
        (JobSpec { min_local_batch: Some(20), ..JobSpec::new(64) }, [55, 9]),
    ] {
        let mut state = job(spec);
        state.workers.get_mut(&worker(1)).unwrap().oom_cap = Some(9);
        let answer = state.decide(&request(0)).unwrap().answer;
        let batches: Vec<u64> = answer.allocations.iter().map(|share| share.local_batch).collect();
        assert_eq!(batches, expected, "{:?}", state.spec);
    }
    let paused = WorkerOverride { paused: true, ..WorkerOverride::default() };
    let mut state = job(JobSpec { allowed_sizes: vec![16, 32, 64], ..JobSpec::new(64) });
    assert_eq!(state.check_override(&worker(0), &paused), Ok(()));
    state.workers.get_mut(&worker(0)).unwrap().operator_override = Some(paused);
    assert_eq!(state.decide(&request(0)).unwrap().answer.allocations[0].local_batch, 0);
}
