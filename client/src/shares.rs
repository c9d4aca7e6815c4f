//! The shares of an allocation, checked against what was requested.

use evenstep_protocol::{AllocateAnswer, WorkerId};

/// What an allocation must fit.
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
}

/// The samples of one rank: `offset .. offset + local_batch` of the iteration's global batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// The number of samples.
    pub local_batch: u64,
    /// The position of the first sample.
    pub offset: u64,
}

/// Returns the shares of an allocation by rank: a check for [`Connection::request`](crate::Connection::request) in a training
/// loop without a shared tail.
///
/// An allocation that was planned before a worker joined may omit it: it then computes nothing in that iteration. Returns
/// `Ok(None)` if the global batch follows the number of workers: such an allocation is for another global batch.
///
/// # Errors
/// The allocation names other workers than those of this run, has a shared tail, or does not cover the global batch exactly
/// once. The message says which.
pub fn shares(response: &AllocateAnswer, requested: &Requested<'_>) -> Result<Option<Vec<Share>>, String> {
    let mut shares: Vec<Option<Share>> = vec![None; requested.workers.len()];
    for allocation in &response.allocations {
        let rank = requested.workers.iter().position(|worker| *worker == allocation.worker);
        match rank.map(|rank| &mut shares[rank]) {
            Some(share @ None) => {
                *share = Some(Share { local_batch: allocation.local_batch, offset: allocation.offset });
            }
            Some(Some(_)) => return Err(format!("the allocation names worker {} twice", allocation.worker)),
            None => return Err(format!("worker {} is not part of this run", allocation.worker)),
        }
    }
    if let Some(rank) = shares.iter().position(Option::is_none) {
        if response.generation >= requested.generation {
            return Err(format!("the allocation omits worker {}", requested.workers[rank]));
        }
        if requested.follows_workers {
            return Ok(None);
        }
    }
    if response.tail.is_some() {
        return Err("the allocation has a shared tail; join the workers with claims = false".to_owned());
    }
    let shares: Vec<Share> = shares.into_iter().map(Option::unwrap_or_default).collect();
    if !covers(&shares, requested.global_batch) {
        let expected = requested.global_batch;
        return Err(format!("the shares do not cover the {expected} samples exactly once: {shares:?}"));
    }
    Ok(Some(shares))
}

fn covers(shares: &[Share], global_batch: u64) -> bool {
    let mut ranges: Vec<Share> = shares.iter().copied().filter(|share| share.local_batch > 0).collect();
    ranges.sort_unstable_by_key(|share| share.offset);
    let end = ranges.iter().try_fold(0_u64, |end, share| {
        (share.offset == end).then(|| end.checked_add(share.local_batch)).flatten()
    });
    end == Some(global_batch)
}
