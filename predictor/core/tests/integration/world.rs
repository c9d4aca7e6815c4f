//! A job in closed loop: its workers follow known laws of time.

use std::collections::{BTreeMap, VecDeque};

use evenstep_core::job::{JobState, Models, Restored, WorkerState, controller};
use evenstep_core::membership::{Member, State};
use evenstep_protocol::{Hedge, JobSpec, JoinRequest, WorkerId};
use rand::{Rng, RngExt};

/// Seconds for a sample.
pub const UNIT_S: f64 = 5e-4;
/// Compute time of a worker over its number of samples.
#[derive(Debug, Clone, Copy)]
pub enum Law {
    /// A fixed time, and a time for each sample.
    Affine { fixed_s: f64, slowness: f64 },
    /// Flat up to this number of samples, then proportional.
    Flat { until: u64, slowness: f64 },
    /// Tiles of this number of samples, whether they are full or not.
    Tiles { tile: u64, slowness: f64 },
}

use Law::{Affine, Flat, Tiles};

impl Law {
    pub fn time_s(self, samples: u64) -> f64 {
        match self {
            _ if samples == 0 => 0.0,
            Affine { fixed_s, slowness } => fixed_s + slowness * UNIT_S * samples as f64,
            Flat { until, slowness } => slowness * UNIT_S * samples.max(until) as f64,
            Tiles { tile, slowness } => slowness * UNIT_S * (samples.div_ceil(tile) * tile) as f64,
        }
    }
}

pub fn affine(fixed_s: f64, slowness: f64) -> Law {
    Affine { fixed_s, slowness }
}

pub fn flat(until: u64, slowness: f64) -> Law {
    Flat { until, slowness }
}

pub fn tiles(tile: u64, slowness: f64) -> Law {
    Tiles { tile, slowness }
}

pub fn plain(global_batch: u64) -> JobSpec {
    JobSpec { hedge: Hedge::Off, ..JobSpec::new(global_batch) }
}

pub fn worker(rank: usize) -> WorkerId {
    WorkerId::new(format!("node/{rank}")).unwrap()
}

pub fn job(spec: JobSpec, workers: usize) -> JobState {
    let member = |rank| Member {
        id: worker(rank),
        state: State::Live,
        last_seen_ms: 0,
        departures_ms: VecDeque::new(),
    };
    let known = |rank| (worker(rank), WorkerState::new(JoinRequest::new(worker(rank))));
    JobState::restore(Restored {
        kept_from: 0,
        generation: 1,
        departed_generation: 0,
        members: (0..workers).map(member).collect(),
        workers: BTreeMap::from_iter((0..workers).map(known)),
        models: Models::new(),
        learning_rate: controller(&spec).unwrap(),
        last_iteration: None,
        last_allocation: None,
        spec,
    })
}

/// Returns a random number with mean 0 and variance 1.
pub fn normal(random: &mut impl Rng) -> f64 {
    (0..12).map(|_| random.random_range(0.0..1.0)).sum::<f64>() - 6.0
}
