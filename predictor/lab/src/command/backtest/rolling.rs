//! Rolling-origin backtests of all traces in parallel, with results in the requested order.

use anyhow::Context;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::args::Args;
use super::results::{Estimate, Forecasts, ModelResult, Results, SeriesResult, means};
use super::steps;
use crate::backtest::{
    Accuracy, Calibration, Clock, Job, ModelName, Point, Series, Track, WalkSettings, walk_job,
};
use crate::trace::columns::Trace;

/// Samples per worker in the default global batch.
const BATCH_PER_WORKER: u64 = 64;

/// State of one trace during its walk.
struct Walk<'a> {
    trace: &'a Trace,
    job: Job,
    warmup_rows: Vec<usize>,
}

/// Walks every model through every trace.
///
/// # Errors
/// If a series is too short, or a setting is out of range.
pub fn run(
    traces: &[Trace],
    args: &Args,
    clock: Clock<'_>,
    done_one: &(dyn Fn() + Sync),
) -> anyhow::Result<Results> {
    let plan = WalkSettings { warmup: args.warmup };
    let walks: Vec<Walk<'_>> = traces.iter().map(|trace| walk(trace, &plan)).collect::<Result<_, _>>()?;
    let models = with_last(args.models());
    let jobs: Vec<&Job> = walks.iter().map(|walk| &walk.job).collect();
    let units: Vec<(usize, &ModelName)> =
        (0..walks.len()).flat_map(|walk| models.iter().map(move |model| (walk, model))).collect();
    let one = |(at, model): &(usize, &ModelName)| -> anyhow::Result<Vec<Track>> {
        let job = &walks[*at].job;
        let mut built = model.build(&job.drivers, job.series.len());
        let tracks = walk_job(job, built.as_mut(), &plan, clock)?;
        done_one();
        Ok(tracks)
    };
    let tracks: Vec<Vec<Track>> = units.par_iter().map(one).collect::<anyhow::Result<_>>()?;
    // By walk, then model, then worker.
    let tracks: Vec<&[Vec<Track>]> = tracks.chunks(models.len()).collect();
    let asked = args.models();
    let series: Vec<SeriesResult> =
        walks.iter().zip(&tracks).flat_map(|(walk, tracks)| results(walk, tracks, &asked)).collect();
    let global_batch = |workers: usize| args.global_batch.unwrap_or(BATCH_PER_WORKER * workers as u64);
    let steps = steps::judge(&jobs, &tracks, &asked, &plan, global_batch)?;
    let notes = traces.iter().flat_map(|trace| trace.notes.iter().cloned()).chain(steps.notes).collect();
    Ok(Results {
        notes,
        mean: means(&series),
        series,
        step_time: steps.over_all,
        step_time_even: steps.even,
        step_time_by_trace: steps.by_trace,
    })
}

/// Number of walks: one per trace and model.
pub fn units(traces: &[Trace], args: &Args) -> usize {
    traces.len() * with_last(args.models()).len()
}

/// Appends the last value, the reference of the relative errors, to the models.
fn with_last(mut models: Vec<ModelName>) -> Vec<ModelName> {
    models.push(ModelName::last());
    models
}

fn walk<'a>(trace: &'a Trace, plan: &WalkSettings) -> anyhow::Result<Walk<'a>> {
    let job = trace.job().without_constant_drivers();
    let warmup_rows = job.series.iter().map(|series| plan.warmup_rows(series)).collect::<Result<_, _>>();
    Ok(Walk { trace, job, warmup_rows: warmup_rows.with_context(|| trace.trace.clone())? })
}

fn results(walk: &Walk<'_>, tracks: &[Vec<Track>], models: &[ModelName]) -> Vec<SeriesResult> {
    let one = |(worker, series): (usize, &Series)| {
        let start = walk.warmup_rows[worker];
        let accuracy = |track: &Track| Accuracy::of(&track.pairs(series)?);
        let last = accuracy(&tracks[models.len()][worker]);
        let model = |(name, tracks): (&ModelName, &Vec<Track>)| {
            let track = &tracks[worker];
            let calibration = track.bands(series).and_then(|bands| Calibration::of(&bands));
            ModelResult {
                fit_s: Some(track.fit_s),
                predict_us: Some(track.predict_us),
                failure: track.failure.clone(),
                ..ModelResult::new(name.to_string(), accuracy(track), last, calibration)
            }
        };
        let estimates = |tracks: &Vec<Track>| {
            let estimate =
                |point: Point| Estimate { y_hat: point.speed, interval: Some((point.lower, point.upper)) };
            tracks[worker].points[start..].iter().map(|point| point.map(estimate)).collect()
        };
        SeriesResult {
            trace: walk.job.trace.clone(),
            unique_id: series.id.clone(),
            rows: series.rows.len(),
            tested: series.rows.len() - start,
            models: models.iter().zip(tracks).map(model).collect(),
            forecasts: Forecasts {
                at: walk.trace.series[worker].at[start..].to_vec(),
                first_row: start,
                y: series.rows[start..].iter().map(|row| row.speed).collect(),
                by_model: tracks[..models.len()].iter().map(estimates).collect(),
            },
        }
    };
    walk.job.series.iter().enumerate().map(one).collect()
}
