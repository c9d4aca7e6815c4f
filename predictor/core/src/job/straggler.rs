//! Detection of stragglers.

use std::collections::BTreeMap;

use evenstep_protocol::{StragglerView, WorkerId};

use super::reason;
use super::state::JobState;
use super::worker::WorkerModel;

/// Minimum number of other workers on the same kind of device for a comparison.
const PEERS_MIN: usize = 2;
/// Beginning of the device of a worker without GPU. The name of a processor does not include the number of cores
/// that a worker has, so workers on processors are not compared with each other.
const PROCESSOR: &str = "cpu";
/// Share of the workers whose earlier slow-downs are usual.
const USUAL: f64 = 0.9;

impl JobState {
    /// Describes the live workers that are slower than their device and their history explain.
    pub fn stragglers(&self) -> BTreeMap<&WorkerId, StragglerView> {
        let compared = self.compared();
        let usual = usual(compared.iter().map(|(_, known, _)| known.watch.longest()).collect());
        let straggler = |(id, known, peers): (_, &WorkerModel, Option<f64>)| {
            Some((id, reason::straggler(&known.watch.straggler(peers, usual)?)))
        };
        compared.into_iter().filter_map(straggler).collect()
    }

    /// Returns the averaged speed of each live worker as a share of its expected speed: its own best speed or, on a GPU,
    /// the median of its peers if that is larger.
    pub fn expected_speed_ratios(&self) -> BTreeMap<&WorkerId, f64> {
        let measured = self.compared().into_iter().filter(|(_, known, _)| known.watch.speed().is_some());
        measured.map(|(id, known, peers)| (id, known.watch.ratio(peers))).collect()
    }

    /// Returns the live workers that have a model, with the median speed of their peers.
    fn compared(&self) -> Vec<(&WorkerId, &WorkerModel, Option<f64>)> {
        let models = self.current_models();
        let measured = self.members.live().filter_map(|id| {
            let (known, device) = (models.worker(id)?, self.workers.get(id)?.request.device.as_deref());
            Some((id, known, device.filter(|device| !device.starts_with(PROCESSOR))))
        });
        let measured: Vec<(&WorkerId, &WorkerModel, Option<&str>)> = measured.collect();
        // Each worker has its own unit of work. The work of a batch that all peers have measured converts the units.
        let mut batches: BTreeMap<&str, u64> = BTreeMap::new();
        for (_, known, device) in &measured {
            if let Some(device) = device.filter(|_| known.watch.speed().is_some()) {
                let least = batches.entry(device).or_insert(u64::MAX);
                *least = known.curve.largest().clamp(1, *least);
            }
        }
        let work = |known: &WorkerModel, device: &str| Some(known.curve.work(*batches.get(device)?));
        let speed = |known: &WorkerModel, device: &str| Some(known.watch.speed()? / work(known, device)?);
        let mut speeds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (_, known, device) in &measured {
            if let Some((device, speed)) = device.and_then(|device| Some((device, speed(known, device)?))) {
                speeds.entry(device).or_default().push(speed);
            }
        }
        speeds.values_mut().for_each(|speeds| speeds.sort_by(f64::total_cmp));
        let peers = |known: &WorkerModel, device: &str| {
            Some(median_without(speeds.get(device)?, speed(known, device))? * work(known, device)?)
        };
        let compared = measured
            .iter()
            .map(|&(id, known, device)| (id, known, device.and_then(|device| peers(known, device))));
        compared.collect()
    }
}

/// Returns the number of iterations of earlier slow-downs that most workers do not exceed; 0 for few workers, because one
/// of them could be the exception.
fn usual(mut longest: Vec<f64>) -> f64 {
    longest.sort_by(f64::total_cmp);
    let at = (longest.len() as f64 * USUAL) as usize;
    longest.get(at).copied().filter(|_| longest.len() > PEERS_MIN).unwrap_or(0.0)
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
