//! Records a worker's iterations and runs its background job.

use anyhow::Result;
use evenstep_trainer::model::{Pace, choose};
use evenstep_trainer::progress::{EndLine, IterationLine, Output, RegroupLine};
use evenstep_trainer::training::{At, Hooks, Observer, RunInfo};

use super::conditions::Conditions;
use crate::background::{Background, foreground_stream};
use crate::record::sample_log::SampleLog;
use crate::record::{Line, Recorder};

/// The record, sample log and background job of one worker.
struct LabObserver {
    conditions: Conditions,
    recorder: Option<Recorder>,
    sample_log: Option<SampleLog>,
    /// Indices of the samples of the current iteration that this worker computed.
    indices: Vec<i64>,
    background: Option<Background>,
}

/// Returns the hooks of a worker under these conditions.
///
/// # Errors
/// Fails if a file cannot be written or a device cannot be used.
pub fn hooks(conditions: Conditions) -> Result<Hooks> {
    let (train, process) = (&conditions.train, &conditions.process);
    let (options, rank) = (&train.options, process.rank);
    let background = train.background.background.is_some().then(|| {
        let device = choose(options.step.device, rank)?.device;
        foreground_stream(device)?;
        Background::start(train.background.job(rank, options.step.seed), device)
    });
    let sample_log = train.sample_log.as_ref().map(|folder| SampleLog::open(folder, &options.policy, rank));
    let pace = conditions.pace()?.map(|pace| Box::new(pace) as Box<dyn Pace>);
    let observer = LabObserver {
        background: background.transpose()?,
        sample_log: sample_log.transpose()?,
        conditions,
        recorder: None,
        indices: Vec::new(),
    };
    Ok(Hooks { observer: Box::new(observer), pace })
}

impl LabObserver {
    fn record(&mut self, line: &Line) -> Result<()> {
        self.recorder.as_mut().map_or(Ok(()), |recorder| recorder.write(line))?;
        Ok(())
    }
}

impl Observer for LabObserver {
    fn run_started(&mut self, run: &RunInfo<'_>, output: &Output) -> Result<()> {
        let path = self.conditions.train.record.as_deref();
        self.recorder = if run.taken_over {
            path.map(Recorder::reopen).transpose()?
        } else {
            let line = self.conditions.describe(run);
            line.notes.iter().for_each(|note| output.say(&format!("note: {note}")));
            let loads = self.conditions.timelines(run.started);
            path.map(|path| Recorder::begin(path, line, loads)).transpose()?
        };
        Ok(())
    }

    fn round_started(&mut self, round: u64) {
        if let Some(log) = &mut self.sample_log {
            log.round = round;
        }
    }

    fn compute_started(&mut self, budget_s: f64) {
        self.background.iter().for_each(|job| job.door().allow(budget_s));
        self.indices.clear();
    }

    fn samples_computed(&mut self, indices: &[i64]) {
        if self.sample_log.is_some() {
            self.indices.extend_from_slice(indices);
        }
    }

    fn all_reduce_started(&mut self, at: At) -> Result<()> {
        if let Some(log) = &mut self.sample_log {
            log.computed(at.policy, at.iteration, at.epoch, &self.indices)?;
        }
        Ok(())
    }

    fn all_reduce_finished(&mut self) {
        self.background.iter().for_each(|job| job.door().allow(0.0));
    }

    fn step_finished(&mut self, at: At) -> Result<()> {
        self.sample_log.as_mut().map_or(Ok(()), |log| log.finished(at.policy, at.iteration))
    }

    fn iteration_logged(&mut self, line: IterationLine) -> Result<()> {
        self.record(&Line::Iteration(Box::new(line)))
    }

    fn regrouped(&mut self, line: RegroupLine) -> Result<()> {
        self.record(&Line::Regroup(line))
    }

    fn policy_finished(&mut self, line: EndLine) -> Result<()> {
        self.record(&Line::End(line))
    }

    fn flush(&mut self) -> Result<()> {
        self.recorder.as_mut().map_or(Ok(()), Recorder::flush)?;
        Ok(())
    }

    fn run_finished(&mut self) -> Result<()> {
        let Some(background) = self.background.take() else { return Ok(()) };
        Output::new(format!("rank {}", self.conditions.process.rank)).say(&background.end()?.to_summary());
        Ok(())
    }
}
