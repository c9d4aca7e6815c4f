use std::collections::BTreeMap;

use evenstep_protocol::{AllocateRequest, DecisionKind, JobId, JobSpec, JoinRequest, WorkerId, WorkerReport};

use super::*;
use crate::attempts::Attempts;
use crate::membership::{Member, State};

pub(super) fn worker(number: usize) -> WorkerId {
    WorkerId::new(format!("node/{number}")).unwrap()
}

/// A job with two live workers and no reports.
pub(super) fn job(spec: JobSpec) -> JobState {
    let member = |number| Member {
        id: worker(number),
        state: State::Live,
        last_seen_ms: 0,
        departures_ms: std::collections::VecDeque::new(),
    };
    let known = |number| (worker(number), WorkerState::new(JoinRequest::new(worker(number))));
    JobState::restore(Restored {
        kept_from: 0,
        generation: 2,
        departed_generation: 0,
        members: (0..2).map(member).collect(),
        workers: BTreeMap::from_iter((0..2).map(known)),
        models: Models::new(),
        learning_rate: controller(&spec).unwrap(),
        last_iteration: None,
        last_allocation: None,
        spec,
    })
}

pub(super) fn request(iteration: u64) -> AllocateRequest {
    AllocateRequest::new(JobId::new("job").unwrap(), 2, iteration)
}

/// Reports of two workers, one twice as fast as the other.
fn reports(iteration: u64) -> Vec<WorkerReport> {
    let report = |number: usize| {
        let speed = 100.0 * (number + 1) as f64 * (1.0 + 0.1 * (iteration % 3) as f64);
        WorkerReport::new(worker(number), iteration, 32, 32.0 / speed)
    };
    (0..2).map(report).collect()
}

#[test]
fn a_decision_is_part_of_the_state_only_once_it_is_applied() {
    let mut state = job(JobSpec::new(64));
    let decided = state.decide(&request(0)).unwrap();
    assert_eq!(*state.decide(&request(0)).unwrap().answer, *decided.answer);
    assert_eq!((state.next_iteration, state.last_allocation.is_none()), (0, true));
    let answer = decided.answer.clone();
    state.apply(decided);
    assert_eq!((state.next_iteration, state.last_allocation.clone()), (1, Some(answer)));
}

#[test]
fn speeds_of_an_earlier_run_hold_until_the_first_reports() {
    let initial_speeds = BTreeMap::from([(worker(0), 300.0), (worker(1), 100.0)]);
    let mut state = job(JobSpec { initial_speeds, ..JobSpec::new(64) });
    let batches = |state: &JobState, iteration| -> Vec<u64> {
        let answer = state.decide(&request(iteration)).unwrap().answer;
        answer.allocations.iter().map(|share| share.local_batch).collect()
    };
    assert_eq!(batches(&state, 0), [48, 16]);
    let first = state.decide(&request(0)).unwrap();
    state.apply(first);
    (0..3).for_each(|iteration| drop(state.observe(&reports(iteration))));
    let [slow, fast] = batches(&state, 3)[..] else { panic!("two workers") };
    assert!(slow < fast, "the reports say the opposite of the earlier run: {slow}, {fast}");
    // A worker without a speed gets at most an even share.
    let initial_speeds = BTreeMap::from([(worker(0), 100.0)]);
    let unknown = job(JobSpec { initial_speeds, ..JobSpec::new(64) });
    assert!(batches(&unknown, 0)[1] <= 32);
}

#[test]
fn an_infeasible_plan_is_an_error_that_changes_nothing() {
    let mut state = job(JobSpec::new(64));
    state.apply(state.decide(&request(0)).unwrap());
    for iteration in 0..3 {
        state.observe(&reports(iteration));
    }
    let before = state.decide(&request(1)).unwrap();
    state.spec.max_local_batch = Some(20);
    assert!(matches!(state.decide(&request(1)), Err(DecideError::Unplannable(_))));
    state.spec.max_local_batch = None;
    assert_eq!(*state.decide(&request(1)).unwrap().answer, *before.answer);
}

/// Reports of one iteration in separate calls give the same models as in one call.
#[test]
fn reports_of_one_iteration_may_come_separately() {
    let mut separate = job(JobSpec::new(64));
    let mut together = job(JobSpec::new(64));
    for iteration in 0..40 {
        for state in [&mut separate, &mut together] {
            state.apply(state.decide(&request(iteration)).unwrap());
        }
        let reports = reports(iteration);
        reports.iter().rev().for_each(|report| drop(separate.observe(std::slice::from_ref(report))));
        together.observe(&reports);
    }
    let [separate, together] = [&separate, &together].map(|state| encoded(&state.models));
    assert!(separate == together, "the models differ");
}

