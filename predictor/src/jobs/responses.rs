//! Recent responses in memory, for repeated requests.

use std::collections::BTreeMap;

use bytes::Bytes;
use evenstep_core::attempts::Attempts;
use evenstep_protocol::{AllocateRequest, WorkerId, WorkerReport};
use evenstep_store::StoredAllocation;

/// Number of responses in memory per job. Older ones are read from the store.
const RESPONSES_KEPT: usize = 256;
/// Approximate memory of a response besides its body, in bytes.
const RESPONSE_BYTES: usize = 128;

/// The response to `/allocate`, byte for byte as stored.
#[derive(Debug, Clone)]
pub struct ResponseBytes {
    /// Generation in which it was planned.
    pub generation: u64,
    /// The JSON body, shared and not copied.
    pub body: Bytes,
}

impl ResponseBytes {
    /// Approximate memory, in bytes.
    fn bytes(&self) -> usize {
        RESPONSE_BYTES + self.body.len()
    }
}

impl From<StoredAllocation> for ResponseBytes {
    fn from(stored: StoredAllocation) -> Self {
        Self { generation: stored.generation, body: stored.answer }
    }
}

/// The published part of a job's state: read without the lock of the job.
#[derive(Debug, Default)]
pub struct Published {
    /// False until the job was loaded from the store.
    pub loaded: bool,
    /// The current generation.
    pub generation: u64,
    /// Generation of the latest departure.
    pub departed_generation: u64,
    /// The attempts of the run.
    pub attempts: Attempts,
    /// Whether the run may have started again; see `JobState::regrouped`.
    pub regrouped: bool,
    /// By position.
    responses: BTreeMap<u64, ResponseBytes>,
    /// Memory of the responses, in bytes.
    bytes: usize,
    seen: BTreeMap<WorkerId, Seen>,
}

impl Published {
    /// Returns the response to a request that needs no plan: its iteration has an allocation and its reports
    /// are known.
    ///
    /// `None` if the request needs a plan or a read from the store.
    pub fn response(&self, request: &AllocateRequest) -> Option<ResponseBytes> {
        if !self.loaded || request.generation != self.generation {
            return None;
        }
        // The run may start again with this iteration.
        if self.regrouped && request.reports.is_empty() {
            return None;
        }
        let response = self.valid(self.attempts.position(request.iteration))?;
        let has_seen =
            |report: &WorkerReport| self.has_seen(&report.worker, self.attempts.position(report.iteration));
        request.reports.iter().all(has_seen).then(|| response.clone())
    }

    /// Returns the response in memory unless one of its workers has departed since.
    pub fn valid(&self, position: u64) -> Option<&ResponseBytes> {
        self.responses.get(&position).filter(|response| response.generation >= self.departed_generation)
    }

    /// Keeps a response, and drops the oldest if there are too many.
    pub fn keep(&mut self, position: u64, response: ResponseBytes) {
        self.bytes += response.bytes();
        let before = self.responses.insert(position, response);
        self.bytes -= before.as_ref().map_or(0, ResponseBytes::bytes);
        self.trim(RESPONSES_KEPT);
    }

    /// Drops the oldest responses until at most `count` are left.
    pub fn trim(&mut self, count: usize) {
        while self.responses.len() > count {
            self.bytes -= self.responses.pop_first().map_or(0, |(_, response)| response.bytes());
        }
    }

    /// Memory of the responses, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Removes reports, by position, that were seen before, that repeat another of the same request, or that are of
    /// iterations before `kept_from`. For those iterations it is unknown whether the report was seen.
    pub fn retain_new(&self, reports: &mut Vec<WorkerReport>, kept_from: u64) {
        let repeats = repeats(reports);
        let mut at = 0;
        reports.retain(|report| {
            let is_repeat = repeats.binary_search(&at).is_ok();
            at += 1;
            !is_repeat && report.iteration >= kept_from && !self.has_seen(&report.worker, report.iteration)
        });
    }

    /// Returns the position after all that have a report.
    pub fn unreported(&self) -> u64 {
        self.seen.values().map(|seen| seen.newest.saturating_add(1)).max().unwrap_or(0)
    }

    /// Marks a report as seen, by position. Returns false if it was seen before.
    pub fn see(&mut self, worker: &WorkerId, position: u64) -> bool {
        match self.seen.get_mut(worker) {
            Some(seen) => seen.take(position),
            None => {
                self.seen.insert(worker.clone(), Seen { newest: position, earlier: 0 });
                true
            }
        }
    }

    fn has_seen(&self, worker: &WorkerId, position: u64) -> bool {
        self.seen.get(worker).is_some_and(|seen| seen.has(position))
    }
}

/// Positions of reports that repeat the worker and iteration of an earlier one, in ascending order.
fn repeats(reports: &[WorkerReport]) -> Vec<usize> {
    let key = |at: &usize| reports.get(*at).map(|report| (&report.worker, report.iteration));
    let mut order: Vec<usize> = (0..reports.len()).collect();
    // Stable, so that the first of equal reports stays first.
    order.sort_by_key(key);
    let mut repeats: Vec<usize> = order
        .windows(2)
        .filter_map(|pair| match pair {
            [before, at] if key(before) == key(at) => Some(*at),
            _ => None,
        })
        .collect();
    repeats.sort_unstable();
    repeats
}

/// The latest iterations that a worker reported: the newest, and a bit for each of the 64 before it. Older
/// iterations count as reported: a report that late is most likely a repetition, and no model learns from it.
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
            Some(age) => age > 64 || self.earlier >> (age - 1) & 1 == 1,
        }
    }

    fn take(&mut self, iteration: u64) -> bool {
        if self.has(iteration) {
            return false;
        }
        if let Some(age) = self.newest.checked_sub(iteration) {
            self.earlier |= 1 << (age - 1);
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

    #[test]
    fn new_reports_stay_once_and_in_order() {
        let report = |worker: &str, iteration| {
            WorkerReport::new(WorkerId::new(worker).unwrap(), iteration, iteration, 0.1)
        };
        let mut published = Published::default();
        published.see(&WorkerId::new("b").unwrap(), 5);
        let mut reports = vec![
            report("c", 4),
            report("b", 5),
            WorkerReport { local_batch: 9, ..report("a", 5) },
            report("a", 5),
            report("a", 3),
            report("b", 6),
            report("c", 4),
        ];
        published.retain_new(&mut reports, 4);
        let left: Vec<(&str, u64, u64)> = reports
            .iter()
            .map(|report| (report.worker.as_str(), report.iteration, report.local_batch))
            .collect();
        assert_eq!(left, [("c", 4, 4), ("a", 5, 9), ("b", 6, 6)]);
    }

    /// Compares with a plain set, over iterations that go forward, back and far.
    #[test]
    fn seen_is_a_set_of_the_recent() {
        let mut seen = Seen { newest: 100, earlier: 0 };
        let mut truth = BTreeSet::from([100u64]);
        let mut at = 100u64;
        for k in 0..4000u64 {
            at = match k * 2_654_435_761 % 7 {
                0 => at.saturating_sub(k % 90),
                1 => at + k % 70,
                _ => at + 1,
            };
            let is_old = seen.newest.saturating_sub(at) > 64;
            assert_eq!(seen.take(at), !is_old && truth.insert(at), "{at} at step {k}");
            let newest = seen.newest;
            for back in 0..=64.min(newest) {
                assert_eq!(
                    seen.has(newest - back),
                    truth.contains(&(newest - back)),
                    "{back} back at step {k}"
                );
            }
            assert!(newest.checked_sub(65).is_none_or(|old| seen.has(old)), "at step {k}");
        }
    }
}
