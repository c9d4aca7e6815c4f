//! Results of a simulation, for all outputs.

use anyhow::Context;
use serde::Serialize;

use super::args::Args;
use crate::simulate::slowest;
use crate::simulate::{PolicyName, Run, Settings, Summary, Verdict, World};

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
    /// Summarizes the runs, which must include the even split and the oracle.
    ///
    /// # Errors
    /// If a required run is missing.
    pub fn new(
        world: &World,
        notes: Vec<String>,
        settings: &Settings,
        args: &Args,
        runs: &[Run],
    ) -> anyhow::Result<Self> {
        let of = |policy: PolicyName| runs.iter().find(|run| run.policy == policy);
        let there = |policy: PolicyName| of(policy).with_context(|| format!("{policy} was not simulated"));
        let (even, oracle) = (there(PolicyName::Even)?, there(PolicyName::Oracle)?);
        let policy = |policy: PolicyName| Ok(Summary::of(there(policy)?, even, oracle));
        let without = slowest(world, settings).and_then(|slowest| {
            Some((of(PolicyName::WithoutSlowest)?, Some(world.workers[slowest].id.clone())))
        });
        let asked = args.policies();
        let ways =
            [PolicyName::Base, PolicyName::Evenstep].into_iter().filter(|policy| asked.contains(policy));
        let ways: Vec<(&Run, Option<String>)> = ways.filter_map(of).map(|run| (run, None)).collect();
        let verdict = |ways: Vec<_>| Verdict::of(even, &ways.into_iter().chain(without).collect::<Vec<_>>());
        Ok(Self {
            workers: world.workers.len(),
            iterations: world.iterations,
            warmup: settings.warmup,
            global_batch: settings.global_batch,
            seed: args.seed,
            networks: settings.networks,
            policies: asked.into_iter().map(policy).collect::<anyhow::Result<_>>()?,
            notes,
            advice: (!ways.is_empty()).then(|| verdict(ways)),
        })
    }
}
