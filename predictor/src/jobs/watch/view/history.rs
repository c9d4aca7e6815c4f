//! Views of a job's history, in columns.

use std::collections::HashMap;

use evenstep_core::attempts::{Attempts, Iteration};
use evenstep_protocol::{HistoryView, JobId, WorkerHistory, WorkerId};

use super::super::shown::{Shown, ShownWorker};

/// The view of iterations in columns, from every `every`-th iteration and the time of its allocation in milliseconds since
/// 1970. Takes milliseconds for a job with many workers.
pub fn history(job_id: &JobId, every: u64, attempts: &Attempts, steps: &[(u64, i64, Shown)]) -> HistoryView {
    let mut columns = Columns { length: steps.len(), ..Columns::default() };
    let mut view = HistoryView {
        job_id: job_id.clone(),
        every,
        attempts: Vec::with_capacity(columns.length),
        iterations: Vec::with_capacity(columns.length),
        at_unix_ms: Vec::with_capacity(columns.length),
        step_time_s: Vec::with_capacity(columns.length),
        predicted_step_time_s: Vec::with_capacity(columns.length),
        even_step_time_s: Vec::with_capacity(columns.length),
        lr_multiplier: Vec::with_capacity(columns.length),
        loss: Vec::with_capacity(columns.length),
        workers: Vec::new(),
    };
    for (at, (position, at_unix_ms, shown)) in steps.iter().enumerate() {
        let Iteration { attempt, iteration } = attempts.at(*position);
        view.attempts.push(attempt);
        view.iterations.push(iteration);
        view.at_unix_ms.push(*at_unix_ms);
        view.step_time_s.push(shown.step_time_s);
        view.predicted_step_time_s.push(shown.predicted_step_time_s);
        view.even_step_time_s.push(shown.even_step_time_s);
        view.lr_multiplier.push(Some(shown.lr_multiplier));
        view.loss.push(shown.loss);
        for (rank, worker) in shown.workers.iter().enumerate() {
            columns.add(at, rank, worker);
        }
    }
    view.workers = columns.workers;
    view.workers.sort_by(|one, other| one.worker.cmp(&other.worker));
    view
}

/// The columns of all workers.
#[derive(Debug, Default)]
struct Columns {
    /// Number of iterations.
    length: usize,
    workers: Vec<WorkerHistory>,
    places: HashMap<WorkerId, usize>,
}

impl Columns {
    /// Adds a worker of an iteration. Ranks are alike in most iterations, so the place of the rank is tried first.
    fn add(&mut self, at: usize, rank: usize, shown: &ShownWorker) {
        let place = match self.workers.get(rank) {
            Some(known) if known.worker == shown.worker => rank,
            _ => self.place(&shown.worker),
        };
        let Some(worker) = self.workers.get_mut(place) else { return };
        worker.local_batch[at] = Some(shown.local_batch);
        worker.predicted_samples_per_s[at] = shown.predicted;
        worker.lower_samples_per_s[at] = shown.lower;
        worker.upper_samples_per_s[at] = shown.upper;
        worker.actual_samples_per_s[at] = shown.actual;
        worker.compute_time_s[at] = shown.compute_time_s;
        worker.barrier_wait_s[at] = shown.barrier_wait_s;
    }

    fn place(&mut self, worker: &WorkerId) -> usize {
        if let Some(place) = self.places.get(worker) {
            return *place;
        }
        let none = || vec![None; self.length];
        self.workers.push(WorkerHistory {
            worker: worker.clone(),
            local_batch: vec![None; self.length],
            predicted_samples_per_s: none(),
            lower_samples_per_s: none(),
            upper_samples_per_s: none(),
            actual_samples_per_s: none(),
            compute_time_s: none(),
            barrier_wait_s: none(),
        });
        self.places.insert(worker.clone(), self.workers.len() - 1);
        self.workers.len() - 1
    }
}
