//! Observations of a worker: its iterations, and the drivers read between them.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Speeds, and times of an iteration in seconds, that can be learned. Others come from a wrong clock, and would overflow
/// sums and products of many iterations.
pub const LEARNABLE: RangeInclusive<f64> = 1e-30..=1e30;
/// Limit of the logarithm of a learned speed.
pub const LOG_SPEED_MAX: f64 = 70.0;
/// Limit of the magnitude of a reading. Larger ones count as missing.
pub const READING_MAX: f64 = 1e30;
/// Maximum of a count in stored models, so that later additions do not overflow.
pub(crate) const COUNT_MAX: u64 = 1 << 53;

/// The known meaning of a driver. Forecasts use some drivers by their meaning; for example, a share of CPU
/// time divides speed into share and efficiency. Drivers without a role are used as plain numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Share of time in which at least one task waited for a core.
    CpuStall,
    /// Time that the worker's threads waited for a core, per second.
    RunQueueWait,
    /// CPU time of the worker, in cores.
    OwnCpu,
    /// CPU time of all other processes, in cores.
    OtherCpu,
    /// Voluntary context switches of the worker, per second.
    VoluntarySwitches,
    /// Number of runnable tasks at the time of reading.
    ProcsRunning,
    /// Number of tasks blocked on I/O at the time of reading.
    ProcsBlocked,
    /// SM clock of the worker's GPU; shows throttling.
    SmClock,
    /// Barrier wait at the end of the worker's previous iteration, in seconds.
    BarrierWait,
}

/// Names of drivers that have a role: current names, and names in older traces.
const ROLES: [(&str, Role); 13] = [
    ("psi_cpu_some", Role::CpuStall),
    ("psi_cpu_d", Role::CpuStall),
    ("run_queue_wait", Role::RunQueueWait),
    ("self_wait", Role::RunQueueWait),
    ("own_cpu", Role::OwnCpu),
    ("self_cpu", Role::OwnCpu),
    ("other_cpu", Role::OtherCpu),
    ("voluntary_switches_per_s", Role::VoluntarySwitches),
    ("vcsw_s", Role::VoluntarySwitches),
    ("procs_running", Role::ProcsRunning),
    ("procs_blocked", Role::ProcsBlocked),
    ("sm_clock_mhz", Role::SmClock),
    ("barrier_wait_s", Role::BarrierWait),
];

/// Maximum number of drivers in forecasts. More drivers would slow down updates and weaken each coefficient.
pub const DRIVERS_MAX: usize = 64;

/// The drivers of a job, in the order of its readings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DriverSet {
    names: Vec<String>,
}

impl DriverSet {
    /// Creates a set of drivers by name. Drivers beyond [`DRIVERS_MAX`] are ignored.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { names: names.into_iter().map(Into::into).take(DRIVERS_MAX).collect() }
    }

    /// Returns the names of the drivers.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the number of drivers.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the role of each driver, by position. If two drivers have the same role, the first one gets
    /// it.
    pub fn roles(&self) -> Vec<Option<Role>> {
        let mut roles: Vec<Option<Role>> = Vec::with_capacity(self.len());
        for name in &self.names {
            let role = ROLES.iter().find(|(known, _)| known == name).map(|(_, role)| *role);
            roles.push(role.filter(|role| !roles.contains(&Some(*role))));
        }
        roles
    }

    /// Returns readings in the order of the set: `None` if a reading is missing or beyond [`READING_MAX`].
    pub fn readings<'a>(&self, readings: impl IntoIterator<Item = (&'a str, f64)>) -> Vec<Option<f64>> {
        let mut ordered = vec![None; self.len()];
        for (name, value) in readings {
            if let Some(at) = self.names.iter().position(|known| known == name) {
                ordered[at] = (value.abs() <= READING_MAX).then_some(value);
            }
        }
        ordered
    }
}

/// One iteration of one worker.
///
/// # Examples
/// ```
/// use evenstep_core::series::Observation;
///
/// assert_eq!(Observation::new(64.0, 0.25).map(|seen| seen.speed()), Some(256.0));
/// assert_eq!(Observation::new(0.0, 0.25), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Number of samples computed; positive and finite.
    pub batch: f64,
    /// Compute time in seconds, without any waiting; in the range [`LEARNABLE`].
    pub compute_time_s: f64,
}

impl Observation {
    /// Returns an observation, or `None` if no speed can be learned from the values: no samples, or a time or speed
    /// that is not [`LEARNABLE`].
    pub fn new(batch: f64, compute_time_s: f64) -> Option<Self> {
        let learnable =
            [compute_time_s, batch / compute_time_s].iter().all(|value| LEARNABLE.contains(value));
        (batch > 0.0 && learnable).then_some(Self { batch, compute_time_s })
    }

    /// Returns the speed in samples per second of compute time.
    pub fn speed(&self) -> f64 {
        self.batch / self.compute_time_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_find_their_place_and_holes_stay_holes() {
        let set = DriverSet::new(["psi_cpu_some", "other_cpu", "own_cpu"]);
        let readings = set.readings([
            ("own_cpu", 0.5),
            ("unknown", 1.0),
            ("other_cpu", f64::NAN),
            ("psi_cpu_some", 0.0),
        ]);
        assert_eq!(readings, [Some(0.0), None, Some(0.5)]);
    }

    #[test]
    fn a_role_is_given_once() {
        let set = DriverSet::new(["psi_cpu_d", "temperature", "psi_cpu_some", "self_cpu"]);
        assert_eq!(set.roles(), [Some(Role::CpuStall), None, None, Some(Role::OwnCpu)]);
    }

    #[test]
    fn reports_without_speed_are_not_observations() {
        let times = [0.0, f64::NAN, f64::INFINITY, -1.0, f64::MIN_POSITIVE, f64::MAX].map(|time| (8.0, time));
        for (batch, time) in times.into_iter().chain([(0.0, 0.1), (-8.0, -1.0), (1e20, 1e-20)]) {
            assert_eq!(Observation::new(batch, time), None, "{batch} {time}");
        }
        assert_eq!(Observation::new(8.0, 0.5).unwrap().speed(), 16.0);
    }
}
