//! No accepted join stops a job, and a rejected one changes nothing.

use std::collections::BTreeSet;

use evenstep_protocol::{JobSpec, JoinRequest, WorkerId, WorkerOverride};
use proptest::prelude::*;

use super::tests::{job, request, worker};
use super::*;

const GLOBAL_BATCH: u64 = 96;

#[derive(Debug, Clone)]
enum Change {
    Join(JoinRequest),
    Leave(WorkerId),
    Put(Box<JobSpec>),
    Override(WorkerId, Option<WorkerOverride>),
    OutOfMemory(WorkerId, u64),
}

fn bound(least: u64) -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.3, least..70)
}

fn specs() -> impl Strategy<Value = JobSpec> {
    let sizes = prop::sample::subsequence(vec![0u64, 8, 12, 16, 32, 48, 96], 1..5);
    let sizes = prop::option::weighted(0.3, sizes).prop_map(Option::unwrap_or_default);
    let quantum = prop::sample::select(vec![1u64, 8, 16, 32]);
    let each = prop::option::weighted(0.2, Just(32u64));
    (quantum, bound(0), bound(1), sizes, each, any::<bool>()).prop_map(
        |(quantum, min_local_batch, max_local_batch, allowed_sizes, per_worker_batch, accumulation)| {
            JobSpec {
                quantum,
                min_local_batch,
                max_local_batch,
                allowed_sizes,
                per_worker_batch,
                accumulation,
                ..JobSpec::new(GLOBAL_BATCH)
            }
        },
    )
}

fn changes() -> impl Strategy<Value = Change> {
    let id = || (0usize..6).prop_map(worker);
    let join = (id(), bound(0), bound(1)).prop_map(|(worker, min_local_batch, max_local_batch)| {
        Change::Join(JoinRequest { min_local_batch, max_local_batch, ..JoinRequest::new(worker) })
    });
    let wanted = (any::<bool>(), bound(0), bound(0), bound(1)).prop_map(|(paused, pinned, least, most)| {
        let pinned_local_batch = pinned.filter(|_| !paused);
        WorkerOverride { paused, pinned_local_batch, min_local_batch: least, max_local_batch: most }
    });
    prop_oneof![
        6 => join,
        2 => id().prop_map(Change::Leave),
        1 => specs().prop_map(|spec| Change::Put(Box::new(spec))),
        1 => (id(), prop::option::of(wanted)).prop_map(|(id, wanted)| Change::Override(id, wanted)),
        1 => (id(), 2u64..70).prop_map(|(id, failed)| Change::OutOfMemory(id, failed)),
    ]
}

/// Applies a change as the service does. Returns whether it was accepted.
fn apply(state: &mut JobState, change: &Change) -> bool {
    match change {
        Change::Join(request) => {
            let id = &request.worker;
            if state.check_join(request).is_err() || state.admit(request).is_err() {
                return false;
            }
            let Ok(joined) = state.members.join(id, 0) else { return false };
            let known = state.workers.entry(id.clone()).or_insert_with(|| WorkerState::new(request.clone()));
            known.oom_cap = known.oom_cap.filter(|_| !known.changes_memory(request));
            known.request = request.clone();
            if joined {
                known.join(state.members.generation());
            }
        }
        Change::Leave(id) => return state.members.leave(id, 0),
        Change::Put(spec) => {
            if check_spec(spec).is_err() || state.check_spec(spec).is_err() {
                return false;
            }
            state.spec = (**spec).clone();
        }
        Change::Override(id, wanted) => {
            let is_rejected = wanted.as_ref().is_some_and(|wanted| {
                state.check_override(id, wanted).is_err() || state.admit_override(id, wanted).is_err()
            });
            if is_rejected {
                return false;
            }
            let Some(known) = state.workers.get_mut(id) else { return false };
            known.operator_override.clone_from(wanted);
        }
        Change::OutOfMemory(id, cap) => {
            let Some(known) = state.workers.get_mut(id) else { return false };
            known.oom_cap = Some(*cap);
        }
    }
    true
}

/// Whether the live workers can share the global batch by what was set, found by trying all sums.
fn has_a_split(state: &JobState) -> bool {
    let (spec, batch) = (&state.spec, state.global_batch());
    let mut sums = BTreeSet::from([0u64]);
    for id in state.live() {
        let Bounds { required, cap, .. } = state.bounds(&id);
        let is_allowed = |size: &u64| match spec.allowed_sizes.is_empty() {
            true => size.is_multiple_of(spec.quantum),
            false => spec.allowed_sizes.contains(size) || (*size == 0 && cap == Some(0)),
        };
        let sizes: Vec<u64> = (required..=cap.unwrap_or(batch).min(batch)).filter(is_allowed).collect();
        let with =
            |sum: &u64| sizes.iter().map(|size| sum + size).filter(|sum| *sum <= batch).collect::<Vec<_>>();
        sums = sums.iter().flat_map(with).collect();
    }
    sums.contains(&batch)
}

