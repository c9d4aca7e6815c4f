//! Decisions while the reports of some iterations are incomplete.

use std::collections::BTreeMap;

use evenstep_protocol::{JobSpec, JoinRequest, WorkerReport, driver};
use proptest::prelude::*;

use super::models::Ahead;
use super::tests::{encoded, request, worker};
use super::*;
use crate::membership::{Member, State};

/// A job with this number of workers that have reported some iterations.
fn measured(workers: usize) -> JobState {
    let member = |number| Member {
        id: worker(number),
        state: State::Live,
        last_seen_ms: 0,
        departures_ms: std::collections::VecDeque::new(),
    };
    let known = |number| (worker(number), WorkerState::new(JoinRequest::new(worker(number))));
    let spec = JobSpec::new(64 * workers as u64);
    let mut state = JobState::restore(Restored {
        kept_from: 0,
        generation: 2,
        departed_generation: 0,
        members: (0..workers).map(member).collect(),
        workers: BTreeMap::from_iter((0..workers).map(known)),
        models: Models::new(),
        learning_rate: controller(&spec).unwrap(),
        last_iteration: None,
        last_allocation: None,
        spec,
    });
    for iteration in 0..20 {
        step(&mut state, iteration, |_| 1.0, |_| true);
    }
    state
}

/// Plans an iteration, and learns from the reports that arrive. `slower` are factors of each worker's time.
fn step(
    state: &mut JobState,
    iteration: u64,
    slower: impl Fn(usize) -> f64,
    arrives: impl Fn(usize) -> bool,
) {
    let decided = state.decide(&request(iteration)).unwrap();
    let answer = decided.answer.clone();
    state.apply(decided);
    let report = |(number, share): (usize, &evenstep_protocol::Allocation)| {
        let noise = 1.0 + 0.02 * ((iteration as usize * 7919 + number * 104_729) % 11) as f64;
        let time_s = share.local_batch as f64 * 0.01 * noise * slower(number);
        let drivers = driver::ALL.map(|name| (name.to_owned(), noise)).into();
        WorkerReport {
            drivers,
            ..WorkerReport::new(share.worker.clone(), iteration, share.local_batch, time_s)
        }
    };
    let reports: Vec<WorkerReport> = answer.allocations.iter().enumerate().map(report).collect();
    let arrived: Vec<WorkerReport> = reports
        .into_iter()
        .enumerate()
        .filter(|(number, _)| arrives(*number))
        .map(|(_, report)| report)
        .collect();
    state.observe(&arrived);
}

/// Decisions follow the reports that have arrived, however many workers the job has.
#[test]
fn one_late_report_makes_no_decision_old() {
    for workers in [3, 65, 300, 1000] {
        let mut state = measured(workers);
        let slower = |number: usize| if number % 2 == 1 { 3.0 } else { 1.0 };
        // The report of worker 0 is missing from the first iteration on in which the others change.
        for iteration in 20..23 {
            step(&mut state, iteration, slower, |number| number > 0);
        }
        step(&mut state, 23, slower, |number| number > 0);
        let shares = state.last_allocation.as_ref().map_or(&[][..], |answer| &answer.allocations);
        assert_eq!(shares.len(), workers);
        for (number, share) in shares.iter().enumerate().skip(1) {
            let planned = share.predicted_speed_samples_per_s.unwrap();
            assert!((planned * slower(number) / 100.0).ln().abs() < 0.5, "{workers}, {number}: {planned}");
        }
    }
}

/// A request for an iteration, and the reports that arrive before it: their iterations' ages.
fn arrivals() -> impl Strategy<Value = Vec<Vec<(usize, u64)>>> {
    let report = (0usize..3, prop_oneof![4 => Just(1u64), 1 => 2u64..6]);
    prop::collection::vec(prop::collection::vec(report, 0..5), 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Continued models equal those that start again from the learned ones, for reports in any order and lost reports.
    #[test]
    fn continued_models_are_those_of_all_reports(arrivals in arrivals()) {
        let mut state = measured(3);
        let mut iteration = 20;
        for reports in arrivals {
            let decided = state.decide(&request(iteration)).unwrap();
            state.apply(decided);
            iteration += 1;
            for (number, age) in reports {
                let of = iteration.saturating_sub(age);
                let time_s = 1.0 + 0.1 * ((of * 31 + number as u64 * 7) % 5) as f64;
                state.observe(&[WorkerReport::new(worker(number), of, 64, time_s)]);
                if number == 1 {
                    state.current_models();
                }
            }
            let again = Ahead::of(&state.models, None, 0, &state.attempts, &BTreeMap::new());
            let again = again.as_ref().map_or(&state.models, Ahead::models);
            prop_assert!(encoded(again) == encoded(state.current_models()));
        }
    }
}
