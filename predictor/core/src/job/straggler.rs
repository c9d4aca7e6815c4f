//! Detection of stragglers.

use std::collections::BTreeMap;

use evenstep_protocol::{StragglerView, WorkerId};

use super::reason;
use super::state::JobState;
use crate::straggler::StragglerDetector;

/// Minimum number of other workers on the same kind of device for a comparison.
const PEERS_MIN: usize = 2;

impl JobState {
    /// Describes the live workers that are slower than before, or slower than others on the same kind of
    /// device.
    pub fn stragglers(&self) -> BTreeMap<&WorkerId, StragglerView> {
        let watch = |id: &WorkerId| Some(&self.models.worker(id)?.watch);
        let device = |id: &WorkerId| self.workers.get(id)?.request.device.as_deref();
        let mut speeds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for id in self.members.live() {
            if let (Some(device), Some(speed)) = (device(id), watch(id).and_then(StragglerDetector::speed)) {
                speeds.entry(device).or_default().push(speed);
            }
        }
        speeds.values_mut().for_each(|speeds| speeds.sort_by(f64::total_cmp));
        let straggler = |id| {
            let watch = watch(id)?;
            let speeds = device(id).and_then(|device| speeds.get(device)).map_or(&[][..], Vec::as_slice);
            let straggler = watch.straggler(median_without(speeds, watch.speed()))?;
            Some((id, reason::straggler(&straggler)))
        };
        self.members.live().filter_map(straggler).collect()
    }
}

/// Returns the median of the other workers' speeds: of these ascending speeds without `own`. `None` if fewer than
/// [`PEERS_MIN`] remain, because a single peer could be the exception.
fn median_without(speeds: &[f64], own: Option<f64>) -> Option<f64> {
    let own = own.and_then(|own| speeds.binary_search_by(|speed| speed.total_cmp(&own)).ok());
    let others = speeds.len() - usize::from(own.is_some());
    let middle = others / 2;
    let middle = if own.is_some_and(|own| own <= middle) { middle + 1 } else { middle };
    speeds.get(middle).copied().filter(|_| others >= PEERS_MIN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with the median of a list from which the worker was removed.
        #[test]
        fn the_median_excludes_the_worker(mut speeds in prop::collection::vec(0u8..20, 0..12), at in 0usize..12) {
            speeds.sort_unstable();
            let speeds: Vec<f64> = speeds.into_iter().map(f64::from).collect();
            let own = speeds.get(at).copied();
            let mut others = speeds.clone();
            if own.is_some() {
                others.remove(at);
            }
            let expected = (others.len() >= PEERS_MIN).then(|| others[others.len() / 2]);
            prop_assert_eq!(median_without(&speeds, own), expected);
        }
    }
}
