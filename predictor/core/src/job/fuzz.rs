//! Fuzz tests: stored models with arbitrary damage, and reports at the borders of their rules. Whatever is read or
//! reported, no call panics and every number of an allocation is finite.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use evenstep_fuzz::{arbitrary, config, damaged};
use evenstep_protocol::columns::{Bounds, COLUMNS, Number};
use evenstep_protocol::{
    AllocateResponse, JobSpec, JoinRequest, LearningRateRule, TailReport, WorkerId, WorkerReport, driver,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::tests::{encoded, job, request, worker};
use super::*;
use crate::forecast::narx::{Narx, Settings};

/// Checks that every number of an allocation is finite, and that its shares add up.
fn check(answer: &AllocateResponse) -> Result<(), TestCaseError> {
    let text = serde_json::to_string(answer).unwrap();
    let read: Result<AllocateResponse, _> = serde_json::from_str(&text);
    // A number that is not finite becomes null.
    prop_assert!(read.is_ok_and(|read| read == *answer), "{}", text);
    let sum: u64 = answer.allocations.iter().map(|share| share.local_batch).sum();
    let tail: u64 = answer.tail.iter().flat_map(|tail| &tail.chunks).sum();
    prop_assert_eq!(sum + tail, answer.global_batch);
    Ok(())
}

/// Plans iterations with these models and learns from their reports.
fn run(state: &mut JobState, iterations: std::ops::Range<u64>) -> Result<(), TestCaseError> {
    for iteration in iterations {
        let planned = state.decide(&request(iteration)).unwrap();
        check(&planned.answer)?;
        let answer = planned.answer.clone();
        state.apply(planned);
        let reports: Vec<WorkerReport> = answer
            .allocations
            .iter()
            .map(|share| WorkerReport {
                drivers: BTreeMap::from([(driver::PSI_CPU_SOME.to_owned(), (iteration % 5) as f64 / 5.0)]),
                ..WorkerReport::new(
                    share.worker.clone(),
                    iteration,
                    share.local_batch,
                    0.5 + 0.1 * (iteration % 7) as f64,
                )
            })
            .collect();
        state.observe(&reports);
    }
    Ok(())
}

fn live(models: &Models) -> Vec<WorkerId> {
    (0..2).map(worker).filter(|worker| models.knows(worker)).collect()
}

/// Models of two workers that contain every kind of expert and, with `sizes`, a learned curve.
fn models(sizes: &[u64], rule: LearningRateRule) -> JobState {
    let mut state = job(JobSpec { rule, ..JobSpec::new(64) });
    let mut reports = Vec::new();
    for iteration in 0..150 {
        state.apply(state.decide(&request(iteration)).unwrap());
        let size = sizes[iteration as usize / 3 % sizes.len()];
        let both: Vec<WorkerReport> = [100.0, 200.0]
            .iter()
            .enumerate()
            .map(|(number, speed)| {
                let noise = 1.0 + 0.1 * ((iteration * 7919 + number as u64) % 11) as f64;
                let drivers = [(driver::PSI_CPU_SOME, noise), (driver::OWN_CPU, 1.0 / noise)];
                WorkerReport {
                    drivers: drivers.map(|(name, value)| (name.to_owned(), value)).into(),
                    peak_memory_bytes: Some(1000 + size),
                    barrier_wait_s: Some(0.01),
                    gradient_sqr: Some(2.0 + noise),
                    global_gradient_sqr: Some(1.0),
                    ..WorkerReport::new(worker(number), iteration, size, noise * (0.3 + size as f64) / speed)
                }
            })
            .collect();
        state.observe(&both);
        reports.extend(both);
    }
    let due = state.models.due_refits(1, 1);
    let recipe = Narx::new(Settings { restarts: 2, hidden: 1, ..Settings::REFIT }).unwrap();
    let fitted = due.iter().map(|(worker, curve)| {
        let reports = reports.iter().filter(|report| report.worker == *worker);
        (worker.clone(), training(curve, reports).fit(&recipe).unwrap())
    });
    state.models.install(fitted.collect());
    // One worker has reported the next iteration, the other not yet.
    state.observe(&[WorkerReport::new(worker(0), 150, 32, 0.1)]);
    state
}

fn states() -> &'static [JobState; 2] {
    static STATES: OnceLock<[JobState; 2]> = OnceLock::new();
    STATES.get_or_init(|| {
        [
            models(&[32], LearningRateRule::Adascale),
            models(&[10, 20, 40, 80, 60, 15], LearningRateRule::DynamicSgd),
        ]
    })
}

fn stored_models() -> Vec<Vec<Vec<u8>>> {
    let states = states().iter().map(|state| encoded(&state.models));
    states.chain([encoded(&Models::new())]).collect()
}

/// Parts of stored models, one of them damaged.
fn damaged_parts() -> impl Strategy<Value = Vec<Vec<u8>>> {
    (select(stored_models()), any::<Index>()).prop_flat_map(|(parts, at)| {
        let at = at.index(parts.len());
        damaged(vec![parts[at].clone()]).prop_map(move |part| {
            let mut parts = parts.clone();
            parts[at] = part;
            parts
        })
    })
}

fn stored_device_models() -> Vec<Vec<u8>> {
    let learned = states().iter().filter_map(|state| state.models.forecaster().learned(&worker(0)));
    learned.map(|learned| write_device_model(&learned).unwrap()).collect()
}