/// Returns the parts of the state that changes of workers, options and overrides change.
fn facts(state: &JobState) -> String {
    format!("{:?}", (&state.spec, &state.members, &state.workers, &state.last_allocation))
}

proptest! {
    /// An iteration is planned if and only if some split keeps what was set. No join and no override stops a running job,
    /// and a rejected change leaves the state unchanged.
    #[test]
    fn no_accepted_join_stops_a_job(spec in specs(), changes in prop::collection::vec(changes(), 1..40)) {
        prop_assume!(check_spec(&spec).is_ok());
        let mut state = job(spec);
        let mut runs = false;
        for (iteration, change) in (0..).zip(changes) {
            let before = facts(&state);
            let is_accepted = apply(&mut state, &change);
            prop_assert!(is_accepted || facts(&state) == before, "{:?} changed the state", change);
            let planned = state.decide(&request(iteration));
            prop_assert_eq!(planned.is_ok(), has_a_split(&state), "{:?}: {:?}", change, planned.err());
            let may_stop = !matches!(change, Change::Join(_) | Change::Override(_, Some(_)));
            prop_assert!(planned.is_ok() || !runs || may_stop, "{:?}", change);
            runs = planned.is_ok();
            planned.into_iter().for_each(|planned| state.apply(planned));
        }
    }
}

/// Workers that join one after the other may together have what each alone lacks.
#[test]
fn before_the_first_allocation_only_floors_are_rejected() {
    let mut state = job(JobSpec { allowed_sizes: vec![10, 30], ..JobSpec::new(60) });
    let join = |state: &mut JobState, number, floor| {
        let request = JoinRequest { min_local_batch: floor, ..JoinRequest::new(worker(number)) };
        apply(state, &Change::Join(request))
    };
    // No three of these sizes add up to 60, but four do.
    assert!(join(&mut state, 2, None) && join(&mut state, 3, None));
    assert!(!join(&mut state, 4, Some(30)), "30 + 4 * 10 > 60");
    let planned = state.decide(&request(0)).unwrap();
    state.apply(planned);
    assert!(!join(&mut state, 4, None), "now five would stop the job");
    assert!(state.members.leave(&worker(0), 0));
    assert!(join(&mut state, 4, None), "a new worker takes the place");
}

/// Peaks of another device say nothing about this one.
#[test]
fn memory_is_that_of_the_device() {
    let mut state = job(JobSpec { profile: false, ..JobSpec::new(64) });
    let join = |state: &mut JobState, device: Option<&str>| {
        let request = JoinRequest {
            device: device.map(str::to_owned),
            memory_bytes: Some(1000),
            ..JoinRequest::new(worker(0))
        };
        state.members.leave(&worker(0), 0);
        assert!(apply(state, &Change::Join(request)));
    };
    let mut at = 0;
    let mut run = |state: &mut JobState, peak: u64| {
        for iteration in at..at + 3 {
            let planned = state.decide(&request(iteration)).unwrap();
            let shares = planned.answer.allocations.clone();
            state.apply(planned);
            let reports: Vec<_> = shares
                .iter()
                .map(|share| evenstep_protocol::WorkerReport {
                    peak_memory_bytes: Some(peak),
                    ..evenstep_protocol::WorkerReport::new(
                        share.worker.clone(),
                        iteration,
                        share.local_batch,
                        0.1,
                    )
                })
                .collect();
            state.observe(&reports);
        }
        at += 3;
    };
    join(&mut state, Some("small"));
    run(&mut state, 880);
    let small = state.bounds(&worker(0)).cap;
    assert!(small.is_some_and(|cap| cap < 40), "{small:?}");
    join(&mut state, Some("small"));
    assert_eq!(state.bounds(&worker(0)).cap, small, "the same device");
    join(&mut state, None);
    assert_eq!(state.bounds(&worker(0)).cap, small, "perhaps the same device");
    join(&mut state, Some("large"));
    assert_eq!(state.bounds(&worker(0)).cap, None, "nothing is known of it");
    run(&mut state, 320);
    assert!(state.bounds(&worker(0)).cap.is_some_and(|cap| cap >= 60), "{:?}", state.bounds(&worker(0)));
}
