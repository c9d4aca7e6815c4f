//! What clients were told: the truth that the predictor is held to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use evenstep_protocol::AllocateAnswer;

/// Jobs that the load trains.
pub const JOBS: [&str; 2] = ["job-a", "job-b"];
/// Nodes whose agents send samples.
pub const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// An answer by job, iteration and the generation it was planned in.
pub type Key = (&'static str, u64, u64);

/// What clients of all threads were told.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Told>);

/// The entries.
#[derive(Debug, Default)]
pub struct Told {
    /// Answers, byte for byte.
    pub answers: BTreeMap<Key, String>,
    /// Reports in requests that were answered: job, iteration, worker.
    pub reports: BTreeSet<(&'static str, u64, usize)>,
    /// The highest generation that anybody heard of, by job.
    pub generations: BTreeMap<&'static str, u64>,
    /// Samples by node.
    pub samples: BTreeMap<&'static str, Samples>,
    /// Whether the worker that comes and goes takes part; `None` while nobody has heard how its last wish ended.
    pub guest: Option<bool>,
}

/// Samples of a node, which count from 0.
#[derive(Debug, Default, Clone, Copy)]
pub struct Samples {
    /// All before this one are acknowledged.
    pub acknowledged: u64,
    /// None from this one on was ever sent.
    pub sent: u64,
}

impl Ledger {
    /// The entries.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().expect("no client has failed")
    }

    /// Enters the answer that a client got.
    ///
    /// # Panics
    /// Where another client holds other bytes for the same iteration of the same generation.
    pub fn hold(&self, job: &'static str, iteration: u64, bytes: &str) -> u64 {
        let answer: AllocateAnswer = serde_json::from_str(bytes).expect("an answer");
        assert_eq!((answer.job_id.as_str(), answer.iteration), (job, iteration));
        let shares: u64 = answer.allocations.iter().map(|share| share.local_batch).sum();
        assert_eq!(shares, answer.global_batch, "{bytes}");
        let mut told = self.told();
        let earlier =
            told.answers.entry((job, iteration, answer.generation)).or_insert_with(|| bytes.to_owned());
        assert_eq!(earlier, bytes, "two clients were told different things");
        drop(told);
        self.heard(job, answer.generation);
        answer.generation
    }

    /// Enters that samples of a node up to this one are on their way.
    pub fn send(&self, node: &'static str, end: u64) {
        let mut told = self.told();
        let samples = told.samples.entry(node).or_default();
        samples.sent = end.max(samples.sent);
    }

    /// Enters a generation that a client heard of.
    pub fn heard(&self, job: &'static str, generation: u64) {
        let mut told = self.told();
        let highest = told.generations.entry(job).or_default();
        *highest = generation.max(*highest);
    }
}

impl Told {
    /// The first iteration that no client holds an answer of.
    pub fn next_iteration(&self, job: &'static str) -> u64 {
        let of_job = (job, 0, 0)..=(job, u64::MAX, u64::MAX);
        self.answers.range(of_job).next_back().map_or(0, |((_, iteration, _), _)| iteration + 1)
    }

    /// The answers of an iteration that clients hold, by generation.
    pub fn held(&self, job: &'static str, iteration: u64) -> impl Iterator<Item = (u64, &String)> {
        let of_iteration = (job, iteration, 0)..=(job, iteration, u64::MAX);
        self.answers.range(of_iteration).map(|((_, _, generation), bytes)| (*generation, bytes))
    }
}
