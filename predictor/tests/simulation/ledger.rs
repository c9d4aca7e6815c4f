//! Everything that clients know, and the invariants over it.

use std::collections::{BTreeMap, BTreeSet};

use evenstep_predictor::jobs::ResponseBytes;
use evenstep_protocol::{AllocateResponse, JoinResponse, WorkerId, WorkerReport};

/// The responses and reports that the service has confirmed.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The response to each iteration in each generation.
    responses: BTreeMap<(u64, u64), Vec<u8>>,
    /// The newest generation of the responses to each iteration.
    newest: BTreeMap<u64, u64>,
    /// The workers of each generation.
    workers: BTreeMap<u64, BTreeSet<WorkerId>>,
    /// The samples of each confirmed report.
    reports: BTreeMap<(u64, WorkerId), u64>,
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

    /// The shares of an iteration, by its newest response.
    pub fn shares(&self, iteration: u64) -> BTreeMap<WorkerId, u64> {
        let Some(generation) = self.newest.get(&iteration) else { return BTreeMap::new() };
        let response: AllocateResponse =
            serde_json::from_slice(&self.responses[&(iteration, *generation)]).unwrap();
        response.allocations.into_iter().map(|share| (share.worker, share.local_batch)).collect()
    }

    /// A response to an allocation request: the same bytes as every other one to this iteration in this generation, and all
    /// samples have a worker of the generation.
    pub fn allocated(&mut self, iteration: u64, global_batch: u64, response: &ResponseBytes) {
        let key = (iteration, response.generation);
        let known = self.responses.entry(key).or_insert_with(|| response.body.to_vec());
        assert_eq!(*known, response.body, "two allocations of iteration {iteration} in one generation");
        let newest = self.newest.entry(iteration).or_default();
        *newest = response.generation.max(*newest);
        let parsed: AllocateResponse = serde_json::from_slice(&response.body).unwrap();
        assert_eq!((parsed.iteration, parsed.generation), key);
        assert_eq!(parsed.allocations.iter().map(|share| share.local_batch).sum::<u64>(), global_batch);
        let workers: BTreeSet<WorkerId> = parsed.allocations.into_iter().map(|share| share.worker).collect();
        self.members(response.generation, &workers);
    }

    /// The response to a join or a leave.
    pub fn joined(&mut self, response: JoinResponse) {
        self.members(response.generation, &response.workers.into_iter().collect());
    }

    /// A generation has the same workers in every response.
    fn members(&mut self, generation: u64, workers: &BTreeSet<WorkerId>) {
        let known = self.workers.entry(generation).or_insert_with(|| workers.clone());
        assert_eq!(known, workers, "generation {generation} has two sets of workers");
    }

    /// The reports of a successful request are stored. The first report of a worker for an iteration counts.
    pub fn reported(&mut self, reports: &[WorkerReport]) {
        for report in reports {
            self.reports.entry((report.iteration, report.worker.clone())).or_insert(report.local_batch);
        }
    }

    /// Iterations that have an allocation.
    pub fn iterations(&self) -> Vec<u64> {
        self.newest.keys().copied().collect()
    }

    /// The stored allocation of an iteration: the newest that a client knows, or one that a client never received.
    pub fn stored(&self, iteration: u64, stored: &ResponseBytes) {
        let newest = self.newest[&iteration];
        assert!(stored.generation >= newest, "the allocation of iteration {iteration} was lost");
        if let Some(known) = self.responses.get(&(iteration, stored.generation)) {
            assert_eq!(*known, stored.body, "the allocation of iteration {iteration} changed");
        }
    }

    /// The stored allocation of this generation is void: workers departed later.
    pub fn void(&self, iteration: u64, planned: u64, current: u64) {
        assert!(planned >= self.newest[&iteration], "the allocation of iteration {iteration} was lost");
        assert!(planned < current, "the allocation of iteration {iteration} is valid");
    }

    /// The stored reports contain every confirmed one, once.
    pub fn stored_reports(&self, stored: &[(u64, WorkerId)]) {
        let unique: BTreeSet<&(u64, WorkerId)> = stored.iter().collect();
        assert_eq!(unique.len(), stored.len(), "a report is stored twice");
        for key in self.reports.keys() {
            assert!(unique.contains(key), "the report {key:?} was lost");
        }
    }
}
