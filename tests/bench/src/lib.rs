//! Data of the benchmarks, drawn from a seed, so that every run does the same work.

use evenstep_core::series::{DriverSet, Observation};
use ndarray::{Array1, Array2};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Names of drivers, those with a role first. A job with `n` drivers has the first `n`.
const DRIVERS: [&str; 16] = [
    "psi_cpu_some",
    "run_queue_wait",
    "own_cpu",
    "other_cpu",
    "voluntary_switches_per_s",
    "procs_running",
    "procs_blocked",
    "sm_clock_mhz",
    "memory_used",
    "power_w",
    "temperature_c",
    "load_1m",
    "interrupts_per_s",
    "forks_per_s",
    "page_faults_per_s",
    "network_bytes_per_s",
];

/// Maximum number of drivers of a trace.
pub const DRIVERS_MAX: usize = DRIVERS.len();

/// One iteration of a worker: the readings before it, and the observation.
#[derive(Debug, Clone)]
pub struct Iteration {
    /// Readings in the order of the trace's drivers.
    pub readings: Vec<Option<f64>>,
    /// Number of samples and time.
    pub seen: Observation,
}

/// The generated trace of a worker with intermittent contention.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Names of the drivers.
    pub drivers: DriverSet,
    /// Iterations in order.
    pub iterations: Vec<Iteration>,
}

impl Trace {
    /// Creates a trace with these numbers of rows and drivers, at most [`DRIVERS_MAX`].
    pub fn new(rows: usize, drivers: usize, seed: u64) -> Self {
        let names = &DRIVERS[..drivers.min(DRIVERS_MAX)];
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut contended, mut level) = (false, 0.0f64);
        let iterations = (0..rows).filter_map(|_| {
            contended ^= rng.random::<f64>() < 0.05;
            level = 0.8 * level + if contended { 0.12 } else { 0.0 } + 0.05 * (rng.random::<f64>() - 0.5);
            let reading = |at: usize, rng: &mut ChaCha8Rng| {
                let scale = 1.0 + at as f64;
                // As on a real node, a few readings are missing.
                let noise: f64 = rng.random();
                (noise > 0.01).then_some(scale * (0.2 + level.abs() + 0.1 * noise))
            };
            let readings = (0..names.len()).map(|at| reading(at, &mut rng)).collect();
            let batch = (64 + 8 * rng.random_range(0..5)) as f64;
            let speed = 200.0 * (0.1 * (rng.random::<f64>() - 0.5) - level).exp();
            Some(Iteration { readings, seen: Observation::new(batch, batch / speed)? })
        });
        let iterations = iterations.collect();
        Self { drivers: DriverSet::new(names.iter().copied()), iterations }
    }
}

/// Returns regressors uniform in -1..1, and targets that depend on the first few of them: partly linear,
/// partly not.
pub fn table(rows: usize, width: usize, seed: u64) -> (Array2<f64>, Array1<f64>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let regressors = Array2::from_shape_simple_fn((rows, width), || 2.0 * rng.random::<f64>() - 1.0);
    let targets = regressors.rows().into_iter().map(|row| {
        let linear: f64 = row.iter().enumerate().map(|(at, x)| x / (1.0 + at as f64)).sum();
        let curved = row.iter().take(2).map(|x| (2.0 * x).tanh()).product::<f64>();
        linear + curved + 0.1 * (rng.random::<f64>() - 0.5)
    });
    let targets = targets.collect();
    (regressors, targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_does_the_same_work() {
        let (one, other) = (Trace::new(200, 6, 1), Trace::new(200, 6, 1));
        assert_eq!(one.iterations.len(), 200);
        for (a, b) in one.iterations.iter().zip(&other.iterations) {
            assert_eq!((&a.readings, a.seen), (&b.readings, b.seen));
        }
        assert_eq!(table(50, 12, 1), table(50, 12, 1));
        assert_ne!(table(50, 12, 1), table(50, 12, 2));
    }

    /// A trace has the speeds of a worker and readings of every driver, a few of them missing.
    #[test]
    fn a_trace_is_like_a_workers() {
        let trace = Trace::new(500, DRIVERS_MAX, 7);
        assert_eq!(trace.drivers.len(), DRIVERS_MAX);
        let speeds: Vec<f64> = trace.iterations.iter().map(|iteration| iteration.seen.speed()).collect();
        assert!(speeds.iter().all(|speed| (50.0..300.0).contains(speed)), "{speeds:?}");
        let readings = trace.iterations.iter().flat_map(|iteration| &iteration.readings);
        let missing = readings.clone().filter(|reading| reading.is_none()).count();
        assert!(readings.count() == 500 * DRIVERS_MAX && (1..500).contains(&missing), "{missing} missing");
    }
}
