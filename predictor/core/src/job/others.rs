//! Comparison of the workers of an iteration, for the detection of stragglers.

use std::collections::BTreeMap;

use evenstep_protocol::WorkerId;

use super::state::WorkerState;
use super::worker::WorkerModel;
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
    /// The position of its models.
    pub at: usize,
    /// Its other state, if it is known.
    pub state: Option<&'a WorkerState>,
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
) -> Vec<Others> {
    let longest: Vec<f64> = compared.iter().map(|one| models.at(one.at).watch.longest()).collect();
    let swaying = longest.iter().filter(|longest| **longest > 0.0).count();
    let are_usual = compared.len() >= SWAYING_MIN && 2 * swaying > compared.len();
    let sways = quantile(longest, USUAL).filter(|_| are_usual).unwrap_or(0.0);
    let mut others = vec![Others { peers: None, common, sways }; compared.len()];
    let mut devices: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, one) in compared.iter().enumerate() {
        let device = one.state.and_then(|state| state.device(models.at(one.at).joined()));
        if let Some(device) = device.filter(|device| !device.starts_with(PROCESSOR)) {
            devices.entry(device).or_default().push(at);
        }
    }
    for peers in devices.values().filter(|peers| peers.len() > PEERS_MIN) {
        let paces: Vec<_> =
            peers.iter().map(|at| (models.at(compared[*at].at), &compared[*at].pace)).collect();
        for (at, ratio) in peers.iter().zip(to_median(&paces)) {
            others[*at].peers = Some(ratio);
        }
    }
    others
}

/// Returns the ratio of each worker's speed to the median of the others, at the median number of samples.
fn to_median(paces: &[(&WorkerModel, &Pace)]) -> Vec<LogRatio> {
    let mut samples: Vec<u64> = paces.iter().map(|(_, pace)| pace.samples).collect();
    samples.sort_unstable();
    let samples = samples[(samples.len() - 1) / 2];
    let speeds: Vec<LogRatio> = parallel::map(paces, |(known, pace)| {
        let time = known.curve.ratio(pace.samples.max(1), samples);
        let work = known.curve.work(pace.samples);
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
