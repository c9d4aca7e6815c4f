//! The latest iterations of a job: what was answered, and what was reported of it.

use std::collections::VecDeque;
use std::sync::Arc;

use evenstep_protocol::{AllocateAnswer, Allocation, StepView, StepWorker, WorkerReport};

/// Iterations kept, at most: more than may be asked for ahead.
const STEPS_MAX: usize = 160;
/// Iterations kept of the widest jobs.
const STEPS_MIN: usize = 4;
/// Shares in all iterations kept, roughly: wide jobs keep fewer.
const SHARES_MAX: usize = 65_536;
/// Iterations that means are over.
const MEAN_OVER: usize = 64;

/// What a worker reported of an iteration.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Samples that it computed.
    pub samples: u64,
    /// Forward and backward time, in seconds.
    pub compute_time_s: f64,
    /// Wait for data, in seconds.
    pub loader_wait_s: f64,
    /// Wait at the barrier, in seconds, where it said so.
    pub barrier_wait_s: Option<f64>,
}

impl Done {
    /// From a report.
    pub fn of(report: &WorkerReport) -> Self {
        Self {
            samples: report.local_batch,
            compute_time_s: report.compute_time_s,
            loader_wait_s: report.loader_wait_s.unwrap_or(0.0),
            barrier_wait_s: report.barrier_wait_s,
        }
    }

    /// From the begin of the iteration to the end of the barrier, in seconds.
    fn step_time_s(&self) -> f64 {
        self.loader_wait_s + self.compute_time_s + self.barrier_wait_s.unwrap_or(0.0)
    }

    /// Samples per second of compute time; a worker that had no samples shows no speed.
    pub fn speed(&self) -> Option<f64> {
        (self.samples > 0 && self.compute_time_s > 0.0).then(|| self.samples as f64 / self.compute_time_s)
    }
}

/// An iteration.
#[derive(Debug)]
pub struct Step {
    answer: Arc<AllocateAnswer>,
    /// By rank; empty until the first report.
    done: Vec<Option<Done>>,
    reported: usize,
    at_unix_ms: i64,
    /// Every worker has reported, or somebody a later iteration.
    is_over: bool,
}

impl Step {
    /// The longest that any worker took, in seconds; absent before the first report.
    pub fn step_time_s(&self) -> Option<f64> {
        self.done.iter().flatten().map(Done::step_time_s).reduce(f64::max)
    }

    fn samples(&self) -> u64 {
        self.done.iter().flatten().map(|done| done.samples).sum()
    }

    /// The iteration for people and pages.
    pub fn view(&self) -> StepView {
        let answer = &*self.answer;
        let worker = |(rank, share): (usize, &Allocation)| {
            let done = self.done.get(rank).copied().flatten();
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
        };
        StepView {
            iteration: answer.iteration,
            at_unix_ms: self.at_unix_ms,
            generation: answer.generation,
            global_batch: answer.global_batch,
            step_time_s: self.step_time_s(),
            predicted_step_time_s: answer.decision.predicted_step_time_s,
            even_step_time_s: answer.decision.even_step_time_s,
            decision: answer.decision.kind,
            reason: answer.decision.reason.clone(),
            lr_multiplier: answer.optimizer.lr_multiplier,
            tail_samples: answer.tail.as_ref().map_or(0, |tail| tail.chunks.iter().sum()),
            workers: answer.allocations.iter().enumerate().map(worker).collect(),
        }
    }
}

/// Means over the latest iterations that are over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Means {
    /// Of the step time, in seconds.
    pub step_time_s: f64,
    /// Samples over the sum of the step times.
    pub samples_per_s: f64,
    /// Share of the workers' time in which they waited for the slowest; absent where nobody said.
    pub waiting_share: Option<f64>,
    /// Of |actual - predicted| / predicted speed; absent before the first prediction.
    pub error_ratio: Option<f64>,
}

/// The latest iterations, in order.
#[derive(Debug, Default)]
pub struct Steps(VecDeque<Step>);

