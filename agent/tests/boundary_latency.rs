//! Duration of a reading at the boundary of an iteration, which is on the critical path.

use std::time::{Duration, Instant};

use evenstep_agent::Boundary;

const READINGS: usize = 2000;
/// Limit for a reading without a GPU. Applies to the median, since other load on a shared machine affects the
/// tail.
const BUDGET: Duration = Duration::from_millis(1);

#[test]
fn a_fresh_reading_is_well_under_a_millisecond() {
    // Sleeping threads, as many as a training process has.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let stopped = std::sync::Arc::new(std::sync::Mutex::new(stopped));
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let stopped = stopped.clone();
            std::thread::spawn(move || drop(stopped.lock().map(|stopped| stopped.recv())))
        })
        .collect();
    let mut boundary = Boundary::new(std::process::id(), None);
    boundary.read(Instant::now());
    let mut took: Vec<Duration> = (0..READINGS)
        .map(|_| {
            let start = Instant::now();
            std::hint::black_box(boundary.read(start));
            start.elapsed()
        })
        .collect();
    took.sort_unstable();
    let (p50, p99) = (took[READINGS / 2], took[READINGS * 99 / 100]);
    println!("boundary reading with 16 threads: p50 {p50:?}, p99 {p99:?}");
    drop(stop);
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(p50 < BUDGET, "p50 {p50:?}");
}
