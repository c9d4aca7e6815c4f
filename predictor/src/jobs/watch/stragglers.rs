//! The stragglers of all jobs: for the health of nodes, and for the webhook.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenstep_protocol::{JobId, NodeHealthView, NodeId, NodeStraggler, StragglerView, WorkerId};

use crate::clock::Now;
use crate::webhook::{Event, EventKind};

/// Time for which a worker that left as a straggler counts for its node, in milliseconds: launchers query the health of
/// a node after its workers have ended, before they start them again.
const LEFT_MS: i64 = 600_000;
/// Maximum number of stragglers in memory; further ones are not seen.
const STRAGGLERS_MAX: usize = 20_000;

/// The stragglers of all jobs in memory, and those that left recently.
#[derive(Debug, Default)]
pub struct Stragglers(Mutex<BTreeMap<(JobId, WorkerId), Flag>>);

/// A worker that is a straggler, or left as one.
#[derive(Debug, Clone)]
struct Flag {
    /// Time at which it was flagged, in milliseconds since 1970.
    since_unix_ms: i64,
    /// Time at which it was flagged, in milliseconds of the steady clock.
    since_ms: i64,
    /// Time at which it left the job, in milliseconds of the steady clock.
    left_ms: Option<i64>,
    view: StragglerView,
}

impl Flag {
    fn straggler(&self, job_id: &JobId, worker: &WorkerId) -> NodeStraggler {
        NodeStraggler {
            job_id: job_id.clone(),
            worker: worker.clone(),
            since_unix_ms: self.since_unix_ms,
            straggler: self.view.clone(),
        }
    }
}

impl Stragglers {
    /// Records the stragglers of a job, and returns what changed. `live` are its live workers.
    pub fn see(
        &self,
        job_id: &JobId,
        slow: BTreeMap<WorkerId, StragglerView>,
        live: &BTreeSet<WorkerId>,
        now: Now,
    ) -> Vec<Event> {
        let mut flags = self.lock();
        let mut events = Vec::new();
        for ((job, worker), flag) in flags.iter_mut().filter(|((job, _), _)| job == job_id) {
            if !live.contains(worker) {
                flag.left_ms.get_or_insert(now.steady_ms);
            } else if !slow.contains_key(worker) {
                events.push(Event::new(EventKind::Cleared, now.unix_ms, flag.straggler(job, worker)));
            }
        }
        flags.retain(|(job, worker), _| job != job_id || !live.contains(worker) || slow.contains_key(worker));
        let mut slow: Vec<(WorkerId, StragglerView)> = slow.into_iter().collect();
        slow.sort_by(|(_, one), (_, other)| one.speed_ratio.total_cmp(&other.speed_ratio));
        for (worker, view) in slow {
            let key = (job_id.clone(), worker);
            if let Some(flag) = flags.get_mut(&key) {
                (flag.view, flag.left_ms) = (view, None);
            } else if flags.len() < STRAGGLERS_MAX {
                let flag = Flag { since_unix_ms: now.unix_ms, since_ms: now.steady_ms, left_ms: None, view };
                events.push(Event::new(EventKind::Flagged, now.unix_ms, flag.straggler(&key.0, &key.1)));
                flags.insert(key, flag);
            }
        }
        events
    }

    /// Forgets workers that left long ago, and returns their events. Jobs that are not in `known` have left.
    pub fn forget(&self, known: &BTreeSet<JobId>, now: Now) -> Vec<Event> {
        let mut events = Vec::new();
        self.lock().retain(|(job_id, worker), flag| {
            if !known.contains(job_id) {
                flag.left_ms.get_or_insert(now.steady_ms);
            }
            let is_kept = flag.left_ms.is_none_or(|left| now.steady_ms.saturating_sub(left) < LEFT_MS);
            if !is_kept {
                events.push(Event::new(EventKind::Cleared, now.unix_ms, flag.straggler(job_id, worker)));
            }
            is_kept
        });
        events
    }

