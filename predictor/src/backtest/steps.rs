//! Which series are workers of one job, and how long their steps would have taken.

use std::collections::BTreeMap;

use anyhow::Context;
use evenstep_core::backtest::step_time::over_oracle;
use evenstep_core::backtest::{Job, ModelName, Regret, Series, Track};

use super::results::{Ratio, StepTime, TraceStepTime};

/// Step times of all models.
#[derive(Debug, Default)]
pub struct Steps {
    /// Over all steps.
    pub over_all: Vec<StepTime>,
    /// By trace, where there are several jobs.
    pub by_trace: Vec<TraceStepTime>,
    /// Of an even split, over all steps.
    pub even: Option<Ratio>,
}

/// A worker of a step: its series, and its tracks by model.
struct Worker<'a> {
    series: &'a Series,
    tracks: Vec<&'a Track>,
}

/// Step times over the oracle's of one job.
struct JobSteps {
    trace: String,
    /// By model; `None` where it has no forecast of some row.
    by_model: Vec<Option<Vec<f64>>>,
    even: Vec<f64>,
}

/// Judges by steps. `tracks` are by job, then model, then worker. Traces that hold several series are jobs; where none
/// does, all series together are one; a lone series has no steps.
///
/// # Errors
/// Where a split is not possible.
pub fn judge(
    jobs: &[&Job],
    tracks: &[&[Vec<Track>]],
    models: &[ModelName],
    global_batch: impl Fn(usize) -> u64,
) -> anyhow::Result<Steps> {
    let mut teams: Vec<(String, Vec<Worker<'_>>)> = jobs
        .iter()
        .zip(tracks)
        .map(|(job, tracks)| (job.trace.clone(), workers(job, &tracks[..models.len()])))
        .collect();
    if teams.iter().all(|(_, team)| team.len() == 1) {
        teams = vec![(String::new(), teams.into_iter().flat_map(|(_, team)| team).collect())];
    }
    teams.retain(|(_, team)| team.len() > 1);
    let steps = teams
        .iter()
        .map(|(trace, team)| job_steps(trace, team, models.len(), global_batch(team.len())))
        .collect::<anyhow::Result<Vec<JobSteps>>>()?;
    if steps.iter().all(|job| job.even.is_empty()) {
        return Ok(Steps::default());
    }
    let several = steps.len() > 1;
    let by_trace = |job: &JobSteps| TraceStepTime {
        trace: job.trace.clone(),
        step_time: step_times(models, std::slice::from_ref(job)),
    };
    let even: Vec<f64> = steps.iter().flat_map(|job| job.even.iter().copied()).collect();
    Ok(Steps {
        over_all: step_times(models, &steps),
        by_trace: steps.iter().filter(|_| several).map(by_trace).collect(),
        even: Some(Regret::of(&even).into()),
    })
}

fn workers<'a>(job: &'a Job, tracks: &'a [Vec<Track>]) -> Vec<Worker<'a>> {
    let of = |worker: usize| tracks.iter().map(|tracks| &tracks[worker]).collect();
    job.series.iter().enumerate().map(|(worker, series)| Worker { series, tracks: of(worker) }).collect()
}

fn step_times(models: &[ModelName], jobs: &[JobSteps]) -> Vec<StepTime> {
    let of = |at: usize| -> Option<Vec<f64>> {
        let all: Option<Vec<&Vec<f64>>> = jobs.iter().map(|job| job.by_model[at].as_ref()).collect();
        Some(all?.into_iter().flatten().copied().collect())
    };
    let one = |(at, model): (usize, &ModelName)| StepTime {
        model: model.to_string(),
        ratio: of(at).and_then(|steps| Regret::of(&steps)).into(),
    };
    models.iter().enumerate().map(one).collect()
}

/// The steps in which every worker has a row past its warm-up.
fn job_steps(trace: &str, team: &[Worker<'_>], models: usize, global_batch: u64) -> anyhow::Result<JobSteps> {
    // By tick: the rows of the workers, in their order, counted from the end of each warm-up.
    let mut steps: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for worker in team {
        let start = worker.tracks.first().map_or(0, |track| track.start);
        for (at, row) in worker.series.rows[start..].iter().enumerate() {
            steps.entry(row.tick).or_default().push(at);
        }
    }
    let steps: Vec<Vec<usize>> = steps.into_values().filter(|rows| rows.len() == team.len()).collect();
    let regret = |rows: &[usize], believed: &[f64]| {
        let start = |worker: &Worker<'_>| worker.tracks.first().map_or(0, |track| track.start);
        let actual: Vec<f64> =
            team.iter().zip(rows).map(|(worker, at)| worker.series.rows[start(worker) + at].speed).collect();
        over_oracle(&actual, believed, global_batch).with_context(|| format!("a step of {trace}"))
    };
    let of_model = |model: usize| -> anyhow::Result<Option<Vec<f64>>> {
        let believed = |rows: &Vec<usize>| -> Option<Vec<f64>> {
            team.iter().zip(rows).map(|(worker, at)| Some(worker.tracks[model].points[*at]?.speed)).collect()
        };
        let believed: Option<Vec<Vec<f64>>> = steps.iter().map(believed).collect();
        let Some(believed) = believed else { return Ok(None) };
        steps
            .iter()
            .zip(&believed)
            .map(|(rows, believed)| regret(rows, believed))
            .collect::<Result<_, _>>()
            .map(Some)
    };
    Ok(JobSteps {
        trace: trace.to_owned(),
        by_model: (0..models).map(of_model).collect::<anyhow::Result<_>>()?,
        even: steps.iter().map(|rows| regret(rows, &vec![1.0; team.len()])).collect::<anyhow::Result<_>>()?,
    })
}
