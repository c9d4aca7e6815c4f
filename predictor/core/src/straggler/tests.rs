use super::*;
use crate::curve::CurveLearner;

/// A worker that computes the same number of samples in each iteration, with 5 % of noise.
struct Worker {
    detector: StragglerDetector,
    curve: CurveLearner,
    iteration: u64,
}

impl Worker {
    fn new() -> Self {
        Self { detector: StragglerDetector::default(), curve: CurveLearner::new(), iteration: 0 }
    }

    /// Computes iterations of this time at full speed, and returns in which it was flagged.
    fn run(
        &mut self,
        count: u64,
        speed: f64,
        full_s: f64,
        readings: StragglerReadings,
        others: Others,
    ) -> Vec<bool> {
        let one = |_| {
            self.iteration += 1;
            let noise = 1.0 + 0.05 * ((self.iteration * 7919 % 21) as f64 / 10.0 - 1.0);
            let compute_s = full_s / speed * noise;
            let log_speed = (32.0 / compute_s).ln();
            let pace = Pace { iteration: self.iteration, log_speed, samples: 32, compute_s, readings };
            let own = self.detector.ratio_to_best(&pace, &self.curve);
            self.detector.observe(&pace, own, &others);
            self.detector.straggler().is_some()
        };
        (0..count).map(one).collect()
    }

    fn plain(&mut self, count: u64, speed: f64) -> Vec<bool> {
        self.run(count, speed, 1.0, StragglerReadings::default(), Others::default())
    }
}

fn any(flagged: &[bool]) -> bool {
    flagged.contains(&true)
}

fn all(flagged: &[bool]) -> bool {
    !flagged.contains(&false)
}

#[test]
fn noise_is_not_slow_and_half_speed_is() {
    let mut worker = Worker::new();
    assert!(!any(&worker.plain(500, 1.0)));
    let flagged = worker.plain(5000, 0.5);
    assert!(!any(&flagged[..10]) && all(&flagged[12..]), "{:?}", flagged.iter().position(|is| *is));
    let straggler = worker.detector.straggler().unwrap();
    assert_eq!((straggler.cause, straggler.since, straggler.is_measured), (Cause::Unknown, 501, false));
    assert!((straggler.speed_ratio - 0.5).abs() < 0.05, "{straggler:?}");
    let after = worker.plain(100, 1.0);
    assert!(after[0] && !any(&after[40..]), "{:?}", after.iter().position(|is| !is));
    assert!(any(&worker.plain(20, 0.5)), "again");
}

#[test]
fn short_iterations_must_be_slow_for_a_while() {
    let mut worker = Worker::new();
    let mut run =
        |count, speed| worker.run(count, speed, 0.01, StragglerReadings::default(), Others::default());
    run(200, 1.0);
    assert!(!any(&run(40, 0.5)), "slow for 0.8 s");
    run(100, 1.0);
    assert!(any(&run(70, 0.5)), "slow for 1.4 s");
}

#[test]
fn one_long_pause_is_no_slow_down() {
    let mut worker = Worker::new();
    worker.plain(200, 1.0);
    for _ in 0..20 {
        assert!(!any(&worker.plain(1, 0.01)) && !any(&worker.plain(9, 1.0)));
    }
}

/// The history of a worker whose speed sways explains slow-downs that are not longer than earlier ones.
#[test]
fn speeds_that_sway_are_explained_by_history() {
    let mut worker = Worker::new();
    worker.plain(200, 1.0);
    let flagged: Vec<bool> = (0..20)
        .map(|_| {
            let slow = any(&worker.plain(100, 0.5));
            worker.plain(100, 1.0);
            slow
        })
        .collect();
    assert!(all(&flagged[..3]) && !any(&flagged[3..]), "{flagged:?}");
    assert!(any(&worker.plain(300, 0.5)), "this slow-down is longer than those before");
}

