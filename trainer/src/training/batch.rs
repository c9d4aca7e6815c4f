//! Batch size of an iteration: one value for the run, or one per worker.

use super::options::Options;
use crate::plan::{GLOBAL_BATCH_MAX, SharedTail};

/// Default number of samples per iteration.
const GLOBAL_BATCH_DEFAULT: u64 = 512;

impl Options {
    /// Returns the number of samples in a full iteration of `world_size` workers.
    pub fn whole_batch(&self, world_size: usize) -> u64 {
        let of_workers = self.per_worker_batch.map(|each| each.saturating_mul(world_size as u64));
        of_workers.or(self.global_batch).unwrap_or(GLOBAL_BATCH_DEFAULT)
    }

    /// Returns the batch that the learning rate was chosen for, in a run that starts with `initial_workers`
    /// workers.
    pub fn base_batch(&self, initial_workers: usize) -> u64 {
        self.global_batch.unwrap_or_else(|| self.whole_batch(initial_workers))
    }

    /// Returns the tail settings of even splits, if `--tail` is set.
    pub fn even_tail(&self) -> Option<SharedTail> {
        self.tail.map(|share| SharedTail { share, min_chunk: self.quantum })
    }

    /// Returns the largest number of workers that the global batch has room for.
    pub fn max_workers(&self) -> usize {
        let room = match self.per_worker_batch {
            Some(each) => GLOBAL_BATCH_MAX / each,
            None => self.whole_batch(0) / self.quantum,
        };
        usize::try_from(room).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_runs_that_grow() {
        let batches = |extra: &[&str]| {
            let train = Options::parse(extra).unwrap();
            (train.base_batch(2), train.whole_batch(2), train.whole_batch(4), train.max_workers())
        };
        assert_eq!(batches(&[]), (512, 512, 512, 512));
        assert_eq!(batches(&["--global-batch=64", "--quantum=4"]), (64, 64, 64, 16));
        assert_eq!(batches(&["--per-worker-batch=32"]), (64, 64, 128, 1 << 19));
        assert_eq!(batches(&["--per-worker-batch=32", "--global-batch=16"]), (16, 64, 128, 1 << 19));
    }
}