    /// Returns the health of a node: unhealthy if a worker on it has been a straggler for `after_s`. Only jobs that
    /// `includes` selects count.
    pub fn health(
        &self,
        node: &NodeId,
        after_s: u64,
        includes: impl Fn(&JobId) -> bool,
        now_ms: i64,
    ) -> NodeHealthView {
        let after_ms = i64::try_from(after_s.saturating_mul(1000)).unwrap_or(i64::MAX);
        let flags = self.lock();
        let here = flags.iter().filter(|((job_id, worker), flag)| {
            worker.node() == node.as_str()
                && flag.left_ms.unwrap_or(now_ms).saturating_sub(flag.since_ms) >= after_ms
                && includes(job_id)
        });
        let mut stragglers: Vec<NodeStraggler> =
            here.map(|((job_id, worker), flag)| flag.straggler(job_id, worker)).collect();
        stragglers.sort_by(|one, other| one.straggler.speed_ratio.total_cmp(&other.straggler.speed_ratio));
        NodeHealthView { node: node.clone(), healthy: stragglers.is_empty(), stragglers }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(JobId, WorkerId), Flag>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::StragglerReason;

    use super::*;

    /// The wall clock is a day ahead of the steady clock.
    fn at(steady_ms: i64) -> Now {
        Now { unix_ms: steady_ms + 86_400_000, steady_ms }
    }

    fn view(ratio: f64) -> StragglerView {
        StragglerView {
            reason: StragglerReason::CpuContention,
            speed_ratio: ratio,
            since_iteration: 7,
            detail: "it waits for a core 40 % of the time".to_owned(),
        }
    }

    /// A node is unhealthy from `after_s` after the flag until the worker recovers, or has left for long.
    #[test]
    fn a_straggler_makes_its_node_unhealthy_until_it_recovers_or_was_replaced() {
        let (stragglers, job) = (Stragglers::default(), JobId::new("job").unwrap());
        let [worker, other] = ["a/pod/0", "b/0"].map(|id| WorkerId::new(id).unwrap());
        let [a, b] = ["a", "b"].map(|node| NodeId::new(node).unwrap());
        let live = BTreeSet::from([worker.clone(), other.clone()]);
        let slow = || BTreeMap::from([(worker.clone(), view(0.5))]);
        let kinds = |events: Vec<Event>| events.into_iter().map(|event| event.kind).collect::<Vec<_>>();
        let healthy = |node, after_s, now| stragglers.health(node, after_s, |_| true, now).healthy;

        assert_eq!(kinds(stragglers.see(&job, slow(), &live, at(1_000))), [EventKind::Flagged]);
        assert_eq!(kinds(stragglers.see(&job, slow(), &live, at(61_000))), []);
        assert!(healthy(&a, 61, 61_000) && !healthy(&a, 60, 61_000) && healthy(&b, 0, 61_000));
        assert!(stragglers.health(&a, 0, |_| false, 61_000).healthy, "jobs of others are not shown");
        let found = stragglers.health(&a, 60, |_| true, 61_000).stragglers;
        assert_eq!((found[0].since_unix_ms, &found[0].worker), (at(1_000).unix_ms, &worker));

        // It left with its process: the launcher asks before it starts again.
        assert_eq!(kinds(stragglers.see(&job, BTreeMap::new(), &BTreeSet::new(), at(62_000))), []);
        assert!(!healthy(&a, 60, 62_000) && !healthy(&a, 61, 500_000) && healthy(&a, 62, 500_000));
        // It was started again, and is not slow any more.
        assert_eq!(kinds(stragglers.see(&job, BTreeMap::new(), &live, at(63_000))), [EventKind::Cleared]);
        assert!(healthy(&a, 0, 63_000));

        let all = BTreeMap::from([(WorkerId::new("a/0").unwrap(), view(0.7)), (worker.clone(), view(0.5))]);
        let live = all.keys().cloned().collect();
        assert_eq!(kinds(stragglers.see(&job, all, &live, at(70_000))), [EventKind::Flagged; 2]);
        let ratios: Vec<f64> = stragglers
            .health(&a, 0, |_| true, 70_000)
            .stragglers
            .iter()
            .map(|found| found.straggler.speed_ratio)
            .collect();
        assert_eq!(ratios, [0.5, 0.7], "slowest first");
        stragglers.see(&job, slow(), &live, at(70_000));
        assert_eq!(kinds(stragglers.forget(&BTreeSet::new(), at(80_000))), []);
        assert!(!healthy(&a, 10, 80_000));
        assert_eq!(kinds(stragglers.forget(&BTreeSet::new(), at(80_000 + LEFT_MS))), [EventKind::Cleared]);
        assert!(healthy(&a, 0, 80_000 + LEFT_MS));
    }
}
