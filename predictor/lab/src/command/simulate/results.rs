//! What came out, as it is printed, written and drawn.

use anyhow::Context;
use serde::Serialize;

use super::args::Args;
use crate::simulate::slowest;
use crate::simulate::{PolicyName, Run, Settings, Summary, Verdict, World};

/// A whole simulation.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Workers that take part at some time.
    pub workers: usize,
    /// Iterations that were simulated.
    pub iterations: usize,
    /// How many of them, the first, do not count.
    pub warmup: usize,
    /// Samples of an iteration.
    pub global_batch: u64,
    /// Of shifts and of what happens in a cluster.
    pub seed: u64,
    /// Whether evenstep fitted networks on the way.
    pub networks: bool,
    /// In the order they were asked for.
    pub policies: Vec<Summary>,
    /// Whether it is worth it; null where evenstep was not among the policies.
    pub advice: Option<AdviceResult>,
}

/// Is it worth it?
#[derive(Debug, Serialize)]
pub struct AdviceResult {
    /// `use_evenstep`, `leave_alone` or `drop_slowest`.
    pub best: &'static str,
    /// In a line.
    pub text: String,
    /// Mean step with evenstep, in seconds.
    pub evenstep_s: f64,
    /// Mean step of an even split, in seconds.
    pub even_s: f64,
    /// The worker that was slowest in the warm-up; null where none was.
    pub slowest: Option<String>,
    /// Mean step of an even split without it, in seconds.
    pub without_slowest_s: Option<f64>,
}

impl Results {
    /// Of runs, among them those of an even split and of the oracle.
    ///
    /// # Errors
    /// Where one is not there.
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
