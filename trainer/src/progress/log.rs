//! Rank 0's progress log: the line of each iteration, the reports for the predictor, and the final summary.

use std::time::Instant;

use anyhow::{Context, Result};
use evenstep_client::Backlog;
use evenstep_protocol::{JobId, WorkerId, WorkerReport};

use super::lines::{EndLine, IterationLine, WorkerLine};
use super::output::{Output, Progress};
use super::statistics::Tally;
use crate::collective::Reduced;
use crate::plan::{Planned, Policy};

/// The job of a policy that queries the predictor.
#[derive(Debug)]
pub struct PolicyJob {
    /// The policy.
    pub policy: Policy,
    /// Its job.
    pub job_id: JobId,
    /// Reports that wait for delivery to the predictor.
    pub backlog: Backlog,
}

/// The progress log.
#[derive(Debug)]
pub struct ProgressLog {
    /// Start of the run.
    pub started: Instant,
    /// The workers in rank order.
    pub workers: Vec<WorkerId>,
    /// The run's job, if the predictor is used.
    pub job_id: Option<JobId>,
    /// The jobs of the policies that query the predictor.
    pub jobs: Vec<PolicyJob>,
    /// The progress bar.
    pub progress: Progress,
    /// Output of lines on the terminal.
    pub output: Output,
    /// Micro-batches so far, by rank, that were slower than the imposed pace.
    pub pace_missed: Vec<u64>,
    /// Statistics of each policy's iterations.
    pub tallies: Vec<(Policy, Tally)>,
}

/// Result of an iteration.
#[derive(Debug)]
pub struct CompletedStep<'a> {
    /// The policy.
    pub policy: Policy,
    /// The iteration, from 0.
    pub iteration: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// Plan of the iteration.
    pub planned: &'a Planned,
    /// Reports of all ranks.
    pub reduced: &'a Reduced,
    /// Samples in the iteration.
    pub size: u64,
    /// Multiplier of the learning rate.
    pub lr_multiplier: f64,
    /// Duration of the iteration.
    pub step_time_s: f64,
    /// Difference to the one-process gradient, if verified.
    pub gradient_difference: Option<f64>,
}

impl ProgressLog {
    /// Returns the job of a policy that queries the predictor.
    ///
    /// # Errors
    /// The policy does not query the predictor.
    pub fn job(&self, policy: Policy) -> Result<&PolicyJob> {
        let found = self.jobs.iter().find(|job| job.policy == policy);
        found.with_context(|| format!("the policy {policy} has no job"))
    }

    /// Logs an iteration: queues its reports, updates the statistics and the progress bar. Returns its line.
    pub fn iteration(&mut self, step: &CompletedStep<'_>) -> IterationLine {
        let CompletedStep { policy, iteration, reduced, .. } = *step;
        self.pace_missed = reduced.reports.iter().map(|report| report.pace_missed).collect();
        if let Ok(job) = self.job(policy) {
            job.backlog.push(iteration, worker_reports(&self.workers, iteration, reduced));
        }
        if let Some(difference) = step.gradient_difference {
            self.output.say(&format!(
                "iteration {iteration} ({policy}): gradient within {difference:.1e} of the one-process gradient"
            ));
        }
        let line = line(step, &self.workers, self.started.elapsed().as_secs_f64());
        if let Some((_, tally)) = self.tallies.iter_mut().find(|(counted, _)| *counted == policy) {
            tally.add(&line);
        }
        self.progress.advance(Instant::now(), || {
            let batches: Vec<String> =
                reduced.reports.iter().map(|report| report.local_batch.to_string()).collect();
            let (loss, step_ms, batches) = (reduced.loss, step.step_time_s * 1e3, batches.join("/"));
            let scaled = match step.lr_multiplier {
                1.0 => String::new(),
                multiplier => format!(", learning rate times {multiplier:.3}"),
            };
            format!("{policy} loss {loss:.4}, {step_ms:.1} ms, batches {batches}{scaled}")
        });
        line
    }

