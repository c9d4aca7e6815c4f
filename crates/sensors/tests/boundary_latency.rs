//! CPU time of a reading at the boundary of an iteration, which is on the critical path.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::hint::black_box;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use evenstep_sensors::Boundary;
use nix::time::{ClockId, clock_gettime};

const READINGS: u32 = 2000;
/// Limit of the mean CPU time of a reading without a GPU. Other load on the machine does not count.
const BUDGET: Duration = Duration::from_millis(1);

#[test]
fn a_fresh_reading_costs_well_under_a_millisecond() {
    // Sleeping threads, as many as a training process has.
    let (stop, stopped) = mpsc::channel::<()>();
    let stopped = Arc::new(Mutex::new(stopped));
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let stopped = stopped.clone();
            thread::spawn(move || drop(stopped.lock().map(|stopped| stopped.recv())))
        })
        .collect();
    let mut boundary = Boundary::new(std::process::id());
    boundary.read(Instant::now());
    let begun = cpu_time();
    for _ in 0..READINGS {
        black_box(boundary.read(Instant::now()));
    }
    let mean = (cpu_time() - begun) / READINGS;
    println!("boundary reading with 16 threads: {mean:?} of CPU time");
    drop(stop);
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(mean < BUDGET, "mean CPU time {mean:?}");
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap())
}
