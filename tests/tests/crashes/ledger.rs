//! Responses that clients received: the truth that the predictor must match.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use evenstep_protocol::{AllocateResponse, WorkerId};

/// Jobs of the load.
pub const JOBS: [&str; 2] = ["job-a", "job-b"];
/// Nodes whose agents send samples.
pub const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// Key of an allocation: job, iteration, attempt and generation.
pub type Key = (&'static str, u64, u64, u64);

/// Responses that the clients of all threads received.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<LedgerEntries>);

/// Entries of the ledger.
#[derive(Debug, Default, Clone)]
pub struct LedgerEntries {
    /// Allocations, byte for byte.
    pub answers: BTreeMap<Key, String>,
    /// Reports in successful requests: job, iteration, worker.
    pub reports: BTreeSet<(&'static str, u64, usize)>,
    /// Highest generation that any client received, by job.
    pub generations: BTreeMap<&'static str, u64>,
    /// Samples by node.
    pub samples: BTreeMap<&'static str, Samples>,
    /// The worker that joins and leaves, and whether it is a member; `None` while the outcome of its last request is
    /// unknown.
    pub guest: Option<(WorkerId, bool)>,
    /// Number of its departures.
    pub departures: u64,
}

/// Samples of a node, numbered from 0.
#[derive(Debug, Default, Clone, Copy)]
pub struct Samples {
    /// All samples before this one are acknowledged.
    pub acknowledged: u64,
    /// No sample from this one on was ever sent.
    pub sent: u64,
}

impl Ledger {
    /// Returns the entries.
    pub fn told(&self) -> MutexGuard<'_, LedgerEntries> {
        self.0.lock().expect("no client has failed")
    }

    /// Returns a copy of the entries so far, for a backup that begins now.
    pub fn copy(&self) -> Self {
        Self(Mutex::new(self.told().clone()))
    }

    /// Accepts all samples that a later ledger has as sent: a backup may or may not contain it.
    pub fn may_include(&self, later: &Self) {
        let (mut told, later) = (self.told(), later.told());
        told.guest = None;
        for (node, samples) in &mut told.samples {
            samples.sent = later.samples[node].sent;
        }
    }

    /// Records the allocation that a client received.
    ///
    /// # Panics
    /// Another client received other bytes for the same iteration of the same attempt and generation.
    pub fn hold(&self, job: &'static str, iteration: u64, bytes: &str) -> u64 {
        let answer: AllocateResponse = serde_json::from_str(bytes).expect("an answer");
        assert_eq!((answer.job_id.as_str(), answer.iteration), (job, iteration));
        let shares: u64 = answer.allocations.iter().map(|share| share.local_batch).sum();
        assert_eq!(shares, answer.global_batch, "{bytes}");
        let mut told = self.told();
        let key = (job, iteration, answer.attempt, answer.generation);
        let earlier = told.answers.entry(key).or_insert_with(|| bytes.to_owned());
        assert_eq!(earlier, bytes, "two clients received different allocations");
        drop(told);
        self.heard(job, answer.generation);
        answer.generation
    }

    /// Records that the samples of a node up to this one are in flight.
    pub fn send(&self, node: &'static str, end: u64) {
        let mut told = self.told();
        let samples = told.samples.entry(node).or_default();
        samples.sent = end.max(samples.sent);
    }

    /// Records a generation that a client received.
    pub fn heard(&self, job: &'static str, generation: u64) {
        let mut told = self.told();
        let highest = told.generations.entry(job).or_default();
        *highest = generation.max(*highest);
    }
}

impl LedgerEntries {
    /// Returns the first iteration without an allocation at any client.
    pub fn next_iteration(&self, job: &'static str) -> u64 {
        let of_job = (job, 0, 0, 0)..=(job, u64::MAX, u64::MAX, u64::MAX);
        self.answers.range(of_job).next_back().map_or(0, |((_, iteration, ..), _)| iteration + 1)
    }

    /// Returns the generation of the newest allocation of an iteration at the clients.
    pub fn newest(&self, job: &'static str, iteration: u64) -> Option<u64> {
        let of_iteration = (job, iteration, 0, 0)..=(job, iteration, u64::MAX, u64::MAX);
        self.answers.range(of_iteration).next_back().map(|((.., generation), _)| *generation)
    }
}
