//! The simulated world, from traces or from a described cluster.

use anyhow::Context;
use figment::Figment;
use figment::providers::{Format, Toml};

use super::args::{Args, CLUSTER_ITERATIONS};
use crate::backtest::{Job, Series};
use crate::simulate::error::CELLS_MAX;
use crate::simulate::{ClusterSpec, SimulateError, World};
use crate::trace::{name_series, read_all};

/// Builds the requested world.
///
/// # Errors
/// If a file cannot be read or is invalid.
pub fn world(args: &Args) -> anyhow::Result<World> {
    let iterations = args.iterations.map(|iterations| iterations as usize);
    if let Some(path) = &args.cluster {
        anyhow::ensure!(path.is_file(), "{}: no such file", path.display());
        let cluster: ClusterSpec = Figment::from(Toml::file_exact(path)).extract()?;
        let world = cluster.world(iterations.unwrap_or(CLUSTER_ITERATIONS), args.seed);
        return world.with_context(|| path.display().to_string());
    }
    let mut traces = read_all(&args.trace, &args.columns.choice(true)?)?;
    name_series(&mut traces);
    let jobs: Vec<Job> = traces.iter().map(|trace| trace.job().without_constant_drivers()).collect();
    let mut world = World::recorded(&merge_jobs(&jobs), args.curve_assumption());
    if let Some(iterations) = iterations {
        anyhow::ensure!(
            iterations <= world.iterations,
            "--iterations {iterations}: the shortest trace has only {} rows",
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
