//! Whether a worker is slow for long.

use evenstep_protocol::{StragglerView, WorkerId};

use super::reason;
use super::state::JobState;

/// Workers on devices of the same kind that a worker is compared with, at least.
const PEERS_MIN: usize = 2;

impl JobState {
    /// A worker that is slower than it was, or than the others on devices of its kind; `None` if it is not.
    pub fn straggler(&self, id: &WorkerId) -> Option<StragglerView> {
        let watch = |id: &WorkerId| Some(&self.models.worker(id)?.watch);
        let device = self.workers.get(id)?.request.device.as_ref();
        let is_peer = |other: &&WorkerId| {
            *other != id
                && device.is_some()
                && self.workers.get(*other).and_then(|known| known.request.device.as_ref()) == device
        };
        let mut speeds: Vec<f64> =
            self.members.live().filter(is_peer).filter_map(|other| watch(other)?.speed()).collect();
        speeds.sort_by(f64::total_cmp);
        // A single peer could be the odd one itself.
        let peers = speeds.get(speeds.len() / 2).copied().filter(|_| speeds.len() >= PEERS_MIN);
        watch(id)?.straggler(peers).map(|straggler| reason::straggler(&straggler))
    }
}
