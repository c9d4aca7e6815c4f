//! The shares of an allocation, checked against the request.

use std::collections::BTreeMap;

use evenstep_protocol::{AllocateResponse, Allocation, WorkerId};

/// Properties of a request that its allocation must match.
#[derive(Debug, Clone, Copy)]
pub struct Requested<'a> {
    /// The workers of this run in rank order.
    pub workers: &'a [WorkerId],
    /// The number of samples in the iteration.
    pub global_batch: u64,
    /// The generation in the request.
    pub generation: u64,
    /// Whether the global batch follows the number of workers.
    pub follows_workers: bool,
    /// The number that local batches are multiples of.
    pub quantum: u64,
    /// Maximum number of samples by rank; `None` for no cap. Empty if no rank has one.
    pub caps: &'a [Option<u64>],
}

/// Samples of one rank: `offset .. offset + local_batch` of the iteration's global batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// The number of samples.
    pub local_batch: u64,
    /// Position of the first sample.
    pub offset: u64,
}

/// A local batch that breaks a rule of the run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSize {
    /// A local batch or chunk is not a multiple of the quantum. One may have the samples below one quantum.
    #[error(
        "the allocation has parts of {parts:?} samples: must be multiples of the quantum {quantum}, except for one \
         if {global_batch} samples are no multiple"
    )]
    Quantum {
        /// Samples of each rank, then of each chunk.
        parts: Vec<u64>,
        /// The quantum of this run.
        quantum: u64,
        /// Number of samples in the iteration.
        global_batch: u64,
    },
    /// A local batch is larger than the worker's cap.
    #[error("the allocation gives {worker} {local_batch} samples: must be at most its max_local_batch {cap}")]
    Cap {
        /// The worker.
        worker: WorkerId,
        /// Its number of samples.
        local_batch: u64,
        /// Its cap.
        cap: u64,
    },
}

/// An allocation for other workers than this run's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The allocation names a worker of another run, names a worker twice, or omits a worker.
    #[error("the allocation names {named} workers and {foreign:?} is not one of the {ours} of this run")]
    Workers {
        /// Number of workers in the allocation.
        named: usize,
        /// Id of a worker that is unknown or named twice; empty if a worker of this run is omitted.
        foreign: String,
        /// Number of workers in this run.
        ours: usize,
    },
    /// The allocation was made before a worker joined, for a global batch that follows the number of workers.
    #[error("the allocation is outdated: its global batch is for fewer workers")]
    Outgrown,
}

impl Requested<'_> {
    /// Returns the allocation of each rank. An allocation of an earlier generation than the request's may
    /// omit a worker that has joined since. That worker computes nothing in the iteration. If the global
    /// batch follows the number of workers, such an allocation is an error, because its global batch and
    /// learning rate are for another number.
    ///
    /// # Errors
    /// - [`Mismatch::Workers`]: the allocation is for other workers.
    /// - [`Mismatch::Outgrown`]: the allocation is for the global batch of fewer workers.
    pub fn by_rank<'r>(
        &self,
        response: &'r AllocateResponse,
    ) -> Result<Vec<Option<&'r Allocation>>, Mismatch> {
        let mismatch = |foreign: String| Mismatch::Workers {
            named: response.allocations.len(),
            foreign,
            ours: self.workers.len(),
        };
        let mut by_rank: Vec<Option<&Allocation>> = vec![None; self.workers.len()];
        let ranks: BTreeMap<&WorkerId, usize> =
            self.workers.iter().enumerate().map(|(rank, worker)| (worker, rank)).collect();
        for allocation in &response.allocations {
            match ranks.get(&allocation.worker).map(|rank| &mut by_rank[*rank]) {
                Some(slot @ None) => *slot = Some(allocation),
                _ => return Err(mismatch(allocation.worker.to_string())),
            }
        }
        if by_rank.iter().any(Option::is_none) {
            if response.generation >= self.generation {
                return Err(mismatch(String::new()));
            }
            if self.follows_workers {
                return Err(Mismatch::Outgrown);
            }
        }
        Ok(by_rank)
    }

    /// Checks the sizes of shares that cover the global batch, with the chunks of a tail.
    ///
    /// # Errors
    /// - [`InvalidSize::Quantum`]: more than one of them is not a multiple of the quantum.
    /// - [`InvalidSize::Cap`]: a share exceeds the cap of its worker.
    pub(crate) fn check_sizes(&self, shares: &[Share], chunks: &[u64]) -> Result<(), InvalidSize> {
        let parts = shares.iter().map(|share| share.local_batch).chain(chunks.iter().copied());
        // The parts cover the global batch, so a single odd one has the samples below one quantum.
        if parts.clone().filter(|part| !part.is_multiple_of(self.quantum.max(1))).count() > 1 {
            let (quantum, global_batch) = (self.quantum, self.global_batch);
            return Err(InvalidSize::Quantum { parts: parts.collect(), quantum, global_batch });
        }
        for ((share, cap), worker) in shares.iter().zip(self.caps).zip(self.workers) {
            if let Some(cap) = cap.filter(|cap| share.local_batch > *cap) {
                let (worker, local_batch) = (worker.clone(), share.local_batch);
                return Err(InvalidSize::Cap { worker, local_batch, cap });
            }
        }
        Ok(())
    }
}

