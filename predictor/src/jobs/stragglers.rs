//! Looks for the stragglers of all jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use evenstep_core::job::JobState;
use evenstep_protocol::{JobId, NodeHealthView, NodeId, StragglerView, WorkerId};
use tokio::time::MissedTickBehavior;

use super::registry::Jobs;
use crate::webhook::{Event, Webhook};

/// Interval at which stragglers are looked for.
const TICK: Duration = Duration::from_secs(2);

impl Jobs {
    /// Returns the health of a node, see [`NodeHealthView`].
    pub fn node_health(
        &self,
        node: &NodeId,
        after_s: u64,
        includes: impl Fn(&JobId) -> bool,
    ) -> NodeHealthView {
        self.stragglers().health(node, after_s, includes, self.now().steady_ms)
    }

    /// Looks for stragglers until the task is aborted, and sends events to the webhook.
    pub async fn watch_stragglers(self: Arc<Self>, webhook: Option<Webhook>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let jobs = self.clone();
            // Comparing the workers of wide jobs takes milliseconds.
            let events = tokio::task::spawn_blocking(move || jobs.changed_stragglers()).await;
            let events = events.unwrap_or_default();
            events.into_iter().for_each(|event| {
                if let Some(webhook) = &webhook {
                    webhook.send(event);
                }
            });
        }
    }

    fn changed_stragglers(&self) -> Vec<Event> {
        let (now, mut events, mut known) = (self.now(), Vec::new(), BTreeSet::new());
        for job in self.all() {
            known.insert(job.id().clone());
            let seen = job.if_idle(|state: &JobState| {
                let slow: BTreeMap<WorkerId, StragglerView> =
                    state.stragglers().into_iter().map(|(worker, view)| (worker.clone(), view)).collect();
                let ratios: BTreeMap<WorkerId, f64> = state
                    .expected_speed_ratios()
                    .into_iter()
                    .map(|(worker, ratio)| (worker.clone(), ratio))
                    .collect();
                (slow, ratios, state.members.live().cloned().collect::<BTreeSet<WorkerId>>())
            });
            // A job that is planned right now is seen at the next tick.
            if let Some((slow, ratios, live)) = seen {
                job.live().expected(&ratios);
                job.live().slow(now.unix_ms, slow.clone());
                events.extend(self.stragglers().see(job.id(), slow, &live, now));
            }
        }
        events.extend(self.stragglers().forget(&known, now));
        events
    }
}
