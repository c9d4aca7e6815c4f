//! Views of an iteration and of its workers.

use std::collections::BTreeMap;

use evenstep_core::attempts::{Attempts, Iteration};
use evenstep_protocol::{
    AllocateResponse, Allocation, JobId, SpeedPoint, SpeedsView, StepView, StepWorker, WorkerId, WorkerReport,
};

use super::super::account::EvenStep;
use super::super::loss::MeanLoss;
use super::super::reported::{Reported, step_time_s};
use super::super::steps::Step;

/// The view of an iteration in memory, with the unit of batches.
pub fn latest(step: &Step, attempts: &Attempts, unit: &str) -> StepView {
    let view = step_view(step.answer(), step.even(), |rank| step.report(rank));
    let Iteration { attempt, iteration } = attempts.at(step.iteration());
    StepView { attempt, iteration, at_unix_ms: step.at_unix_ms(), unit: unit.to_owned(), ..view }
}

/// The view of an iteration from the allocation that it was computed with, its estimated step time with even shares, and the
/// report of the worker of each rank; without time and unit.
pub fn step_view(
    answer: &AllocateResponse,
    even: Option<EvenStep>,
    reported: impl Fn(usize) -> Option<Reported>,
) -> StepView {
    let done: Vec<Option<Reported>> = (0..answer.allocations.len()).map(reported).collect();
    let losses = done.iter().flatten().filter_map(|done| Some((done.samples, done.loss?)));
    StepView {
        attempt: answer.attempt,
        iteration: answer.iteration,
        at_unix_ms: 0,
        generation: answer.generation,
        global_batch: answer.global_batch,
        step_time_s: step_time_s(done.iter().flatten()),
        predicted_step_time_s: answer.decision.predicted_step_time_s,
        even_step_time_s: even.map(|even| even.even_s).or(answer.decision.even_step_time_s),
        decision: answer.decision.kind,
        reason: answer.decision.reason.clone(),
        lr_multiplier: answer.optimizer.lr_multiplier,
        loss: MeanLoss::over(losses).value(),
        tail_samples: answer.tail.as_ref().map_or(0, |tail| tail.chunks.iter().sum()),
        unit: String::new(),
        workers: answer.allocations.iter().zip(&done).map(|(share, done)| worker(share, *done)).collect(),
    }
}

/// A worker in an iteration, from its share and its report.
fn worker(share: &Allocation, done: Option<Reported>) -> StepWorker {
    StepWorker {
        worker: share.worker.clone(),
        rank: share.rank,
        local_batch: share.local_batch,
        samples: done.map(|done| done.samples),
        predicted_samples_per_s: share.predicted_speed_samples_per_s,
        lower_samples_per_s: share.speed_lower_samples_per_s,
        upper_samples_per_s: share.speed_upper_samples_per_s,
        actual_samples_per_s: done.and_then(|done| done.speed()),
        predicted_compute_time_s: share.predicted_compute_time_s,
        compute_time_s: done.map(|done| done.compute_time_s),
        barrier_wait_s: done.and_then(|done| done.barrier_wait_s),
    }
}

/// The speeds of reports of one worker or of all, with the predictions of the allocations that they were computed with.
pub fn speeds(
    job_id: &JobId,
    attempts: &Attempts,
    worker: Option<&WorkerId>,
    answers: &[AllocateResponse],
    reports: Vec<WorkerReport>,
) -> SpeedsView {
    let predicted: BTreeMap<u64, BTreeMap<&WorkerId, &Allocation>> = answers
        .iter()
        .map(|answer| {
            let shares = answer.allocations.iter().map(|share| (&share.worker, share)).collect();
            (answer.iteration, shares)
        })
        .collect();
    let speeds = reports
        .into_iter()
        .filter(|report| worker.is_none_or(|worker| *worker == report.worker))
        .map(|report| {
            let predicted = predicted
                .range(..=report.iteration)
                .next_back()
                .and_then(|(_, shares)| shares.get(&report.worker));
            let Iteration { attempt, iteration } = attempts.at(report.iteration);
            SpeedPoint {
                attempt,
                iteration,
                local_batch: report.local_batch,
                actual_samples_per_s: (report.local_batch > 0)
                    .then(|| report.local_batch as f64 / report.compute_time_s),
                predicted_samples_per_s: predicted.and_then(|share| share.predicted_speed_samples_per_s),
                lower_samples_per_s: predicted.and_then(|share| share.speed_lower_samples_per_s),
                upper_samples_per_s: predicted.and_then(|share| share.speed_upper_samples_per_s),
                compute_time_s: report.compute_time_s,
                barrier_wait_s: report.barrier_wait_s,
                worker: report.worker,
            }
        })
        .collect();
    SpeedsView { job_id: job_id.clone(), speeds }
}