#[test]
fn no_history_explains_ten_minutes() {
    let mut worker = Worker::new();
    let mut run =
        |count, speed| worker.run(count, speed, 10.0, StragglerReadings::default(), Others::default());
    run(200, 1.0);
    for _ in 0..3 {
        assert!(any(&run(40, 0.5)));
        run(100, 1.0);
    }
    assert!(!any(&run(25, 0.5)) && any(&run(15, 0.5)), "the fourth time, for 500 s and 800 s");
}

#[test]
fn slow_downs_that_most_workers_have_are_usual() {
    let mut worker = Worker::new();
    worker.plain(200, 1.0);
    let others = Others { sways: 60.0, ..Others::default() };
    let mut run = |count| worker.run(count, 0.5, 1.0, StragglerReadings::default(), others);
    assert!(!any(&run(115)), "most other workers are slow for 60 iterations at times");
    assert!(any(&run(10)));
}

/// All workers are slower, because their work has grown.
#[test]
fn what_all_workers_share_is_no_slowness() {
    let grown = Others { common: 0.5_f64.ln(), ..Others::default() };
    let mut worker = Worker::new();
    worker.plain(200, 1.0);
    assert!(!any(&worker.run(100, 0.5, 1.0, StragglerReadings::default(), grown)));
    assert!(any(&worker.run(20, 0.25, 1.0, StragglerReadings::default(), grown)), "slower than all others");
}

/// An agent may be started in a slow-down, and a worker without one may report its waits for data.
#[test]
fn it_is_known_whether_an_agent_measures_a_slow_worker() {
    let mut worker = Worker::new();
    let mut is_measured = |readings| {
        worker.run(100, 1.0, 1.0, StragglerReadings::default(), Others::default());
        worker.run(100, 0.5, 1.0, readings, Others::default());
        worker.detector.straggler().unwrap().is_measured
    };
    let none = StragglerReadings::default();
    assert!(!is_measured(StragglerReadings { loader_share: Some(0.1), ..none }));
    assert!(is_measured(StragglerReadings { cpu_stall: Some(0.01), ..none }));
}

/// The readings of a slow worker do not become normal, however long it is slow.
#[test]
fn causes() {
    let cause = |well: StragglerReadings, ill: StragglerReadings, speed: f64| {
        let mut worker = Worker::new();
        worker.run(100, 1.0, 1.0, well, Others::default());
        worker.run(3000, speed, 1.0, ill, Others::default());
        worker.detector.straggler().map(|straggler| straggler.cause)
    };
    let none = StragglerReadings::default();
    let clock = |mhz, celsius| StragglerReadings {
        sm_clock_mhz: Some(mhz),
        gpu_temperature_celsius: Some(celsius),
        ..none
    };
    assert!(matches!(
        cause(clock(1980.0, 60.0), clock(1200.0, 91.0), 0.6),
        Some(Cause::Throttling { clock_ratio, celsius: Some(_) }) if clock_ratio < 0.7
    ));
    let memory = StragglerReadings { memory_stall: Some(0.4), cpu_stall: Some(0.3), ..none };
    assert!(matches!(cause(none, memory, 0.5), Some(Cause::MemoryPressure { .. })));
    let [idle, busy] = [0.05, 0.7].map(|share| StragglerReadings { cpu_stall: Some(share), ..none });
    assert!(matches!(cause(idle, busy, 0.5), Some(Cause::CpuContention { waiting, .. }) if waiting > 0.5));
    let limited = StragglerReadings { cpu_throttled: Some(0.6), ..busy };
    assert!(matches!(
        cause(idle, limited, 0.5),
        Some(Cause::CpuContention { waiting, throttled: Some(_) }) if waiting > 0.6
    ));
    let loader = StragglerReadings { loader_share: Some(0.5), ..none };
    assert!(matches!(cause(none, loader, 1.0), Some(Cause::LoaderWait { .. })));
    assert_eq!(cause(none, none, 1.0), None);
    assert_eq!(cause(none, none, 0.5), Some(Cause::Unknown));
}
