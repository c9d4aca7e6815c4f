//! The iterations at the start of a job that measure batch curves.

use evenstep_protocol::WorkerId;

use super::state::JobState;
use crate::plan::profile::{STEPS_MAX, profile};

impl JobState {
    /// Returns the batches by rank of the profile's iterations. Empty if the job has no profile, if it has
    /// `allowed_sizes`, or if `from` is after the maximum length of a profile.
    pub(super) fn profile(&self, from: u64) -> Vec<Vec<u64>> {
        if !self.spec.profile || !self.spec.allowed_sizes.is_empty() || from >= STEPS_MAX as u64 {
            return Vec::new();
        }
        let bounds = |id: &WorkerId| {
            let bounds = self.bounds(id);
            (bounds.floor, bounds.cap)
        };
        let bounds: Vec<(u64, Option<u64>)> = self.members.live().map(bounds).collect();
        profile(&bounds, self.global_batch(), self.spec.quantum)
    }
}
