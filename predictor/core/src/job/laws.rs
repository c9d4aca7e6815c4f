//! Laws: the models do not depend on how reports are grouped into requests, nor on restarts.

use std::collections::BTreeMap;

use evenstep_protocol::{
    AllocateRequest, AllocateResponse, JobId, JobSpec, JoinRequest, LearningRateRule, WorkerId, WorkerReport,
    driver,
};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::tests::encoded;
use super::*;
use crate::membership::{Member, State};

/// Iterations of a run.
const ITERATIONS: u64 = 40;
/// Requests by which a report may be delayed. No report is late then.
const DELAY_MAX: u64 = 2;

#[derive(Debug, Clone)]
struct Run {
    workers: usize,
    spec: JobSpec,
    seed: u64,
}

fn run() -> impl Strategy<Value = Run> {
    (2usize..6, any::<bool>(), any::<bool>(), any::<bool>(), any::<u64>()).prop_map(
        |(workers, accumulation, profile, adascale, seed)| {
            let rule = if adascale { LearningRateRule::Adascale } else { LearningRateRule::None };
            let max_local_batch = accumulation.then_some(24);
            Run {
                workers,
                spec: JobSpec { accumulation, profile, rule, max_local_batch, ..JobSpec::new(80) },
                seed,
            }
        },
    )
}

fn worker(number: usize) -> WorkerId {
    WorkerId::new(format!("node/{number}")).unwrap()
}

/// The allocations and reports of a run, in order of iterations and workers.
#[derive(Debug)]
struct History {
    answers: Vec<AllocateResponse>,
    reports: Vec<WorkerReport>,
}

impl Run {
    fn state(&self, models: Models, learning_rate: crate::learning_rate::Controller) -> JobState {
        let member = |number| Member {
            id: worker(number),
            state: State::Live,
            last_seen_ms: 0,
            departures_ms: std::collections::VecDeque::new(),
        };
        let known = |number| {
            let mut state = WorkerState::new(JoinRequest::new(worker(number)));
            state.join(number as u64 + 1);
            // The last worker rejoined: from its second join on it may be another device.
            if number + 1 == self.workers {
                state.join(number as u64 + 2);
            }
            (worker(number), state)
        };
        JobState::restore(Restored {
            kept_from: 0,
            generation: self.workers as u64,
            departed_generation: 0,
            members: (0..self.workers).map(member).collect(),
            workers: (0..self.workers).map(known).collect(),
            models,
            learning_rate,
            last_iteration: None,
            last_allocation: None,
            spec: self.spec.clone(),
        })
    }

    fn new_state(&self) -> JobState {
        self.state(Models::new(), controller(&self.spec).unwrap())
    }

    /// Plans every iteration with the reports of the previous one. Some reports are missing, and in some runs all of the last
    /// iterations.
    fn history(&self) -> History {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let counts_cost = random.random_bool(0.2);
        let reported = ITERATIONS - random.random_range(0..4);
        let mut state = self.new_state();
        let mut history = History { answers: Vec::new(), reports: Vec::new() };
        for iteration in 0..ITERATIONS {
            let request = AllocateRequest::new(JobId::new("job").unwrap(), 0, iteration);
            let decided = state.decide(&request).unwrap();
            let mut answer = (*decided.answer).clone();
            state.apply(decided);
            // In the second half the last worker has rejoined.
            answer.generation += u64::from(iteration >= ITERATIONS / 2);
            let mut report = |share| {
                let report = share_report(share, iteration, counts_cost, &mut random);
                (iteration < reported && random.random_bool(0.9)).then_some(report)
            };
            let reports: Vec<WorkerReport> = answer.allocations.iter().filter_map(&mut report).collect();
            state.observe(&reports);
            history.answers.push(answer);
            history.reports.extend(reports);
        }
        history
    }
}

