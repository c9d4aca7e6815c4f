//! The simulated world, from traces or from a described cluster.

use anyhow::Context;

use super::args::{Args, CLUSTER_ITERATIONS};
use crate::backtest::{Job, Series};
use crate::simulate::error::CELLS_MAX;
use crate::simulate::world::RecordedForm;
use crate::simulate::{ClusterSpec, SimulateError, World};
use crate::trace::align::align;
use crate::trace::{name_series, read_all};

/// Workers to simulate.
pub struct Source {
    /// The world.
    pub world: World,
    /// The same recorded workers if half of the time of an even share did not depend on the batch; `None` if the curve is known.
    pub half_fixed: Option<World>,
    /// Sentences about rows of the traces that are left out, and how workers are aligned.
    pub notes: Vec<String>,
}

/// Reads the requested workers.
///
/// # Errors
/// If a file cannot be read or is invalid.
pub fn read(args: &Args) -> anyhow::Result<Source> {
    let iterations = args.iterations.map(|iterations| iterations as usize);
    if let Some(path) = &args.cluster {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let cluster: ClusterSpec = toml::from_str(&text).with_context(|| path.display().to_string())?;
        let world = cluster.world(iterations.unwrap_or(CLUSTER_ITERATIONS), args.seed);
        let world = world.with_context(|| path.display().to_string())?;
        return Ok(Source { world, half_fixed: None, notes: Vec::new() });
    }
    let mut traces = read_all(&args.trace, &args.columns.choice()?)?;
    name_series(&mut traces);
    align(&mut traces.iter_mut().collect::<Vec<_>>())?;
    let jobs: Vec<Job> = traces.iter().map(|trace| trace.job().without_constant_drivers()).collect();
    let job = merge_jobs(&jobs);
    let recorded = World::recorded(&job, args.curve_assumption())?;
    let mut notes: Vec<String> = traces.iter().flat_map(|trace| &trace.notes).cloned().collect();
    let rows = || job.series.iter().map(|series| series.rows.len());
    let left_out = rows().sum::<usize>() - recorded.iterations * job.series.len();
    if left_out > 0 {
        let fewest = job.series.iter().min_by_key(|series| series.rows.len());
        let fewest = fewest.filter(|series| rows().any(|rows| rows > series.rows.len()));
        let fewest = fewest.map_or_else(String::new, |series| format!("; {} has the fewest rows", series.id));
        notes.push(format!(
            "rows left out because another worker has none of the same iteration: {left_out}{fewest}"
        ));
    }
    let ids = || job.series.iter().enumerate();
    let twice = ids().find(|(at, series)| job.series[..*at].iter().any(|other| other.id == series.id));
    if let Some((_, series)) = twice {
        notes.push(format!("{} is in several traces and counts as one worker in each", series.id));
    }
    let world = sized(recorded, args)?;
    let workers = world.workers.len();
    let share = args.settings(workers, world.iterations).global_batch as f64 / workers as f64;
    let half = RecordedForm { fixed_share: 0.5, usual_batch: Some(share) };
    let is_assumed = args.curve_assumption() == RecordedForm::default();
    let half_fixed = is_assumed.then(|| sized(World::recorded(&job, half)?, args)).transpose()?;
    Ok(Source { world, half_fixed, notes })
}

/// Applies the requested numbers of iterations and workers to recorded workers.
fn sized(mut world: World, args: &Args) -> anyhow::Result<World> {
    if let Some(iterations) = args.iterations.map(|iterations| iterations as usize) {
        anyhow::ensure!(
            iterations <= world.iterations,
            "--iterations {iterations}: only {} iterations have a row of every worker",
            world.iterations
        );
        world = world.cut(iterations);
    }
    let workers = args.workers.map_or(world.workers.len(), |workers| workers as usize);
    if workers.saturating_mul(world.iterations) > CELLS_MAX {
        return Err(SimulateError::TooLarge { workers, iterations: world.iterations }.into());
    }
    Ok(world.with_workers(workers, args.seed)?)
}

/// Combines all series into one job. Drivers that a trace does not have are missing in its rows.
fn merge_jobs(jobs: &[Job]) -> Job {
    let mut drivers: Vec<String> = Vec::new();
    for name in jobs.iter().flat_map(|job| &job.drivers) {
        if !drivers.contains(name) {
            drivers.push(name.clone());
        }
    }
    let series = |job: &Job| -> Vec<Series> {
        let at: Vec<Option<usize>> =
            drivers.iter().map(|name| job.drivers.iter().position(|theirs| theirs == name)).collect();
        let mut all = job.series.clone();
        for row in all.iter_mut().flat_map(|series| &mut series.rows) {
            row.drivers = at.iter().map(|at| at.and_then(|at| row.drivers[at])).collect();
        }
        all
    };
    let series = jobs.iter().flat_map(series).collect();
    Job { trace: jobs.first().map_or_else(String::new, |job| job.trace.clone()), drivers, series }
}
