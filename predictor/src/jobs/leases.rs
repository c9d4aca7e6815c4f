//! Leases of the workers of a job whose state is not in memory.

use std::collections::BTreeMap;

use evenstep_core::job::JobState;
use evenstep_core::membership::{Member, State};
use evenstep_protocol::WorkerId;

/// Leases of a job's live workers. They end at the same time as with the state in memory.
#[derive(Debug)]
pub struct Leases {
    renewed_ms: BTreeMap<WorkerId, i64>,
    /// Time of the renewal of all workers that are not in `renewed_ms`; `None` if there are no others.
    others_ms: Option<i64>,
    lease_ms: i64,
    checked_ms: i64,
}

impl Leases {
    /// The leases in the state of a job, which is removed from memory. They were checked at `checked_ms`. If the state is in
    /// doubt, a worker whose lease expired may be live in the store, because its removal could not be written.
    pub fn of(state: &JobState, checked_ms: i64, is_in_doubt: bool) -> Self {
        let had_lease = |member: &&Member<WorkerId>| match member.state {
            State::Live => true,
            State::Expired => is_in_doubt,
            _ => false,
        };
        let renewed = |member: &Member<WorkerId>| (member.id.clone(), member.last_seen_ms);
        Self {
            renewed_ms: state.members.all().iter().filter(had_lease).map(renewed).collect(),
            others_ms: None,
            lease_ms: state.lease_ms(),
            checked_ms,
        }
    }

    /// Full leases of all live workers, as after a restart.
    pub fn full(lease_ms: i64, now_ms: i64) -> Self {
        let others_ms = Some(now_ms);
        Self { renewed_ms: BTreeMap::new(), others_ms, lease_ms, checked_ms: now_ms }
    }

    /// Whether the job has no live worker.
    pub fn is_empty(&self) -> bool {
        self.renewed_ms.is_empty() && self.others_ms.is_none()
    }

    /// Whether a lease has ended. If this was not called for half a lease, no worker could renew its lease, and
    /// each gets a full one, as with the state in memory.
    pub fn check(&mut self, now_ms: i64) -> bool {
        let pause_ms = now_ms.saturating_sub(std::mem::replace(&mut self.checked_ms, now_ms));
        if pause_ms > self.lease_ms / 2 {
            self.renewed_ms.values_mut().chain(&mut self.others_ms).for_each(|at| *at = now_ms);
        }
        let mut all = self.renewed_ms.values().chain(&self.others_ms);
        all.any(|renewed_ms| now_ms.saturating_sub(*renewed_ms) > self.lease_ms)
    }

    /// Returns the time of a worker's latest renewal; `None` if it is not known.
    pub fn renewed_ms(&self, worker: &WorkerId) -> Option<i64> {
        self.renewed_ms.get(worker).copied().or(self.others_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_end_on_time_while_they_are_checked() {
        let worker = WorkerId::new("node/0").unwrap();
        let mut leases = Leases::full(1000, 0);
        assert!([400, 800, 1000].iter().all(|now| !leases.check(*now)));
        assert!(leases.check(1001));
        assert!(!leases.check(1600), "not checked for more than half a lease");
        assert_eq!(leases.renewed_ms(&worker), Some(1600));
        assert!(!leases.is_empty());
    }
}