fn share_report(
    share: &evenstep_protocol::Allocation,
    iteration: u64,
    counts_cost: bool,
    random: &mut ChaCha8Rng,
) -> WorkerReport {
    let speed = 100.0 * (share.rank + 1) as f64 * random.random_range(0.7..1.3);
    let base_s = share.local_batch as f64 / speed;
    let mut drivers = BTreeMap::new();
    for name in driver::ALL {
        let reading = random.random_range(0.0..1.0);
        if random.random_bool(0.8) {
            drivers.insert(name.to_owned(), reading);
        }
    }
    let gradient_sqr = random.random_range(1.0..2.0);
    WorkerReport {
        cost: counts_cost.then_some(share.local_batch as f64 * 1.5),
        peak_memory_bytes: Some(100 + 10 * share.local_batch),
        gradient_sqr: Some(gradient_sqr),
        global_gradient_sqr: Some(1.0 + 1.0 / (iteration + 1) as f64),
        drivers,
        ..WorkerReport::new(share.worker.clone(), iteration, share.local_batch, 0.01 + base_s)
    }
}

impl History {
    /// Reports by the number of the request that carries them. Of each iteration the first report is never delayed, so
    /// that no report is late.
    fn packaged(&self, random: &mut ChaCha8Rng) -> Vec<Vec<WorkerReport>> {
        let mut requests = vec![Vec::new(); (ITERATIONS + DELAY_MAX + 1) as usize];
        let mut seen = None;
        for report in &self.reports {
            let first = seen != Some(report.iteration);
            seen = Some(report.iteration);
            let delay = if first { 0 } else { random.random_range(0..=DELAY_MAX) };
            let request: &mut Vec<WorkerReport> = &mut requests[(report.iteration + delay) as usize];
            request.insert(random.random_range(0..=request.len()), report.clone());
        }
        requests
    }
}

/// Bytes of the models, and the state of the learning-rate rule.
fn learned(state: &JobState) -> (Vec<Vec<u8>>, String) {
    (encoded(&state.models), serde_json::to_string(&state.learning_rate).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn grouping_order_and_restarts_do_not_change_the_models(run in run(), packaging in any::<u64>()) {
        let history = run.history();
        // Each iteration in one call.
        let mut together = run.new_state();
        for answer in &history.answers {
            together.restore_plan(answer);
            let reports: Vec<WorkerReport> =
                history.reports.iter().filter(|report| report.iteration == answer.iteration).cloned().collect();
            together.observe(&reports);
        }
        let expected = learned(&together);

        // Each report alone, in order.
        let mut alone = run.new_state();
        history.answers.iter().for_each(|answer| alone.restore_plan(answer));
        for report in &history.reports {
            alone.observe(std::slice::from_ref(report));
        }
        prop_assert_eq!(&learned(&alone), &expected);

        // Reports spread over requests, in any order, with a crash after models were stored at some moment.
        let mut random = ChaCha8Rng::seed_from_u64(packaging);
        let requests = history.packaged(&mut random);
        let stored_after = random.random_range(0..requests.len());
        let crash_after = random.random_range(stored_after..requests.len());
        let mut state = run.new_state();
        let mut stored = Vec::new();
        let mut durable: Vec<WorkerReport> = Vec::new();
        for (at, reports) in requests.iter().enumerate() {
            if let Some(answer) = history.answers.get(at) {
                state.restore_plan(answer);
            }
            state.observe(reports);
            durable.extend(reports.iter().cloned());
            if at == stored_after {
                stored = encoded(&state.models);
            }
            if at == crash_after {
                let before = learned(&state);
                state = run.state(read_models(&stored).unwrap(), state.learning_rate.clone());
                let next = state.models.next_iteration();
                let planned = &history.answers[..history.answers.len().min(at + 1)];
                planned.iter().filter(|answer| answer.iteration >= next).for_each(|answer| state.restore_plan(answer));
                durable.sort_by(|a, b| (a.iteration, &a.worker).cmp(&(b.iteration, &b.worker)));
                state.replay(&durable);
                prop_assert_eq!(&learned(&state), &before);
            }
        }
        prop_assert_eq!(&learned(&state), &expected);
    }
}