    /// Logs the end of a policy's training, with the final loss and the data it was measured on.
    pub fn end(&self, policy: Policy, iterations: u64, final_loss: f64, evaluation: String) -> EndLine {
        let tally = self.tallies.iter().find(|(counted, _)| *counted == policy);
        if let Some(statistics) = tally.and_then(|(_, tally)| tally.statistics()) {
            self.output.say(&format!("{policy}: {statistics}, final loss {final_loss:.4}"));
        }
        let reports_lost = self.job(policy).map_or(0, |job| job.backlog.lost());
        let pace_missed = self.pace_missed.clone();
        EndLine { policy, iterations, final_loss, evaluation, pace_missed, reports_lost }
    }

    /// Closes the progress bar. `stopped` means that a signal ended the run before the last iteration.
    pub fn finish(&self, stopped: bool) {
        self.progress.finish();
        if self.pace_missed.iter().any(|&missed| missed > 0) {
            self.output
                .say(&format!("micro-batches slower than their pace, by rank: {:?}", self.pace_missed));
        }
        if stopped {
            self.output.say("stopped by a signal before the last iteration");
        }
    }
}

/// Returns the reports of an iteration for the predictor.
fn worker_reports(workers: &[WorkerId], iteration: u64, reduced: &Reduced) -> Vec<WorkerReport> {
    let reports = workers.iter().zip(&reduced.reports).enumerate();
    let report =
        |(rank, (worker, report)): (usize, (&WorkerId, &crate::collective::RankReport))| WorkerReport {
            micro_batches: Some(report.micro_batches),
            tail: (report.tail.chunks > 0).then_some(report.tail),
            barrier_wait_s: Some(reduced.barrier_wait_s(rank)),
            loader_wait_s: Some(report.loader_wait_s),
            peak_memory_bytes: report.peak_memory_bytes,
            gradient_sqr: report.gradient_sqr,
            global_gradient_sqr: reduced.gradient_sqr,
            loss: Some(reduced.loss).filter(|loss| loss.is_finite()),
            drivers: report.drivers.clone(),
            ..WorkerReport::new(worker.clone(), iteration, report.local_batch, report.compute_time_s)
        };
    reports.map(report).collect()
}

fn line(step: &CompletedStep<'_>, workers: &[WorkerId], at_s: f64) -> IterationLine {
    let CompletedStep { planned, reduced, .. } = step;
    let timed = planned.answered.as_ref().map(|answered| &answered.timed);
    let workers = workers.iter().zip(&reduced.reports).enumerate().map(|(rank, (worker, report))| {
        let expected =
            timed.and_then(|timed| timed.response.allocations.iter().find(|one| one.worker == *worker));
        WorkerLine {
            worker: worker.clone(),
            local_batch: report.local_batch,
            compute_time_s: report.compute_time_s,
            micro_batches: Some(report.micro_batches),
            tail: planned.plan.pool(rank).map(|_| report.tail),
            barrier_wait_s: reduced.barrier_wait_s(rank),
            loader_wait_s: report.loader_wait_s,
            predicted_compute_time_s: expected.and_then(|one| one.predicted_compute_time_s),
            predicted_speed_samples_per_s: expected.and_then(|one| one.predicted_speed_samples_per_s),
            speed_lower_samples_per_s: expected.and_then(|one| one.speed_lower_samples_per_s),
            speed_upper_samples_per_s: expected.and_then(|one| one.speed_upper_samples_per_s),
            drivers: report.drivers.clone(),
        }
    });
    IterationLine {
        policy: step.policy,
        iteration: step.iteration,
        epoch: step.epoch,
        at_s,
        global_batch: step.size,
        lr_multiplier: Some(step.lr_multiplier),
        schedule_iteration: timed.and_then(|timed| timed.response.optimizer.schedule_iteration),
        step_time_s: step.step_time_s,
        request_s: planned.request_s,
        round_trip_s: timed.map(|timed| timed.round_trip_s),
        server_s: timed.and_then(|timed| timed.server_time_s),
        all_reduce_s: reduced.all_reduce_s,
        loss: reduced.loss,
        generation: timed.map(|timed| timed.response.generation),
        decision: timed.map(|timed| timed.response.decision.clone()),
        gradient_difference: step.gradient_difference,
        workers: workers.collect(),
    }
}
