//! Groups series into jobs, and computes the step times of each job.

use std::collections::BTreeMap;

use anyhow::Context;

use super::results::{Ratio, StepTime, TraceStepTime};
use crate::backtest::{Job, ModelName, Regret, Series, TimedStep, Track, WalkSettings, is_enough};

/// Step times of all models.
#[derive(Debug, Default)]
pub struct Steps {
    /// Step times over all steps.
    pub over_all: Vec<StepTime>,
    /// Step times by trace if there are several jobs.
    pub by_trace: Vec<TraceStepTime>,
    /// Step times of an even split over all steps.
    pub even: Option<Ratio>,
    /// Sentences about jobs without step times.
    pub notes: Vec<String>,
}

/// A worker of a job: its series, and its tracks by model.
struct Worker<'a> {
    series: &'a Series,
    tracks: Vec<&'a Track>,
}

/// The steps of one job.
struct JobSteps {
    trace: String,
    /// Steps by model; `None` if the model has no forecast for some row.
    by_model: Vec<Option<Vec<TimedStep>>>,
    even: Vec<TimedStep>,
    /// Number of iterations of which every worker has a row, and of all.
    complete: usize,
    all: usize,
    /// Number of rows of the worker with the fewest.
    fewest: usize,
}

impl JobSteps {
    /// Whether the steps describe the job.
    fn is_known(&self) -> bool {
        !self.even.is_empty() && is_enough(self.complete, self.fewest)
    }
}

/// Groups traces into jobs. Each trace with several series is a job. If no trace has several, all together
/// are one job. A single series is not a job.
fn group_into_jobs(jobs: &[&Job]) -> Vec<Vec<usize>> {
    if jobs.iter().any(|job| job.series.len() > 1) {
        return (0..jobs.len()).filter(|job| jobs[*job].series.len() > 1).map(|job| vec![job]).collect();
    }
    if jobs.len() > 1 { vec![(0..jobs.len()).collect()] } else { Vec::new() }
}

/// Returns the first row of a team's counted steps: the end of the shortest series' warm-up.
fn first_row(jobs: &[&Job], team: &[usize], plan: &WalkSettings) -> usize {
    let rows = team.iter().flat_map(|job| jobs[*job].series.iter().map(|series| series.rows.len()));
    plan.warmup_of(rows.min().unwrap_or(0))
}

/// Computes the step times. `tracks` are by job, then model, then worker.
///
/// # Errors
/// If a split is not possible.
pub fn judge(
    jobs: &[&Job],
    tracks: &[&[Vec<Track>]],
    models: &[ModelName],
    plan: &WalkSettings,
    global_batch: impl Fn(usize) -> u64,
) -> anyhow::Result<Steps> {
    let all = group_into_jobs(jobs)
        .iter()
        .map(|team| {
            let workers: Vec<Worker<'_>> =
                team.iter().flat_map(|job| workers(jobs[*job], &tracks[*job][..models.len()])).collect();
            let trace = team.first().map_or("", |job| &jobs[*job].trace);
            job_steps(trace, &workers, first_row(jobs, team, plan), models.len(), global_batch(workers.len()))
        })
        .collect::<anyhow::Result<Vec<JobSteps>>>()?;
    let note = |job: &JobSteps| {
        let (trace, left_out) = (&job.trace, job.all - job.complete);
        let step_times = if job.is_known() { "" } else { ", too many for step times" };
        (left_out > 0).then(|| {
            format!("{trace}: iterations without a step time because not every worker has a row: {left_out}{step_times}")
        })
    };
    let notes = all.iter().filter_map(note).collect();
    let steps: Vec<JobSteps> = all.into_iter().filter(JobSteps::is_known).collect();
    let even: Vec<&[TimedStep]> = steps.iter().map(|job| job.even.as_slice()).collect();
    let Some(even) = Regret::of(&even) else { return Ok(Steps { notes, ..Steps::default() }) };
    let several = steps.len() > 1;
    let by_trace = |job: &JobSteps| TraceStepTime {
        trace: job.trace.clone(),
        step_time: step_times(models, std::slice::from_ref(job)),
    };
    Ok(Steps {
        over_all: step_times(models, &steps),
        by_trace: steps.iter().filter(|_| several).map(by_trace).collect(),
        even: Some(Some(even).into()),
        notes,
    })
}

fn workers<'a>(job: &'a Job, tracks: &'a [Vec<Track>]) -> Vec<Worker<'a>> {
    let of = |worker: usize| tracks.iter().map(|tracks| &tracks[worker]).collect();
    job.series.iter().enumerate().map(|(worker, series)| Worker { series, tracks: of(worker) }).collect()
}

fn step_times(models: &[ModelName], jobs: &[JobSteps]) -> Vec<StepTime> {
    let of = |at: usize| -> Option<Regret> {
        let all: Option<Vec<&[TimedStep]>> = jobs.iter().map(|job| job.by_model[at].as_deref()).collect();
        Regret::of(&all?)
    };
    let one = |(at, model): (usize, &ModelName)| StepTime { model: model.to_string(), ratio: of(at).into() };
    models.iter().enumerate().map(one).collect()
}

/// Returns the steps in which every worker has a row at or after its `first_row`.
fn job_steps(
    trace: &str,
    team: &[Worker<'_>],
    first_row: usize,
    models: usize,
    global_batch: u64,
) -> anyhow::Result<JobSteps> {
    // By tick: the row of each worker, in the order of the workers.
    let mut iterations: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for worker in team {
        for (at, row) in worker.series.rows.iter().enumerate() {
            iterations.entry(row.tick).or_default().push(at);
        }
    }
    let all = iterations.len();
    let mut steps: Vec<Vec<usize>> =
        iterations.into_values().filter(|rows| rows.len() == team.len()).collect();
    let complete = steps.len();
    steps.retain(|rows| rows.iter().all(|at| *at >= first_row));
    let step = |rows: &[usize], believed: &[f64]| {
        let actual: Vec<f64> =
            team.iter().zip(rows).map(|(worker, at)| worker.series.rows[*at].speed).collect();
        TimedStep::of(&actual, believed, global_batch).with_context(|| format!("a step of {trace}"))
    };
    let of_model = |model: usize| -> anyhow::Result<Option<Vec<TimedStep>>> {
        let believed = |rows: &Vec<usize>| -> Option<Vec<f64>> {
            team.iter().zip(rows).map(|(worker, at)| Some(worker.tracks[model].points[*at]?.speed)).collect()
        };
        let believed: Option<Vec<Vec<f64>>> = steps.iter().map(believed).collect();
        let Some(believed) = believed else { return Ok(None) };
        let all = steps.iter().zip(&believed).map(|(rows, believed)| step(rows, believed));
        all.collect::<anyhow::Result<_>>().map(Some)
    };
    Ok(JobSteps {
        trace: trace.to_owned(),
        by_model: (0..models).map(of_model).collect::<anyhow::Result<_>>()?,
        even: steps.iter().map(|rows| step(rows, &vec![1.0; team.len()])).collect::<anyhow::Result<_>>()?,
        complete,
        all,
        fewest: team.iter().map(|worker| worker.series.rows.len()).min().unwrap_or(0),
    })
}