impl Steps {
    /// An iteration was answered, or answered anew.
    pub fn answered(&mut self, answer: Arc<AllocateAnswer>) {
        let most = (SHARES_MAX / answer.allocations.len().max(1)).clamp(STEPS_MIN, STEPS_MAX);
        let at = self.0.partition_point(|step| step.answer.iteration < answer.iteration);
        let step = Step { answer, done: Vec::new(), reported: 0, at_unix_ms: 0, is_over: false };
        match self.0.get_mut(at) {
            Some(before) if before.answer.iteration == step.answer.iteration => *before = step,
            _ => self.0.insert(at, step),
        }
        while self.0.len() > most {
            self.0.pop_front();
        }
    }

    /// A worker reported. Its share of the iteration, where that is still known.
    pub fn reported(&mut self, report: &WorkerReport, now_unix_ms: i64, hint: usize) -> Option<&Allocation> {
        let at = self.0.binary_search_by_key(&report.iteration, |step| step.answer.iteration).ok()?;
        let step = self.0.get_mut(at)?;
        let shares = &step.answer.allocations;
        let is_its = |share: &Allocation| share.worker == report.worker;
        let rank = match shares.get(hint) {
            Some(share) if is_its(share) => hint,
            _ => shares.iter().position(is_its)?,
        };
        step.done.resize(shares.len(), None);
        step.reported += usize::from(step.done.get(rank)?.is_none());
        step.done[rank] = Some(Done::of(report));
        step.at_unix_ms = now_unix_ms;
        self.0.get(at)?.answer.allocations.get(rank)
    }

    /// Marks what is over since it was asked last: what everybody reported, and what lies before that or before anything that was
    /// reported. Says their step times.
    pub fn close(&mut self) -> Vec<f64> {
        let Some(newest) = self.0.iter().rposition(|step| step.reported > 0) else { return Vec::new() };
        let mut closed = Vec::new();
        for (at, step) in self.0.iter_mut().enumerate().take(newest + 1) {
            let is_whole = step.reported == step.answer.allocations.len();
            if !step.is_over && step.reported > 0 && (is_whole || at < newest) {
                step.is_over = true;
                closed.extend(step.step_time_s());
            }
        }
        closed
    }

    /// The latest iteration that is over.
    pub fn latest(&self) -> Option<&Step> {
        self.0.iter().rev().find(|step| step.is_over)
    }

    /// The latest answer.
    pub fn latest_answer(&self) -> Option<&AllocateAnswer> {
        self.0.back().map(|step| &*step.answer)
    }

    /// Means over the latest iterations that are over.
    pub fn means(&self) -> Option<Means> {
        let (mut steps, mut step_time_s, mut samples) = (0.0, 0.0, 0);
        let (mut waited_s, mut took_s) = (0.0, 0.0);
        let (mut errors, mut predicted) = (0.0, 0.0);
        for step in self.0.iter().rev().filter(|step| step.is_over).take(MEAN_OVER) {
            steps += 1.0;
            step_time_s += step.step_time_s().unwrap_or(0.0);
            samples += step.samples();
            for (share, done) in step.answer.allocations.iter().zip(&step.done) {
                let Some(done) = done else { continue };
                if let Some(waiting_s) = done.barrier_wait_s {
                    waited_s += waiting_s;
                    took_s += done.step_time_s();
                }
                if let (Some(expected), Some(actual)) = (share.predicted_speed_samples_per_s, done.speed()) {
                    errors += (actual / expected - 1.0).abs();
                    predicted += 1.0;
                }
            }
        }
        (step_time_s > 0.0).then(|| Means {
            step_time_s: step_time_s / steps,
            samples_per_s: samples as f64 / step_time_s,
            waiting_share: (took_s > 0.0).then(|| waited_s / took_s),
            error_ratio: (predicted > 0.0).then(|| errors / predicted),
        })
    }
}

impl Step {
    /// The iteration's number.
    pub fn iteration(&self) -> u64 {
        self.answer.iteration
    }

    /// When the last of its reports came, in milliseconds since 1970.
    pub fn at_unix_ms(&self) -> i64 {
        self.at_unix_ms
    }
}
