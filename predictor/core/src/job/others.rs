//! Comparison of the workers of an iteration, for the detection of stragglers.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenstep_protocol::WorkerId;

use super::worker::{DeviceOf, WorkerModel};
use crate::curve::Uncertain;
use crate::parallel;
use crate::shared::SharedMap;
use crate::straggler::{LogRatio, Others, Pace, Vote, doubt};

/// Minimum number of other workers on the same kind of device for a comparison.
const PEERS_MIN: usize = 2;
/// Beginning of the device of a worker without GPU. The name of a processor does not include the number of cores
/// that a worker has, so workers on processors are not compared with each other.
const PROCESSOR: &str = "cpu";
/// Minimum number of workers whose earlier slow-downs are compared, because one of few could be the exception.
const SWAYING_MIN: usize = 10;
/// Share of the workers that do not exceed usual slow-downs, if most workers have had one.
const USUAL: f64 = 0.9;

/// One worker in an iteration.
pub struct Compared<'a> {
    /// The worker.
    pub worker: &'a WorkerId,
    /// Its pace.
    pub pace: Pace,
    /// Its ratio to its own best speed.
    pub own: LogRatio,
    /// Its vote on the work of all; `None` if a reading explains its ratio.
    pub vote: Option<Vote>,
}

/// Returns for each of these workers, in their order, the facts about the others. `common` is the log of the
/// ratio to their best speeds that they have in common.
pub fn others(
    compared: &[Compared<'_>],
    common: f64,
    models: &SharedMap<WorkerId, WorkerModel>,
    device: DeviceOf<'_>,
) -> Vec<Others> {
    let workers: Vec<&WorkerId> = compared.iter().map(|one| one.worker).collect();
    let known = parallel::find(models, &workers);
    let longest = |known: &Option<&Arc<WorkerModel>>| known.map_or(0.0, |known| known.watch.longest());
    let longest: Vec<f64> = known.iter().map(longest).collect();
    let swaying = longest.iter().filter(|longest| **longest > 0.0).count();
    let are_usual = compared.len() >= SWAYING_MIN && 2 * swaying > compared.len();
    let sways = quantile(longest, USUAL).filter(|_| are_usual).unwrap_or(0.0);
    let mut others = vec![Others { peers: None, common, sways }; compared.len()];
    let mut devices: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, (one, known)) in compared.iter().zip(known).enumerate() {
        let joined = known.and_then(|known| known.joined());
        if let Some(device) = device(one.worker, joined).filter(|device| !device.starts_with(PROCESSOR)) {
            devices.entry(device).or_default().push(at);
        }
    }
    for peers in devices.values().filter(|peers| peers.len() > PEERS_MIN) {
        let paces: Vec<(&WorkerId, &Pace)> =
            peers.iter().map(|at| (compared[*at].worker, &compared[*at].pace)).collect();
        for (at, ratio) in peers.iter().zip(to_median(&paces, models)) {
            others[*at].peers = Some(ratio);
        }
    }
    others
}

/// Returns the ratio of each worker's speed to the median of the others, at the median number of samples.
fn to_median(paces: &[(&WorkerId, &Pace)], models: &SharedMap<WorkerId, WorkerModel>) -> Vec<LogRatio> {
    let mut samples: Vec<u64> = paces.iter().map(|(_, pace)| pace.samples).collect();
    samples.sort_unstable();
    let samples = samples[(samples.len() - 1) / 2];
    let speeds: Vec<LogRatio> = parallel::map(paces, |(worker, pace)| {
        let exact = Uncertain { mean: 1.0, deviation: 0.0 };
        let time = models.get(*worker).map_or(exact, |known| known.curve.ratio(pace.samples.max(1), samples));
        let work = models.get(*worker).map_or(1.0, |known| known.curve.work(pace.samples));
        let log_time = work.ln() - pace.log_speed + time.mean.ln();
        LogRatio { mean: pace.readings.log_busy() - log_time, doubt: doubt(time, pace.samples, samples) }
    });
    let mut sorted = speeds.clone();
    sorted.sort_by(|one, other| one.mean.total_cmp(&other.mean));
    let ratio = |own: &LogRatio| {
        let at = sorted.partition_point(|speed| speed.mean.total_cmp(&own.mean).is_lt());
        // Of two others the slower one, because a single fast GPU does not make two slow ones.
        let middle = (sorted.len() - 2) / 2;
        let median = sorted[if at <= middle { middle + 1 } else { middle }];
        LogRatio { mean: own.mean - median.mean, doubt: own.doubt + median.doubt }
    };
    speeds.iter().map(ratio).collect()
}

/// Returns the least value that this share of the values does not exceed; `None` without values.
pub fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    let at = ((values.len() as f64 * share).ceil() as usize).saturating_sub(1);
    (at < values.len()).then(|| *values.select_nth_unstable_by(at, f64::total_cmp).1)
}
