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
    /// The recommendation; null if evenstep was not among the policies.
    pub advice: Option<AdviceResult>,
}

/// The recommendation.
#[derive(Debug, Serialize)]
pub struct AdviceResult {
    /// `use_evenstep`, `leave_alone` or `drop_slowest`.
    pub best: &'static str,
    /// The recommendation in one line.
    pub text: String,
    /// Mean step with evenstep, in seconds.
    pub evenstep_s: f64,
    /// Mean step of an even split, in seconds.
    pub even_s: f64,
    /// The worker that was slowest in the warm-up; null if all workers are equal.
    pub slowest: Option<String>,
    /// Mean step of an even split without it, in seconds.
    pub without_slowest_s: Option<f64>,
}

impl Results {
    /// Summarizes the runs, which must include the even split and the oracle.
    ///
    /// # Errors
    /// If a required run is missing.
    pub fn new(world: &World, settings: &Settings, args: &Args, runs: &[Run]) -> anyhow::Result<Self> {
        let of = |policy: PolicyName| runs.iter().find(|run| run.policy == policy);
        let there = |policy: PolicyName| of(policy).with_context(|| format!("{policy} was not simulated"));
        let (even, oracle) = (there(PolicyName::Even)?, there(PolicyName::Oracle)?);
        let policy = |policy: PolicyName| Ok(Summary::of(there(policy)?, even, oracle));
        let without = slowest(world, settings)
            .and_then(|slowest| Some((world.workers[slowest].id.clone(), of(PolicyName::WithoutSlowest)?)));
        let asked = args.policies();
        let evenstep = of(PolicyName::Evenstep).filter(|run| asked.contains(&run.policy));
        Ok(Self {
            workers: world.workers.len(),
            iterations: world.iterations,
            warmup: settings.warmup,
            global_batch: settings.global_batch,
            seed: args.seed,
            networks: settings.networks,
            policies: asked.into_iter().map(policy).collect::<anyhow::Result<_>>()?,
            advice: evenstep.map(|evenstep| Verdict::of(evenstep, even, without).into()),
        })
    }
}

impl From<Verdict> for AdviceResult {
    fn from(verdict: Verdict) -> Self {
        let text = verdict.to_string();
        let (slowest, without_slowest_s) = verdict.without_slowest.unzip();
        Self {
            best: verdict.advice.as_str(),
            text,
            evenstep_s: verdict.evenstep_s,
            even_s: verdict.even_s,
            slowest,
            without_slowest_s,
        }
    }
}