fn stored_controllers() -> Vec<String> {
    states().iter().map(|state| serde_json::to_string(&state.learning_rate).unwrap()).collect()
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn damaged_models_are_an_error_or_plan_finite_numbers(
        parts in prop_oneof![1 => arbitrary().prop_map(|bytes| vec![bytes]), 9 => damaged_parts()],
    ) {
        let Ok(models) = read_models(&parts) else { return Ok(()) };
        let mut state = job(JobSpec::new(64));
        state.models = models;
        for worker in live(&state.models) {
            for record in state.models.forecaster().experts(&worker) {
                prop_assert!(record.speed.is_finite() && record.weight.is_finite(), "{:?}", record);
            }
            let known = state.models.worker(&worker).map(|known| known.watch.straggler());
            prop_assert!(known.is_some());
        }
        let due = state.models.due_refits(1, usize::MAX);
        state.models.record_refits(&due);
        prop_assert!(state.bytes() > 0);
        run(&mut state, 149..156)?;
    }

    #[test]
    fn damaged_models_of_a_device_are_an_error_or_plan_finite_numbers(
        bytes in prop_oneof![1 => arbitrary(), 9 => damaged(stored_device_models())],
    ) {
        let Ok(earlier) = read_device_model(&bytes) else { return Ok(()) };
        let mut state = job(JobSpec::new(64));
        state.warm_start(&worker(0), earlier);
        run(&mut state, 0..6)?;
    }

    #[test]
    fn damaged_learning_rates_are_an_error_or_instruct_finite_numbers(
        text in evenstep_fuzz::damaged_json(stored_controllers()), iterations in prop::collection::vec(0..200_u64, 1..6),
    ) {
        let Ok(controller) = read_learning_rate(&text) else { return Ok(()) };
        let mut state = job(JobSpec::new(64));
        state.learning_rate = controller;
        for iteration in iterations {
            if let Ok(planned) = state.decide(&request(iteration)) {
                check(&planned.answer)?;
                state.apply(planned);
            }
        }
    }
}

/// Otherwise the tests above would test nothing.
#[test]
fn undamaged_models_are_read() {
    for models in stored_models() {
        assert_eq!(encoded(&read_models(&models).unwrap()), models);
    }
    stored_device_models().iter().for_each(|model| drop(read_device_model(model).unwrap()));
    stored_controllers().iter().for_each(|state| drop(read_learning_rate(state).unwrap()));
}

/// Numbers at the borders of the rules of reports.
fn seconds() -> impl Strategy<Value = f64> {
    prop_oneof![
        3 => select(vec![f64::MIN_POSITIVE, 5e-324, 1e-300, 1e-30, 1e-9, 1.0, 1e9, 1e30, 1e300, f64::MAX]),
        1 => 0.01..10.0,
        1 => any::<f64>().prop_filter_map("positive", |value| (value.is_finite() && value > 0.0).then_some(value)),
    ]
}

fn samples() -> impl Strategy<Value = u64> {
    prop_oneof![2 => select(vec![0, 1, 2, 64, 1 << 31, (1 << 53) - 1, 1 << 53]), 1 => 0..200_u64]
}

/// A report that breaks no rule of the HTTP API.
fn report(iteration: u64, number: usize) -> impl Strategy<Value = WorkerReport> {
    let optional = || (prop::option::weighted(0.3, seconds()), prop::option::weighted(0.3, samples()));
    let numbers: Vec<_> = COLUMNS.iter().map(|_| optional()).collect();
    let tail =
        prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0.0..1.0));
    let rest = (samples(), seconds(), prop::option::of(any::<f64>()));
    (numbers, tail, rest).prop_map(move |(numbers, tail, (local_batch, compute_time_s, reading))| {
        let mut report = WorkerReport::new(worker(number), iteration, local_batch, compute_time_s);
        for (column, (real, integer)) in COLUMNS.iter().zip(numbers) {
            let most = if let Bounds::Positive(most) = column.bounds { most } else { f64::MAX };
            match (column.number, real, integer) {
                (Number::Real { set, .. }, Some(value), _) => set(&mut report, value.min(most)),
                (Number::Integer { set, .. }, _, Some(value)) => set(&mut report, value),
                _ => {}
            }
        }
        let part = |of: u64, at: prop::sample::Index| 1 + at.index(of as usize) as u64;
        report.tail = tail.filter(|_| report.local_batch > 0).map(|(samples, chunks, share)| {
            let samples = part(report.local_batch, samples);
            TailReport {
                samples,
                chunks: part(samples, chunks),
                compute_time_s: report.compute_time_s * share,
                claim_time_s: report.compute_time_s * share,
            }
        });
        report.micro_batches = None;
        report.loss = reading.filter(|reading| reading.is_finite());
        if let Some(value) = report.loss {
            let readings = [driver::OWN_CPU, driver::PSI_CPU_SOME].map(|name| (name.to_owned(), value));
            report.drivers.extend(readings);
        }
        report
    })
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn extreme_reports_plan_finite_numbers(
        reports in (1..12_u64).prop_flat_map(|count| (0..count).map(|iteration| (report(iteration, 0), report(iteration, 1))).collect::<Vec<_>>()),
        rule in select(vec![LearningRateRule::Adascale, LearningRateRule::DynamicSgd]),
        (memory, profile, accumulation) in any::<(bool, bool, bool)>(),
    ) {
        let mut state = job(JobSpec { rule, profile, accumulation, ..JobSpec::new(64) });
        let memory_bytes = memory.then_some(1 << 34);
        state.workers.values_mut().for_each(|known| known.request = JoinRequest { memory_bytes, claims: true, ..known.request.clone() });
        for (iteration, (one, other)) in (0..).zip(reports) {
            if let Ok(planned) = state.decide(&request(iteration)) {
                check(&planned.answer)?;
                state.apply(planned);
            }
            state.observe(&[one, other]);
            prop_assert!(read_models(&encoded(&state.models)).is_ok());
        }
        if let Ok(planned) = state.decide(&request(100)) {
            check(&planned.answer)?;
        }
    }
}
