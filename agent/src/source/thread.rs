//! A source on its own thread. A call into a driver or the kernel that hangs stops only this thread.

use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::MissingReason;

/// Maximum time of a reading. A later reading is discarded.
pub const READING_MAX: Duration = Duration::from_secs(1);
/// Maximum number of readings that wait for a source.
const WAITING_MAX: usize = 256;

/// A reading that waits for the thread.
struct Job<S> {
    due: Instant,
    read: Box<dyn FnOnce(&mut S) + Send>,
}

/// Progress of a thread.
#[derive(Debug)]
struct Progress {
    /// Start of the reading in progress.
    busy_since: Option<Instant>,
    /// End of the last reading that did not time out; at first the start of the thread.
    last_read: Instant,
    /// Whether the hang of the reading in progress has been logged.
    is_logged: bool,
}

/// State of a source, see [`SourceThread::state`].
#[derive(Debug, Clone, Serialize)]
pub struct SourceState {
    /// Name of the source.
    pub source: &'static str,
    /// Time since its last reading, in seconds.
    pub age_s: f64,
    /// Time that the reading in progress has taken, in seconds, if it has timed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hangs_for_s: Option<f64>,
}

/// Handle of the thread that owns the readers `S` of a source. The thread ends when the handle is dropped,
/// unless it hangs.
#[derive(Debug)]
pub struct SourceThread<S> {
    name: &'static str,
    jobs: SyncSender<Job<S>>,
    progress: Arc<Mutex<Progress>>,
}

impl<S: 'static> SourceThread<S> {
    /// Starts a thread whose readers are created by `create`, on that thread. They are created again after a
    /// reading that took too long, because their windows would not match their counters.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(name: &'static str, create: impl Fn() -> S + Send + 'static) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::sync_channel(WAITING_MAX);
        let start = Instant::now();
        let progress = Progress { busy_since: Some(start), last_read: start, is_logged: false };
        let progress = Arc::new(Mutex::new(progress));
        let shared = progress.clone();
        let run = move || work(name, &waiting, create, &shared);
        thread::Builder::new().name(format!("source-{name}")).spawn(run)?;
        Ok(Self { name, jobs, progress })
    }

    /// Reads the source on its thread.
    ///
    /// # Errors
    /// [`MissingReason::TimedOut`] if the reading takes longer than [`READING_MAX`], and at once if an earlier
    /// reading already has.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, MissingReason> {
        let ended =
            || MissingReason::Unsupported(format!("the thread of the {} source has ended", self.name));
        if self.hangs() {
            return Err(self.timed_out());
        }
        let (done, value) = oneshot::channel();
        let read = Box::new(move |readers: &mut S| drop(done.send(read(readers))));
        match self.jobs.try_send(Job { due: Instant::now() + READING_MAX, read }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(self.timed_out()),
            Err(TrySendError::Disconnected(_)) => return Err(ended()),
        }
        let value = timeout(READING_MAX, value).await.map_err(|_| self.timed_out())?;
        value.map_err(|_| ended())
    }

    /// Returns the state of the source.
    pub fn state(&self) -> SourceState {
        let progress = lock(&self.progress);
        SourceState {
            source: self.name,
            age_s: progress.last_read.elapsed().as_secs_f64(),
            hangs_for_s: progress.hangs_for().map(|time| time.as_secs_f64()),
        }
    }

    fn hangs(&self) -> bool {
        lock(&self.progress).hangs_for().is_some()
    }

    fn timed_out(&self) -> MissingReason {
        let mut progress = lock(&self.progress);
        // A reading can also time out while it waits for others.
        if progress.hangs_for().is_some() && !std::mem::replace(&mut progress.is_logged, true) {
            tracing::warn!(source = self.name, "a source does not respond; its readings are missing");
        }
        MissingReason::TimedOut { source_name: self.name }
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work<S>(name: &'static str, jobs: &Receiver<Job<S>>, create: impl Fn() -> S, progress: &Mutex<Progress>) {
    let mut readers = create();
    lock(progress).finish(name);
    while let Ok(job) = jobs.recv() {
        let start = Instant::now();
        // The caller of an overdue reading has given up.
        if start >= job.due {
            continue;
        }
        lock(progress).busy_since = Some(start);
        (job.read)(&mut readers);
        if start.elapsed() >= READING_MAX {
            readers = create();
        }
        lock(progress).finish(name);
    }
}

impl Progress {
    fn hangs_for(&self) -> Option<Duration> {
        self.busy_since.map(|since| since.elapsed()).filter(|time| *time >= READING_MAX)
    }

    /// Ends the reading in progress.
    fn finish(&mut self, name: &'static str) {
        let hung_for = self.hangs_for();
        self.busy_since = None;
        self.last_read = Instant::now();
        if let Some(hung_for) = hung_for
            && std::mem::take(&mut self.is_logged)
        {
            tracing::info!(source = name, ?hung_for, "a source responds again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(future)
    }

    /// The reading hangs until the test releases it. It is not started a second time, and the readers are
    /// created again afterwards.
    #[test]
    fn a_reading_that_hangs_times_out_and_is_not_started_twice() {
        let source = SourceThread::start("fake", || 0_u32).unwrap();
        assert_eq!(block_on(source.read(|count| std::mem::replace(count, 7))), Ok(0));
        let (release, released) = mpsc::channel::<()>();
        let timed_out = MissingReason::TimedOut { source_name: "fake" };
        assert_eq!(
            block_on(source.read(move |_| {
                let _ = released.recv();
            })),
            Err(timed_out.clone())
        );
        assert!(source.state().hangs_for_s.is_some_and(|time| time >= READING_MAX.as_secs_f64()));
        let (started, starts) = mpsc::channel();
        for _ in 0..2 * WAITING_MAX {
            let started = started.clone();
            assert_eq!(
                block_on(source.read(move |_| {
                    let _ = started.send(());
                })),
                Err(timed_out.clone())
            );
        }
        drop((started, release));
        while source.hangs() {
            thread::yield_now();
        }
        assert_eq!(block_on(source.read(|count| *count)), Ok(0));
        assert!(starts.recv().is_err(), "a reading was started while the source hung");
    }
}
