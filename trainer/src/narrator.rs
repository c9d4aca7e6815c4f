//! Rank 0's account of the run: the record, the reports for the predictor, progress and the closing words.

use std::time::Instant;

use anyhow::{Context, Result};
use evenstep_client::Backlog;
use evenstep_protocol::{JobId, WorkerId};

use crate::arm::Arm;
use crate::cli::Policy;
use crate::collective::Reduced;
use crate::figures::Tally;
use crate::news::{Teller, What};
use crate::output::{Output, Progress};
use crate::planner::{Planned, queue_reports};
use crate::record::{EndLine, IterationLine, Line, Recorder, RegroupLine, WorkerLine};

/// A policy that asks the predictor.
#[derive(Debug)]
pub struct Asking {
    /// The policy.
    pub policy: Policy,
    /// Its job.
    pub job_id: JobId,
    /// Its reports on their way to the predictor.
    pub backlog: Backlog,
}

/// The account.
#[derive(Debug)]
pub struct Narrator {
    /// When the run began.
    pub started: Instant,
    /// The workers in rank order.
    pub workers: Vec<WorkerId>,
    /// The run's job, where the predictor is asked.
    pub job_id: Option<JobId>,
    /// The policies that ask.
    pub asking: Vec<Asking>,
    /// The record, where one is wanted.
    pub recorder: Option<Recorder>,
    /// The bar.
    pub progress: Progress,
    /// Words.
    pub output: Output,
    /// Micro-batches so far, by rank, that were slower than an imposed pace allows.
    pub pace_missed: Vec<u64>,
    /// The launcher's ear, where it listens.
    pub teller: Option<Teller>,
    /// The iterations of each policy, counted.
    pub tallies: Vec<(Policy, Tally)>,
}

/// How an iteration went.
#[derive(Debug)]
pub struct Step<'a> {
    /// Its plan.
    pub planned: &'a Planned,
    /// What all ranks said of it.
    pub reduced: &'a Reduced,
    /// Samples in it.
    pub size: u64,
    /// What the learning rate was multiplied by.
    pub lr_multiplier: f64,
    /// How long it took.
    pub step_time_s: f64,
    /// The difference to the one-process gradient, where it was verified.
    pub gradient_difference: Option<f64>,
}

impl Narrator {
    /// The run's job, where the predictor is asked.
    pub fn job_id(&self) -> Option<&JobId> {
        self.job_id.as_ref()
    }

    /// What there is to a policy that asks the predictor.
    ///
    /// # Errors
    /// It asks nobody.
    pub fn asking(&self, policy: Policy) -> Result<&Asking> {
        let found = self.asking.iter().find(|asking| asking.policy == policy);
        found.with_context(|| format!("the policy {policy} has no job"))
    }

    /// Tells of an iteration.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn tell(&mut self, arm: &Arm, step: &Step<'_>) -> Result<()> {
        let reduced = step.reduced;
        self.pace_missed = reduced.reports.iter().map(|report| report.pace_missed).collect();
        if let Ok(asking) = self.asking(arm.policy) {
            queue_reports(&asking.backlog, &self.workers, arm.iteration, reduced);
        }
        if let Some(difference) = step.gradient_difference {
            self.output.say(&format!(
                "iteration {} ({}): gradient within {difference:.1e} of that of one process",
                arm.iteration, arm.policy
            ));
        }
        let line = line(arm, step, &self.workers, self.started.elapsed().as_secs_f64());
        if let Some((_, tally)) = self.tallies.iter_mut().find(|(policy, _)| *policy == arm.policy) {
            tally.add(&line);
        }
        self.tell_launcher(arm.policy, What::Iteration((&line).into()));
        if let Some(recorder) = &mut self.recorder {
            recorder.write(&Line::Iteration(Box::new(line)))?;
        }
        self.progress.advance(Instant::now(), || {
            let batches: Vec<String> =
                reduced.reports.iter().map(|report| report.local_batch.to_string()).collect();
            format!(
                "{} loss {:.4}, {:.1} ms, batches {}{}",
                arm.policy,
                reduced.loss,
                step.step_time_s * 1e3,
                batches.join("/"),
                if step.lr_multiplier == 1.0 {
                    String::new()
                } else {
                    format!(", learning rate times {:.3}", step.lr_multiplier)
                }
            )
        });
        Ok(())
    }

    /// Tells how an elastic run went on with other workers.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn regrouped(&mut self, policy: Policy, line: RegroupLine) -> Result<()> {
        self.tell_launcher(policy, What::Regrouped);
        self.recorder.as_mut().map_or(Ok(()), |recorder| recorder.write(&Line::Regroup(line)))?;
        Ok(())
    }

    fn tell_launcher(&mut self, policy: Policy, what: What) {
        if let Some(teller) = &mut self.teller {
            let asking = self.asking.iter().find(|asking| asking.policy == policy);
            teller.tell(policy, asking.map(|asking| &asking.job_id), what);
        }
    }

    /// Tells how a policy's training ended.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn end(&mut self, arm: &Arm, final_loss: f64, held_out: i64) -> Result<()> {
        let reports_lost = self.asking(arm.policy).map_or(0, |asking| asking.backlog.lost());
        if let Some(recorder) = &mut self.recorder {
            recorder.write(&Line::End(EndLine {
                policy: arm.policy,
                iterations: arm.iteration,
                final_loss,
                evaluation: format!("mean cross-entropy over {held_out} held-out samples"),
                pace_missed: self.pace_missed.clone(),
                reports_lost,
            }))?;
        }
        let tally = self.tallies.iter().find(|(policy, _)| *policy == arm.policy);
        if let Some(figures) = tally.and_then(|(_, tally)| tally.figures()) {
            self.output.say(&format!("{}: {figures}, final loss {final_loss:.4}", arm.policy));
        }
        Ok(())
    }

    /// The last words.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn finish(&mut self, stopped: bool) -> Result<()> {
        self.progress.finish();
        if self.pace_missed.iter().any(|&missed| missed > 0) {
            self.output
                .say(&format!("micro-batches slower than their pace, by rank: {:?}", self.pace_missed));
        }
        if stopped {
            self.output.say("stopped as told, before the last iteration");
        }
        self.flush()
    }

    /// Hands the record to the system.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        self.recorder.as_mut().map_or(Ok(()), Recorder::flush)?;
        Ok(())
    }
}

fn line(arm: &Arm, step: &Step<'_>, workers: &[WorkerId], at_s: f64) -> IterationLine {
    let Step { planned, reduced, .. } = step;
    let timed = planned.answered.as_ref().map(|answered| &answered.timed);
    let workers = workers.iter().zip(&reduced.reports).enumerate().map(|(rank, (worker, report))| {
        let expected =
            timed.and_then(|timed| timed.response.allocations.iter().find(|one| one.worker == *worker));
        WorkerLine {
            worker: worker.clone(),
            local_batch: report.local_batch,
            compute_time_s: report.compute_time_s,
            micro_batches: Some(report.micro_batches),
            tail: planned.plan.seat(rank).map(|_| report.tail),
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
        policy: arm.policy,
        iteration: arm.iteration,
        epoch: arm.cursor.epoch(),
        at_s,
        global_batch: step.size,
        lr_multiplier: Some(step.lr_multiplier),
        schedule_iteration: timed.and_then(|timed| timed.response.optimizer.schedule_iteration),
        step_time_s: step.step_time_s,
        ask_s: planned.ask_s,
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
