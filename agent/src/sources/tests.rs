use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Returns the id of a process, and a function that ends it.
fn process() -> (u32, impl FnOnce()) {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let end = move |child: &mut std::process::Child| {
        child.kill().unwrap();
        child.wait().unwrap();
    };
    (child.id(), move || end(&mut child))
}

#[test]
fn readers_are_kept_between_requests_and_a_missing_process_leaves_none() {
    let sources = Sources::start(Duration::from_secs(60)).unwrap();
    let (key, missing) = ((std::process::id(), None), (u32::MAX - 1, None));
    assert_eq!(block_on(sources.request(key.clone())).unwrap().reading.window_s, None);
    assert!(block_on(sources.request(key.clone())).unwrap().reading.window_s.is_some());
    assert!(block_on(sources.request(missing.clone())).is_none());
    assert!(sources.clients().take(&missing).is_none());
    assert!(sources.clients().take(&key).is_some());
}

/// The reading waits for a job of 50 ms, and its counters are read after that.
#[test]
fn a_window_ends_when_the_counters_are_read() {
    let sources = Sources::start(Duration::from_secs(60)).unwrap();
    let key = (std::process::id(), None);
    block_on(sources.request(key.clone()));
    let first_ended = Instant::now();
    let (second, waited) = block_on(async {
        let job = sources.host.request(later(), |_| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(50) {
                thread::yield_now();
            }
            Instant::now()
        });
        let (waited, second) = tokio::join!(job, sources.request(key.clone()));
        (second.unwrap(), waited.unwrap())
    });
    let window_s = second.reading.window_s.unwrap();
    assert!(window_s >= (waited - first_ended).as_secs_f64(), "{window_s}");
}

/// The key has the readers of another process, which has ended.
#[test]
fn a_process_with_a_reused_id_shares_no_window_with_the_old_one() {
    let sources = Sources::start(Duration::from_secs(60)).unwrap();
    let (old, end) = process();
    block_on(sources.request((old, None))).unwrap();
    end();
    let key = (std::process::id(), None);
    let client = sources.clients().take(&(old, None)).unwrap();
    sources.clients().put(key.clone(), client);
    let reading = block_on(sources.request(key.clone())).unwrap().reading;
    assert_eq!(reading.window_s, None);
    assert_eq!(reading.missing[driver::OTHER_CPU], MissingReason::First.to_string());
}

#[test]
fn the_reader_of_a_sampled_process_that_has_ended_is_removed() {
    let sources = Sources::start(Duration::from_secs(60)).unwrap();
    let (pid, end) = process();
    let sample = || block_on(sources.sample_processes(vec![pid])).remove(0).1;
    assert!(!sample().ended);
    end();
    assert!(sample().ended);
    assert_eq!(block_on(sources.process.sample(|processes| processes.len())), Ok(0));
}

/// The process source hangs until the test ends.
#[test]
fn a_process_that_cannot_be_read_leaves_no_readers() {
    let sources = Sources::start(Duration::from_secs(60)).unwrap();
    let (release, released) = mpsc::channel::<()>();
    let hang = sources.process.sample(move |_| {
        let _ = released.recv();
    });
    assert!(block_on(hang).is_err());
    let key = (u32::MAX - 1, None);
    let reading = block_on(sources.request(key.clone())).unwrap();
    assert!(!reading.has_process && reading.reading.missing.contains_key(driver::OWN_CPU));
    assert!(reading.reading.readings.contains_key(driver::MEMORY_USED));
    assert!(sources.clients().take(&key).is_none());
    drop(release);
}
