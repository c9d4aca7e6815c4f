//! Samples of an iteration: one number for the whole run, or so many for each worker.

use crate::cli::TrainArgs;
use crate::plan::GLOBAL_BATCH_MAX;

/// Samples per iteration where nobody says.
const GLOBAL_BATCH_DEFAULT: u64 = 512;

impl TrainArgs {
    /// Samples of a whole iteration of so many workers.
    pub fn whole_batch(&self, world_size: usize) -> u64 {
        let of_workers = self.per_worker_batch.map(|each| each.saturating_mul(world_size as u64));
        of_workers.or(self.global_batch).unwrap_or(GLOBAL_BATCH_DEFAULT)
    }

    /// What the learning rate was chosen for, in a run that begins with so many workers.
    pub fn base_batch(&self, begins_with: usize) -> u64 {
        self.global_batch.unwrap_or_else(|| self.whole_batch(begins_with))
    }

    /// The most workers that the global batch has room for.
    pub fn max_workers(&self) -> usize {
        let room = match self.per_worker_batch {
            Some(each) => GLOBAL_BATCH_MAX / each,
            None => self.whole_batch(0) / self.quantum,
        };
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// The rule for batches that is broken, with the values.
    pub(crate) fn wrong_batch(&self, workers: u64) -> Option<String> {
        let (base, quantum) = (self.base_batch(workers as usize), self.quantum);
        let room = self.max_local_batch.map(|cap| (cap, cap / quantum * quantum));
        if !base.is_multiple_of(quantum) {
            return Some(format!("--global-batch {base} must be a multiple of --quantum {quantum}"));
        }
        let Some(each) = self.per_worker_batch else {
            return if base / quantum < workers {
                Some(format!(
                    "--global-batch {base} must hold a --quantum of {quantum} for each of {workers} workers"
                ))
            } else {
                room.filter(|(_, room)| room.saturating_mul(workers) < base).map(|(cap, _)| {
                    format!(
                        "--max-local-batch {cap}: {workers} workers with at most that many, in multiples of {quantum}, \
                         cannot hold --global-batch {base}"
                    )
                })
            };
        };
        if !each.is_multiple_of(quantum) {
            Some(format!("--per-worker-batch {each} must be a multiple of --quantum {quantum}"))
        } else if each.saturating_mul(workers) > GLOBAL_BATCH_MAX {
            Some(format!(
                "--per-worker-batch {each}: {workers} workers make a global batch of more than {GLOBAL_BATCH_MAX}"
            ))
        } else {
            room.filter(|(_, room)| *room < each).map(|(cap, _)| {
                format!("--max-local-batch {cap}: holds no --per-worker-batch of {each}, in multiples of {quantum}")
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::parse_launch;

    #[test]
    fn batches_of_runs_that_grow() {
        let batches = |extra: &[&str]| {
            let train = parse_launch(extra).unwrap().0.train;
            (train.base_batch(2), train.whole_batch(2), train.whole_batch(4), train.max_workers())
        };
        assert_eq!(batches(&[]), (512, 512, 512, 512));
        assert_eq!(batches(&["--global-batch=64", "--quantum=4"]), (64, 64, 64, 16));
        assert_eq!(batches(&["--per-worker-batch=32"]), (64, 64, 128, 1 << 19));
        assert_eq!(batches(&["--per-worker-batch=32", "--global-batch=16"]), (16, 64, 128, 1 << 19));
    }
}