/// Returns the shares of an allocation by rank, or `Ok(None)` for an outdated allocation. It is a check for
/// `Connection::request` of the client in a training loop without a shared tail.
///
/// # Errors
/// The allocation names other workers than this run's, has a shared tail, does not cover the global batch
/// exactly once, or breaks the quantum or a cap. The message names the rule.
///
/// # Examples
/// ```
/// use evenstep_rules::{Requested, Share, shares};
/// use evenstep_protocol::{AllocateResponse, WorkerId};
///
/// let response: AllocateResponse = serde_json::from_str(
///     r#"{"job_id": "resnet-a", "generation": 2, "iteration": 0, "global_batch": 512,
///         "allocations": [
///           {"worker": "node-a/0", "rank": 0, "local_batch": 192, "offset": 0, "gradient_weight": 0.375},
///           {"worker": "node-b/0", "rank": 1, "local_batch": 320, "offset": 192, "gradient_weight": 0.625}],
///         "optimizer": {"rule": "dynamic_sgd", "lr_multiplier": 1.0, "momentum_buffer_scale": 1.0},
///         "decision": {"kind": "rebalanced", "reason": "node-a/0 slowed by 38 %"}}"#,
/// )?;
/// let workers = [WorkerId::new("node-a/0")?, WorkerId::new("node-b/0")?];
/// let requested = Requested {
///     workers: &workers, global_batch: 512, generation: 2, follows_workers: false, quantum: 64, caps: &[],
/// };
/// let own = shares(&response, &requested)?.map(|by_rank| by_rank[1]);
/// assert_eq!(own, Some(Share { local_batch: 320, offset: 192 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn shares(response: &AllocateResponse, requested: &Requested<'_>) -> Result<Option<Vec<Share>>, String> {
    let by_rank = match requested.by_rank(response) {
        Ok(by_rank) => by_rank,
        Err(Mismatch::Outgrown) => return Ok(None),
        Err(mismatch) => return Err(mismatch.to_string()),
    };
    if response.tail.is_some() {
        return Err("the allocation has a shared tail; join the workers with claims = false".to_owned());
    }
    let share =
        |allocation: &Allocation| Share { local_batch: allocation.local_batch, offset: allocation.offset };
    let shares: Vec<Share> = by_rank.into_iter().map(|own| own.map(share).unwrap_or_default()).collect();
    if !covers(&shares, std::iter::empty(), requested.global_batch) {
        let expected = requested.global_batch;
        return Err(format!("the shares do not cover the {expected} samples exactly once: {shares:?}"));
    }
    requested.check_sizes(&shares, &[]).map_err(|size| size.to_string())?;
    Ok(Some(shares))
}

/// Returns whether the shares, in any order, and then the chunks of a tail cover each sample exactly once.
pub(crate) fn covers(shares: &[Share], tail: impl Iterator<Item = Share>, global_batch: u64) -> bool {
    let mut ranges: Vec<Share> = shares.iter().copied().filter(|share| share.local_batch > 0).collect();
    ranges.sort_unstable_by_key(|share| share.offset);
    ranges.extend(tail);
    let end = ranges.iter().try_fold(0_u64, |end, share| {
        (share.offset == end).then(|| end.checked_add(share.local_batch)).flatten()
    });
    end == Some(global_batch)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the shares of two workers, `node/0` and `node/1`, of 8 samples requested in generation 2.
    fn checked(
        generation: u64,
        allocations: &[(&str, u64, u64)],
        follows_workers: bool,
    ) -> Result<Option<Vec<(u64, u64)>>, String> {
        let allocations: Vec<Value> = allocations
            .iter()
            .map(|(worker, local_batch, offset)| {
                json!({"worker": worker, "rank": 0, "local_batch": local_batch, "offset": offset, "gradient_weight": 0.5})
            })
            .collect();
        let response = json!({
            "job_id": "job", "generation": generation, "iteration": 0, "global_batch": 8, "allocations": allocations,
            "optimizer": {"rule": "dynamic_sgd", "lr_multiplier": 1.0, "momentum_buffer_scale": 1.0, "ramp": null},
            "decision": {"kind": "held", "reason": "r"}
        });
        let response: AllocateResponse = serde_json::from_value(response).unwrap();
        let workers = ["node/0", "node/1"].map(|worker| WorkerId::new(worker).unwrap());
        let caps = [Some(8), Some(6)];
        let requested = Requested {
            workers: &workers,
            global_batch: 8,
            generation: 2,
            follows_workers,
            quantum: 1,
            caps: &caps,
        };
        let pairs =
            |shares: Vec<Share>| shares.iter().map(|share| (share.local_batch, share.offset)).collect();
        shares(&response, &requested).map(|shares| shares.map(pairs))
    }

    #[test]
    fn shares_are_in_rank_order() {
        assert_eq!(checked(2, &[("node/1", 5, 0), ("node/0", 3, 5)], false), Ok(Some(vec![(3, 5), (5, 0)])));
    }

    #[test]
    fn an_allocation_of_an_earlier_generation_may_omit_a_worker_unless_the_batch_follows_their_number() {
        assert_eq!(checked(1, &[("node/0", 8, 0)], false), Ok(Some(vec![(8, 0), (0, 0)])));
        assert_eq!(checked(1, &[("node/0", 8, 0)], true), Ok(None));
        assert!(checked(2, &[("node/0", 8, 0)], false).is_err());
    }

    #[test]
    fn other_workers_and_incomplete_shares_are_errors() {
        for (allocations, says) in [
            ([("node/0", 4, 0), ("other/0", 4, 4)], "other/0"),
            ([("node/0", 4, 0), ("node/0", 4, 4)], "node/0"),
            ([("node/0", 4, 0), ("node/1", 3, 4)], "8 samples"),
            ([("node/0", 4, 0), ("node/1", 5, 4)], "8 samples"),
            ([("node/0", 4, 0), ("node/1", 4, 3)], "8 samples"),
            ([("node/0", 1, 0), ("node/1", 7, 1)], "node/1 7 samples: must be at most its max_local_batch 6"),
        ] {
            let error = checked(2, &allocations, false).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
