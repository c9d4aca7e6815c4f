//! Memory that the states of jobs and their responses use, and its budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evenstep_observability::metrics::Family;
use evenstep_observability::metrics::prometheus::proto::MetricFamily;

/// Memory of all jobs, and its budget.
#[derive(Debug)]
pub struct Memory {
    budget_bytes: u64,
    used_bytes: [AtomicU64; 2],
    /// Use above the budget that could not be reduced; 0 if it is to be reduced again.
    accepted_bytes: AtomicU64,
    /// Whether a warning was logged since the use exceeded the budget.
    warned: AtomicBool,
    uses: AtomicU64,
    removed: AtomicU64,
}

/// Kind of contents in memory.
#[derive(Debug, Clone, Copy)]
pub enum Contents {
    /// States of jobs, with their models and latest iterations. The size is an estimate.
    States,
    /// Responses to `/allocate`, for repeated requests.
    Responses,
}

impl Memory {
    /// Unused memory with this budget.
    pub fn new(budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            used_bytes: Default::default(),
            accepted_bytes: AtomicU64::default(),
            warned: AtomicBool::default(),
            uses: AtomicU64::default(),
            removed: AtomicU64::default(),
        }
    }

    /// Whether more than the budget is used, and more than what could not be freed.
    pub fn is_full(&self) -> bool {
        let used_bytes = self.all_used_bytes();
        if used_bytes <= self.budget_bytes {
            self.accepted_bytes.store(0, Ordering::Relaxed);
            self.warned.store(false, Ordering::Relaxed);
            return false;
        }
        used_bytes > self.accepted_bytes.load(Ordering::Relaxed)
    }

    /// Accepts the current use if it exceeds the budget because the jobs in use need more. Memory is freed again
    /// after it has grown by a few percent.
    pub fn accept_use(&self) {
        let used_bytes = self.all_used_bytes();
        if used_bytes > self.budget_bytes {
            self.accepted_bytes.store(used_bytes + used_bytes / 32, Ordering::Relaxed);
            if !self.warned.swap(true, Ordering::Relaxed) {
                let budget_bytes = self.budget_bytes;
                tracing::warn!(
                    used_bytes,
                    budget_bytes,
                    "active jobs need more memory than --memory-budget; raise it"
                );
            }
        }
    }

    /// Ends the acceptance of a use above the budget: jobs may have ended since.
    pub fn review_use(&self) {
        self.accepted_bytes.store(0, Ordering::Relaxed);
    }

    fn all_used_bytes(&self) -> u64 {
        self.used_bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// A number that rises with every call, to order the uses of jobs.
    pub fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts a state that was removed.
    pub fn count_removed(&self) {
        self.removed.fetch_add(1, Ordering::Relaxed);
    }

    /// The metric families.
    pub fn families(&self) -> Vec<MetricFamily> {
        let help = "Memory that the states of jobs (estimated) and their responses use.";
        let mut used = Family::gauge("evenstep_job_memory_bytes", help);
        for (name, contents) in [("states", Contents::States), ("responses", Contents::Responses)] {
            used.add([("contents", name)], self.used(contents).load(Ordering::Relaxed) as f64);
        }
        let mut budget = Family::gauge("evenstep_job_memory_budget_bytes", "Budget of this memory.");
        budget.add([], self.budget_bytes as f64);
        let help = "States of jobs that were removed from memory to keep the budget.";
        let mut removed = Family::counter("evenstep_job_states_removed_total", help);
        removed.add([], self.removed.load(Ordering::Relaxed) as f64);
        [used.done(), budget.done(), removed.done()].into_iter().flatten().collect()
    }

    fn used(&self, contents: Contents) -> &AtomicU64 {
        &self.used_bytes[contents as usize]
    }
}

/// Memory that one job uses. It is free when this is dropped.
#[derive(Debug)]
pub struct Charge {
    memory: Arc<Memory>,
    contents: Contents,
    bytes: AtomicU64,
}

impl Charge {
    /// No memory yet.
    pub fn new(memory: Arc<Memory>, contents: Contents) -> Self {
        Self { memory, contents, bytes: AtomicU64::default() }
    }

    /// Replaces the size.
    pub fn set(&self, bytes: u64) {
        let used = self.memory.used(self.contents);
        // Added first, so that the sum is never below 0.
        used.fetch_add(bytes, Ordering::Relaxed);
        used.fetch_sub(self.bytes.swap(bytes, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_pays_for_its_latest_size_until_it_is_dropped() {
        let memory = Arc::new(Memory::new(100));
        let [states, responses] =
            [Contents::States, Contents::Responses].map(|contents| Charge::new(memory.clone(), contents));
        states.set(60);
        responses.set(40);
        assert!(!memory.is_full());
        states.set(61);
        assert!(memory.is_full());
        drop(responses);
        assert!(!memory.is_full());
        assert_eq!(memory.used(Contents::States).load(Ordering::Relaxed), 61);
    }
}
