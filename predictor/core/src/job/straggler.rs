//! The stragglers of a job.

use std::collections::BTreeMap;

use evenstep_protocol::{StragglerView, WorkerId};

use super::reason;
use super::state::JobState;
use super::worker::WorkerModel;

impl JobState {
    /// Describes the live workers that are flagged as stragglers.
    pub fn stragglers(&self) -> BTreeMap<&WorkerId, StragglerView> {
        let straggler = |known: &WorkerModel| {
            let view = reason::straggler(&known.watch.straggler()?);
            let since_iteration = self.attempts.at(view.since_iteration).iteration;
            Some(StragglerView { since_iteration, ..view })
        };
        self.watched().filter_map(|(id, known)| Some((id, straggler(known)?))).collect()
    }

    /// Returns the averaged speed of each live worker as a share of its expected speed: its own best speed or, on a GPU,
    /// the median of its peers if that is larger.
    pub fn expected_speed_ratios(&self) -> BTreeMap<&WorkerId, f64> {
        self.watched().filter_map(|(id, known)| Some((id, known.watch.speed_ratio()?))).collect()
    }

    /// Returns the live workers that have a model.
    fn watched(&self) -> impl Iterator<Item = (&WorkerId, &WorkerModel)> {
        let models = self.current_models();
        self.members.live().filter_map(|id| Some((id, models.worker(id)?)))
    }
}
