//! Results of a simulation, for all outputs.

use anyhow::Context;
use serde::Serialize;

use super::args::Args;
use crate::simulate::slowest;
use crate::simulate::{PolicyName, Run, Settings, Summary, Verdict, WayRun, World};

/// Results of a simulation.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Number of workers that are members at some time.
    pub workers: usize,
    /// Number of simulated iterations.
    pub iterations: usize,
    /// Number of initial iterations that do not count.
    pub warmup: usize,
    /// Samples per iteration.
    pub global_batch: u64,
    /// Random seed of the time shifts and of the cluster.
    pub seed: u64,
    /// Whether evenstep fitted networks during the run.
    pub networks: bool,
    /// Statistics in the requested order of policies.
    pub policies: Vec<Summary>,
    /// Sentences about rows of the traces that are left out, and how workers are aligned.
    pub notes: Vec<String>,
    /// The recommendation; null if neither base nor evenstep was among the policies.
    pub advice: Option<Verdict>,
}

impl Results {
    /// Summarizes the runs, which must include the even split and the oracle. `half_fixed` are both with the same workers, if half
    /// of the time of an even share did not depend on the batch; none if the curve is known.
    ///
    /// # Errors
    /// If a required run is missing.
    pub fn new(
        world: &World,
        notes: Vec<String>,
        settings: &Settings,
        args: &Args,
        (runs, half_fixed): (&[Run], &[Run]),
    ) -> anyhow::Result<Self> {
        let of = |policy: PolicyName| runs.iter().find(|run| run.policy == policy);
        let there = |policy: PolicyName| of(policy).with_context(|| format!("{policy} was not simulated"));
        let (even, oracle) = (there(PolicyName::Even)?, there(PolicyName::Oracle)?);
        let policy = |policy: PolicyName| Ok(Summary::of(there(policy)?, even, oracle));
        let way = |policy: PolicyName| Some(WayRun { run: of(policy)?, without: None });
        let without = slowest(world, settings).and_then(|slowest| {
            let without = Some(world.workers[slowest].id.clone());
            Some(WayRun { without, ..way(PolicyName::WithoutSlowest)? })
        });
        let asked = args.policies();
        let ours =
            [PolicyName::Base, PolicyName::Evenstep].into_iter().filter(|policy| asked.contains(policy));
        let ours: Vec<WayRun<'_>> = ours.filter_map(way).collect();
        let half = |policy: PolicyName| half_fixed.iter().find(|run| run.policy == policy);
        let half_fixed = half(PolicyName::Even).zip(half(PolicyName::Oracle));
        let ways = way(PolicyName::Even).into_iter().chain(ours.iter().cloned()).chain(without);
        let advice = if ours.is_empty() { None } else { Verdict::of(&ways.collect::<Vec<_>>(), half_fixed) };
        Ok(Self {
            workers: world.workers.len(),
            iterations: world.iterations,
            warmup: settings.warmup,
            global_batch: settings.global_batch,
            seed: args.seed,
            networks: settings.networks,
            policies: asked.into_iter().map(policy).collect::<anyhow::Result<_>>()?,
            notes,
            advice,
        })
    }
}
