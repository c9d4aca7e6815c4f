//! Synthetic readings for trying the system without a cluster. They are plausible, depend only on the seed,
//! and are marked as synthetic so that they are never used for forecasts.

use std::f64::consts::TAU;
use std::time::Duration;

use evenstep_protocol::{NodeSample, driver};
use evenstep_sensors::Reading;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Autocorrelation of the noise from one reading to the next.
const NOISE_MEMORY: f64 = 0.8;
/// Cores of the synthetic machine.
const CORES: f64 = 8.0;
/// Memory of the synthetic machine, in bytes.
const MEMORY_BYTES: f64 = 32.0 * (1_u64 << 30) as f64;
/// Period of the synthetic background load, in seconds.
const PERIOD_S: f64 = 60.0;

/// A synthetic machine.
#[derive(Debug)]
pub struct SyntheticMachine {
    random: ChaCha8Rng,
    phase: f64,
    noise: f64,
    last: Option<Duration>,
}

impl SyntheticMachine {
    /// Creates a machine that depends only on `seed`.
    pub fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let phase = random.random_range(0.0..1.0);
        Self { random, phase, noise: 0.0, last: None }
    }

    /// Returns the readings at time `elapsed` after the start.
    pub fn read(&mut self, elapsed: Duration, at_unix_ms: i64) -> NodeSample {
        let window_s = self
            .last
            .replace(elapsed)
            .map(|last| elapsed.saturating_sub(last).as_secs_f64())
            .filter(|s| *s > 0.0);
        let wave = 0.5 + 0.5 * (TAU * (elapsed.as_secs_f64() / PERIOD_S + self.phase)).sin();
        self.noise = NOISE_MEMORY * self.noise + self.random.random_range(-0.05..0.05);
        let load = (0.15 + 0.6 * wave + self.noise).clamp(0.0, 1.0);
        let waiting = (load - 0.5).max(0.0);
        let mut reading = Reading::default();
        for (name, value) in [
            (driver::CPU_BUSY, load),
            ("cpu_iowait", 0.01 * (1.0 - load)),
            ("cpu_steal", 0.02 * load),
            (driver::PSI_CPU_SOME, waiting),
            (driver::PSI_MEMORY_SOME, 0.0),
            (driver::PSI_IO_SOME, 0.005 * load),
            (driver::PROCS_RUNNING, (1.0 + CORES * load).round()),
            ("load_1m", CORES * load),
            ("context_switches_per_s", 2000.0 + 18_000.0 * load),
            (driver::MEMORY_USED, 0.4 + 0.1 * wave),
            ("memory_available_bytes", MEMORY_BYTES * (0.6 - 0.1 * wave)),
            ("memory_total_bytes", MEMORY_BYTES),
        ] {
            reading.put(name, Ok(value));
        }
        let Reading { readings, missing, .. } = reading;
        NodeSample { at_unix_ms, window_s, synthetic: true, readings, missing, ..NodeSample::default() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_seed_determines_the_result_and_shares_are_shares(seed: u64, steps_ms in prop::collection::vec(1_u64..5000, 1..40)) {
            let (mut one, mut other) = (SyntheticMachine::new(seed), SyntheticMachine::new(seed));
            let mut elapsed = Duration::ZERO;
            for step in steps_ms {
                elapsed += Duration::from_millis(step);
                let sample = one.read(elapsed, 7);
                prop_assert_eq!(&sample, &other.read(elapsed, 7));
                prop_assert!(sample.synthetic);
                for name in [driver::CPU_BUSY, driver::PSI_CPU_SOME, driver::MEMORY_USED] {
                    prop_assert!((0.0..=1.0).contains(&sample.readings[name]));
                }
            }
        }
    }
}