/// The parts of stored models.
pub fn encoded(models: &Models) -> Vec<Vec<u8>> {
    write_models(models).collect::<Result<_, _>>().unwrap()
}

/// Models of many workers come back from their parts, and from no others.
#[test]
fn stored_models_are_all_their_parts() {
    let mut models = Models::new();
    let names: Vec<WorkerId> = (0..40).map(worker).collect();
    for iteration in 0..6 {
        let report = |(at, name): (usize, &WorkerId)| {
            WorkerReport::new(name.clone(), iteration, 8, 0.1 + 0.01 * (at as f64 + iteration as f64))
        };
        models.learn(
            &names.iter().enumerate().map(report).collect::<Vec<_>>(),
            &Attempts::default(),
            &BTreeMap::new(),
        );
    }
    let parts = encoded(&models);
    assert_eq!(parts.len(), 6, "40 workers, 8 in a part");
    let read = read_models(&parts).unwrap();
    assert!(names.iter().all(|name| read.knows(name)) && encoded(&read) == parts);
    for missing in 0..parts.len() {
        let mut rest = parts.clone();
        rest.remove(missing);
        assert!(read_models(&rest).is_err(), "without part {missing}");
    }
    assert!(read_models(&[&parts[..], &parts[1..2]].concat()).is_err(), "one too many");
    for (number, part) in parts.iter().enumerate() {
        assert!(check_part(number as u64, part).is_ok());
        assert!(part.len() < 2 << 20, "{} bytes", part.len());
    }
}

/// Reports of several iterations give the same result in one call and in several calls.
#[test]
fn grouping_does_not_change_what_is_learned() {
    let mut one_by_one = job(JobSpec::new(64));
    let mut together = job(JobSpec::new(64));
    (0..40).for_each(|iteration| drop(one_by_one.observe(&reports(iteration))));
    let all: Vec<WorkerReport> = (0..40).flat_map(reports).collect();
    assert_eq!(together.observe(&all).skipped, []);
    let bytes = [&one_by_one, &together].map(|state| encoded(&state.models));
    assert_eq!(bytes[0], bytes[1]);
    assert_eq!(
        *one_by_one.decide(&request(40)).unwrap().answer,
        *together.decide(&request(40)).unwrap().answer
    );
    let read = read_models(&bytes[0]).unwrap();
    assert_eq!(encoded(&read), bytes[0], "models are unchanged after storing and loading");
}

/// The newest allocation shows the plan, also if its shares vary on purpose.
#[test]
fn the_plan_in_force_comes_back_with_the_newest_allocation() {
    for (iterations, profile, varies) in [(40, false, false), (3, true, true)] {
        let mut state = job(JobSpec { profile, ..JobSpec::new(64) });
        (0..iterations).for_each(|iteration| drop(state.observe(&reports(iteration))));
        state.apply(state.decide(&request(iterations)).unwrap());
        let last = state.last_allocation.as_deref().cloned().unwrap();
        assert_eq!(last.decision.kind == DecisionKind::Profiling, varies);
        let restored = JobState::restore(Restored {
            spec: state.spec.clone(),
            kept_from: 0,
            generation: 2,
            departed_generation: 0,
            members: state.members.all().to_vec(),
            workers: BTreeMap::new(),
            models: Models::new(),
            learning_rate: state.learning_rate.clone(),
            last_iteration: Some(iterations),
            last_allocation: Some(last),
        });
        let (workers, in_force) = state.in_force.clone().unwrap();
        let (restored_workers, restored_plan) = restored.in_force.clone().unwrap();
        assert_eq!((restored_workers, restored_plan.batches), (workers, in_force.batches));
        assert_eq!(restored.next_iteration, iterations + 1);
    }
}

/// The ragged end of an epoch follows the plan of whole iterations, also if its gain is hardly known.
#[test]
fn a_ragged_end_is_as_uneven_as_the_plan() {
    for (speeds, ragged) in [([100.0, 300.0], [3, 10]), ([100.0, 100.0], [7, 6])] {
        let mut state = job(JobSpec::new(16));
        let mut last = Vec::new();
        for iteration in 0..5 {
            let decided = state.decide(&request(iteration)).unwrap();
            last = decided.answer.allocations.iter().map(|share| share.local_batch).collect();
            state.apply(decided);
            let report = |number: usize| {
                let samples = last[number];
                WorkerReport::new(worker(number), iteration, samples, samples as f64 / speeds[number])
            };
            state.observe(&[report(0), report(1)]);
        }
        assert_eq!(last == [8, 8], ragged == [7, 6], "{last:?}");
        let answer = state.decide(&AllocateRequest { global_batch: Some(13), ..request(5) }).unwrap().answer;
        let batches: Vec<u64> = answer.allocations.iter().map(|share| share.local_batch).collect();
        assert_eq!(batches, ragged);
    }
}
