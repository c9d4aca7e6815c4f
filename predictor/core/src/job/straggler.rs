//! Detection of stragglers.

use evenstep_protocol::{StragglerView, WorkerId};

use super::reason;
use super::state::JobState;

/// Minimum number of other workers on the same kind of device for a comparison.
const PEERS_MIN: usize = 2;

impl JobState {
    /// Describes a worker that is slower than before, or slower than others on the same kind of device;
    /// `None` if it is not.
    pub fn straggler(&self, id: &WorkerId) -> Option<StragglerView> {
        let models = self.current_models();
        let own = models.worker(id)?;
        let device = self.workers.get(id)?.request.device.as_ref();
        let is_peer = |other: &&WorkerId| {
            *other != id
                && device.is_some()
                && self.workers.get(*other).and_then(|known| known.request.device.as_ref()) == device
        };
        // Each worker counts work in a unit of its own. The work of one batch converts them.
        let speed = |other: &WorkerId| {
            let other = models.worker(other)?;
            let batch = own.curve.largest().min(other.curve.largest());
            let speed = other.watch.speed()? * own.curve.work(batch) / other.curve.work(batch);
            Some(speed).filter(|speed| speed.is_finite())
        };
        let mut speeds: Vec<f64> = self.members.live().filter(is_peer).filter_map(speed).collect();
        speeds.sort_by(f64::total_cmp);
        // With a single peer, the peer could be the exception.
        let peers = speeds.get(speeds.len() / 2).copied().filter(|_| speeds.len() >= PEERS_MIN);
        own.watch.straggler(peers).map(|straggler| reason::straggler(&straggler))
    }
}
