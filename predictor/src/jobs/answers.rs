//! What was answered lately, readable without waiting for whoever is planning.

use std::collections::BTreeMap;

use bytes::Bytes;
use evenstep_protocol::{AllocateRequest, WorkerId, WorkerReport};

use super::JobError;

/// Answers kept in memory per job; older ones are read from the store.
const ANSWERS_KEPT: usize = 256;

/// An answer, byte for byte as it is stored.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The generation it was planned in.
    pub generation: u64,
    /// The bytes.
    pub bytes: Bytes,
}

/// What every asker may see at once.
#[derive(Debug, Default)]
pub struct Published {
    /// False until the job was read from the store.
    pub loaded: bool,
    pub generation: u64,
    pub departed_generation: u64,
    answers: BTreeMap<u64, Answer>,
    seen: BTreeMap<WorkerId, Seen>,
}

impl Published {
    /// The answer to a request that needs nothing new: its iteration is answered and its reports are known.
    ///
    /// `None` where somebody must plan, or look into the store.
    pub fn answer(&self, request: &AllocateRequest) -> Option<Result<Answer, JobError>> {
        if !self.loaded || request.generation != self.generation {
            return None;
        }
        let answer = self.valid(request.iteration)?;
        request.reports.iter().all(|report| self.has_seen(report)).then(|| Ok(answer.clone()))
    }

    /// The answer in memory, unless somebody in it has departed since.
    pub fn valid(&self, iteration: u64) -> Option<&Answer> {
        self.answers.get(&iteration).filter(|answer| answer.generation >= self.departed_generation)
    }

    /// The answer in memory, valid or not.
    pub fn latest(&self, iteration: u64) -> Option<&Answer> {
        self.answers.get(&iteration)
    }

    /// Keeps an answer, and lets the oldest go.
    pub fn keep(&mut self, iteration: u64, answer: Answer) {
        self.answers.insert(iteration, answer);
        while self.answers.len() > ANSWERS_KEPT {
            self.answers.pop_first();
        }
    }

    /// Marks a report as taken; false where it was taken before.
    pub fn see(&mut self, worker: &WorkerId, iteration: u64) -> bool {
        match self.seen.get_mut(worker) {
            Some(seen) => seen.take(iteration),
            None => {
                self.seen.insert(worker.clone(), Seen { newest: iteration, earlier: 0 });
                true
            }
        }
    }

    /// Whether a report was taken.
    pub fn has_seen(&self, report: &WorkerReport) -> bool {
        self.seen.get(&report.worker).is_some_and(|seen| seen.has(report.iteration))
    }
}

/// Which of a worker's latest iterations were reported: the newest, and a bit for each of the 64 before it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    newest: u64,
    /// Bit `i` stands for `newest - 1 - i`.
    earlier: u64,
}

impl Seen {
    fn has(&self, iteration: u64) -> bool {
        match self.newest.checked_sub(iteration) {
            None => false,
            Some(0) => true,
            Some(age) => age <= 64 && self.earlier >> (age - 1) & 1 == 1,
        }
    }

    fn take(&mut self, iteration: u64) -> bool {
        if self.has(iteration) {
            return false;
        }
        if let Some(age) = self.newest.checked_sub(iteration) {
            // Older than the window: the store knows whether it is new.
            if age <= 64 {
                self.earlier |= 1 << (age - 1);
            }
            return true;
        }
        let step = iteration - self.newest;
        let shifted = if step < 64 { self.earlier << step } else { 0 };
        self.earlier = if step <= 64 { shifted | 1 << (step - 1) } else { 0 };
        self.newest = iteration;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Against a plain set, over a walk that goes forward, back and far.
    #[test]
    fn seen_is_a_set_of_the_recent() {
        let mut seen = Seen { newest: 100, earlier: 0 };
        let mut truth = BTreeSet::from([100u64]);
        let mut at = 100u64;
        for k in 0..4000u64 {
            at = match k * 2_654_435_761 % 7 {
                0 => at.saturating_sub(k % 40),
                1 => at + k % 70,
                _ => at + 1,
            };
            let new = truth.insert(at);
            if seen.newest.saturating_sub(at) <= 64 {
                assert_eq!(seen.take(at), new, "{at} at step {k}");
            }
            let newest = seen.newest;
            for back in 0..=64.min(newest) {
                assert_eq!(
                    seen.has(newest - back),
                    truth.contains(&(newest - back)),
                    "{back} back at step {k}"
                );
            }
        }
    }
}
