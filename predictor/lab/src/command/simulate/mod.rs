//! The command `simulate`: reads recorded workers or a described cluster, and writes step times under each policy.
//!
//! - [`args`], `help`: flags
//! - `source`: the world to simulate
//! - [`results`]: the results as JSON
//! - `text`, `charts`, `page`: the results for people

pub mod args;

mod help;

mod source;

pub mod results;

mod text;

mod charts;

mod page;

use evenstep_core::forecast::nonlinear::{FittedExpert, Training};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use crate::simulate::slowest;
use crate::simulate::{PolicyName, Run, Settings, World, fit_one, walk};

pub use args::Args;

use evenstep_report::output::{self, write_page, write_results};
use results::Results;
use source::Source;

/// Runs a simulation and writes the requested outputs. The flags must pass [`Args::check`].
///
/// # Errors
/// If a trace or a cluster cannot be used, or an output cannot be written. No output is written then.
pub fn run(args: &Args) -> anyhow::Result<()> {
    output::check(&[&args.json, &args.report])?;
    let (world, runs, results) = simulate(args)?;
    write_results(&text::table(&results), &results, &args.json, &[&args.report])?;
    write_page(&args.report, |asked| page::report(&results, &runs, &world, asked))
}

/// Runs a simulation and renders its results in every form. Writes nothing.
#[cfg(test)]
pub(super) fn rehearse(args: &Args) -> anyhow::Result<()> {
    let (world, runs, results) = simulate(args)?;
    text::table(&results);
    serde_json::to_string(&results)?;
    page::report(&results, &runs, &world, "").to_html();
    Ok(())
}

fn simulate(args: &Args) -> anyhow::Result<(World, Vec<Run>, Results)> {
    let Source { world, half_fixed, notes } = source::read(args)?;
    let settings = args.settings(world.workers.len(), world.iterations);
    let runs = run_policies(&world, &args.policies(), &settings)?;
    let half_fixed =
        half_fixed.map(|world| run_policies(&world, &[], &settings)).transpose()?.unwrap_or_default();
    let results = Results::new(&world, notes, &settings, args, (&runs, &half_fixed))?;
    Ok((world, runs, results))
}

/// Runs every requested policy, and the policies that they are compared with.
fn run_policies(world: &World, asked: &[PolicyName], settings: &Settings) -> anyhow::Result<Vec<Run>> {
    let mut policies = asked.to_vec();
    policies.extend([PolicyName::Even, PolicyName::Oracle]);
    if slowest(world, settings).is_some() {
        policies.push(PolicyName::WithoutSlowest);
    }
    policies.sort_unstable();
    policies.dedup();
    // The longest run starts first.
    policies.sort_by_key(|policy| *policy != PolicyName::Evenstep);
    let fit = |due: &[Training]| -> Vec<Option<FittedExpert>> { due.par_iter().map(fit_one).collect() };
    let runs = policies.par_iter().map(|policy| walk(world, *policy, settings, &fit));
    Ok(runs.collect::<Result<_, _>>()?)
}
