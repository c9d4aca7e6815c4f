//! Everything that clients know, and the invariants over it.

use std::collections::{BTreeMap, BTreeSet};

use evenstep_core::attempts::Attempts;
use evenstep_predictor::jobs::ResponseBytes;
use evenstep_protocol::{AllocateResponse, JoinResponse, WorkerId, WorkerReport};
use evenstep_store::StoredAllocation;

/// Attempt, iteration and generation of a response.
type Key = (u64, u64, u64);

/// The responses and reports that the service has confirmed.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Each response.
    responses: BTreeMap<Key, Vec<u8>>,
    /// The first iteration of each attempt that a client knows.
    starts: BTreeMap<u64, u64>,
    /// The newest attempt and generation of the responses to each iteration, unless a later attempt began before it.
    newest: BTreeMap<u64, (u64, u64)>,
    /// The workers of each generation, if a response listed all.
    workers: BTreeMap<u64, Option<BTreeSet<WorkerId>>>,
    /// Iteration and worker of each confirmed report.
    reports: BTreeSet<(u64, WorkerId)>,
}

impl Ledger {
    /// The first iteration after all that have an allocation.
    pub fn next_iteration(&self) -> u64 {
        self.newest.keys().next_back().map_or(0, |last| last + 1)
    }

    /// The newest generation that a client knows.
    pub fn generation(&self) -> u64 {
        self.workers.keys().next_back().copied().unwrap_or(0)
    }

    /// The newest attempt that a client knows.
    pub fn attempt(&self) -> u64 {
        self.starts.keys().next_back().copied().unwrap_or(1)
    }

    /// The shares of an iteration, by its newest response.
    pub fn shares(&self, iteration: u64) -> BTreeMap<WorkerId, u64> {
        let Some((attempt, generation)) = self.newest.get(&iteration) else { return BTreeMap::new() };
        let response: AllocateResponse =
            serde_json::from_slice(&self.responses[&(*attempt, iteration, *generation)]).unwrap();
        response.allocations.into_iter().map(|share| (share.worker, share.local_batch)).collect()
    }

    /// A response to an allocation request: the same bytes as every other one to this iteration in this attempt and generation,
    /// and all samples have a worker of the generation.
    pub fn allocated(&mut self, iteration: u64, global_batch: u64, response: &ResponseBytes) {
        let parsed: AllocateResponse = serde_json::from_slice(&response.body).unwrap();
        assert_eq!((parsed.iteration, parsed.generation), (iteration, response.generation));
        let key = (parsed.attempt, iteration, response.generation);
        let known = self.responses.entry(key).or_insert_with(|| response.body.to_vec());
        assert_eq!(*known, response.body, "two allocations of {key:?}");
        let start = self.starts.entry(parsed.attempt).or_insert(iteration);
        *start = iteration.min(*start);
        self.newest.retain(|at, (attempt, _)| *at < iteration || *attempt >= parsed.attempt);
        if self.starts.range(parsed.attempt + 1..).all(|(_, start)| *start > iteration) {
            let newest = self.newest.entry(iteration).or_default();
            *newest = (parsed.attempt, response.generation).max(*newest);
        }
        assert_eq!(parsed.allocations.iter().map(|share| share.local_batch).sum::<u64>(), global_batch);
        let workers: BTreeSet<WorkerId> = parsed.allocations.into_iter().map(|share| share.worker).collect();
        self.members(response.generation, Some(&workers));
    }

    /// The response to a join or a leave, which lists the first workers only.
    pub fn joined(&mut self, response: JoinResponse) {
        let is_whole = response.workers.len() < JoinResponse::WORKERS_MAX;
        let workers = is_whole.then(|| response.workers.into_iter().collect());
        self.members(response.generation, workers.as_ref());
    }

    /// A generation has the same workers in every response.
    fn members(&mut self, generation: u64, workers: Option<&BTreeSet<WorkerId>>) {
        let known = self.workers.entry(generation).or_default();
        let Some(workers) = workers else { return };
        let known = known.get_or_insert_with(|| workers.clone());
        assert_eq!(known, workers, "generation {generation} has two sets of workers");
    }

    /// The reports of a successful request are stored.
    pub fn reported(&mut self, reports: &[WorkerReport]) {
        self.reports.extend(reports.iter().map(|report| (report.iteration, report.worker.clone())));
    }

    /// Iterations that have an allocation.
    pub fn iterations(&self) -> Vec<u64> {
        self.newest.keys().copied().collect()
    }

    /// The stored allocations, by position. They contain every confirmed one, unchanged, and one for each iteration of an attempt in
    /// a generation.
    pub fn stored(&self, attempts: &Attempts, stored: &BTreeMap<u64, StoredAllocation>) {
        let mut found: BTreeMap<Key, &[u8]> = BTreeMap::new();
        for (position, stored) in stored {
            let wire: AllocateResponse = serde_json::from_slice(&stored.answer).unwrap();
            let at = attempts.at(*position);
            assert_eq!((wire.attempt, wire.iteration), (at.attempt, at.iteration), "at position {position}");
            let key = (wire.attempt, wire.iteration, wire.generation);
            assert!(found.insert(key, &stored.answer).is_none(), "two allocations of {key:?} are stored");
        }
        for (key, known) in &self.responses {
            assert_eq!(
                found.get(key).copied(),
                Some(&**known),
                "the allocation of {key:?} was lost or changed"
            );
        }
    }

    /// The stored reports, by position, contain every confirmed one in some attempt, and each once.
    pub fn stored_reports(&self, attempts: &Attempts, stored: &[(u64, WorkerId)]) {
        let unique: BTreeSet<&(u64, WorkerId)> = stored.iter().collect();
        assert_eq!(unique.len(), stored.len(), "a report is stored twice");
        let stored =
            stored.iter().map(|(position, worker)| (attempts.at(*position).iteration, worker.clone()));
        let stored: BTreeSet<(u64, WorkerId)> = stored.collect();
        for key in &self.reports {
            assert!(stored.contains(key), "the report {key:?} was lost");
        }
    }
}
