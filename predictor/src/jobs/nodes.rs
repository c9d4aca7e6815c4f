//! Time of the newest sample of each node.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenstep_protocol::{NodeId, NodeSummary};

/// Milliseconds without a sample after which a node is no longer shown: one day.
const SILENCE_MAX_MS: i64 = 86_400_000;
/// Limit of nodes in memory; further nodes are not shown.
const NODES_MAX: usize = 20_000;

/// The nodes with a sample in the last day.
#[derive(Debug, Default)]
pub struct NewestSamples(Mutex<BTreeMap<NodeId, i64>>);

impl NewestSamples {
    /// Records a sample of a node, with its time by the node's clock. A time after `now_unix_ms` counts as now: the clock of
    /// the node was wrong, and must not hide that the node is silent later.
    pub fn saw(&self, node: &NodeId, at_unix_ms: i64, now_unix_ms: i64) {
        let at_unix_ms = at_unix_ms.min(now_unix_ms);
        let mut nodes = self.lock();
        if let Some(latest) = nodes.get_mut(node) {
            // The clock of this machine was fast if the latest time is in the future.
            *latest = at_unix_ms.max((*latest).min(now_unix_ms));
        } else if nodes.len() < NODES_MAX {
            nodes.insert(node.clone(), at_unix_ms);
        }
    }

    /// Returns all nodes by ID.
    pub fn lines(&self, now_unix_ms: i64) -> Vec<NodeSummary> {
        let mut nodes = self.lock();
        nodes.retain(|_, at_unix_ms| now_unix_ms.saturating_sub(*at_unix_ms) <= SILENCE_MAX_MS);
        nodes
            .iter()
            .map(|(node, at_unix_ms)| NodeSummary { node: node.clone(), at_unix_ms: *at_unix_ms })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_silent_for_a_day_are_not_shown() {
        let seen = NewestSamples::default();
        let [a, b] = ["a", "b"].map(|node| NodeId::new(node).unwrap());
        seen.saw(&a, 1_000, 90_000_000);
        seen.saw(&b, 90_000_000, 90_000_000);
        seen.saw(&b, 80_000_000, 90_000_000);
        assert_eq!(seen.lines(90_000_000), [NodeSummary { node: b, at_unix_ms: 90_000_000 }]);
    }
    #[test]
    fn a_node_whose_clock_was_fast_is_silent_later() {
        let seen = NewestSamples::default();
        let node = NodeId::new("a").unwrap();
        seen.saw(&node, i64::MAX, 1_000);
        assert_eq!(seen.lines(1_000), [NodeSummary { node, at_unix_ms: 1_000 }]);
        assert_eq!(seen.lines(1_001 + SILENCE_MAX_MS), []);
    }
}
