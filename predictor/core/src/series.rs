//! What was seen of a worker in one iteration, and the drivers read at its end.

/// Drivers that forecasts take as exogenous inputs, in the order of [`Drivers`].
///
/// Chosen by measurement on recorded traces: stall and wait shares and the CPU time of others say most about the
/// coming iteration; utilisation saturates and load averages lag. On GPUs the SM clock shows throttling.
pub const DRIVER_NAMES: [&str; DRIVERS] =
    ["psi_cpu_some", "run_queue_wait", "other_cpu", "own_cpu", "voluntary_switches_per_s", "sm_clock_mhz"];

/// How many drivers there are.
pub const DRIVERS: usize = 6;

/// Driver readings in the order of [`DRIVER_NAMES`]; `None` where a reading is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Drivers(pub [Option<f64>; DRIVERS]);

impl Drivers {
    /// Takes the known drivers from readings by name; a reading that is not finite counts as missing.
    pub fn from_readings<'a>(readings: impl IntoIterator<Item = (&'a str, f64)>) -> Self {
        let mut drivers = Self::default();
        for (name, value) in readings {
            if let Some(at) = DRIVER_NAMES.iter().position(|known| *known == name) {
                drivers.0[at] = value.is_finite().then_some(value);
            }
        }
        drivers
    }

    /// Names of the missing drivers.
    pub fn missing(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().zip(DRIVER_NAMES).filter(|(value, _)| value.is_none()).map(|(_, name)| name)
    }
}

/// One iteration of one worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Samples computed, at least 1.
    pub batch: u64,
    /// Time to compute them in seconds, without any waiting; positive and finite.
    pub compute_time_s: f64,
    /// Drivers read at the end of the compute: inputs of the next iteration's forecast.
    pub drivers: Drivers,
}

impl Observation {
    /// An observation, or `None` where it says nothing about speed (no samples, or a time that is not positive and
    /// finite).
    pub fn new(batch: u64, compute_time_s: f64, drivers: Drivers) -> Option<Self> {
        let speed = batch as f64 / compute_time_s;
        (speed.is_finite() && speed > 0.0).then_some(Self { batch, compute_time_s, drivers })
    }

    /// Samples per second of compute time.
    pub fn speed(&self) -> f64 {
        self.batch as f64 / self.compute_time_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_find_their_place_and_holes_stay_holes() {
        let drivers = Drivers::from_readings([
            ("own_cpu", 0.5),
            ("unknown", 1.0),
            ("other_cpu", f64::NAN),
            ("psi_cpu_some", 0.0),
        ]);
        assert_eq!(drivers.0, [Some(0.0), None, None, Some(0.5), None, None]);
        assert_eq!(
            drivers.missing().collect::<Vec<_>>(),
            ["run_queue_wait", "other_cpu", "voluntary_switches_per_s", "sm_clock_mhz"]
        );
    }

    #[test]
    fn what_says_nothing_about_speed_is_no_observation() {
        let none = Drivers::default();
        for (batch, time) in [(0, 0.1), (8, 0.0), (8, f64::NAN), (8, f64::INFINITY), (8, -1.0), (0, 0.0)] {
            assert_eq!(Observation::new(batch, time, none), None, "{batch} {time}");
        }
        assert_eq!(Observation::new(8, 0.5, none).unwrap().speed(), 16.0);
    }
}
