//! A source on its own thread. A call into a driver or the kernel that hangs stops only this thread. Samples come
//! before requests, so that many requests cannot stop the samples.

use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use evenstep_sensors::MissingReason;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

/// Maximum time of a reading. A later reading is discarded.
pub const READING_MAX: Duration = Duration::from_secs(1);
/// Maximum number of samples, and of requests, that wait for a source.
const WAITING_MAX: usize = 32;

/// A reading that waits for the thread.
struct Job<S> {
    due: Instant,
    read: Box<dyn FnOnce(&mut S) + Send>,
}

/// The readings that wait for the thread.
struct Waiting<S> {
    samples: Receiver<Job<S>>,
    requests: Receiver<Job<S>>,
    added: Receiver<()>,
}

impl<S> Waiting<S> {
    /// Waits for the next reading; `None` if the handle has been dropped.
    fn next(&self) -> Option<Job<S>> {
        loop {
            if let Ok(job) = self.samples.try_recv().or_else(|_| self.requests.try_recv()) {
                return Some(job);
            }
            self.added.recv().ok()?;
        }
    }
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
    /// UUID of the GPU, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Time since its last reading, in seconds.
    pub age_s: f64,
    /// Time that the reading in progress has taken, in seconds, if it has timed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hangs_for_s: Option<f64>,
}

impl SourceState {
    /// Returns the name of the source, with the UUID of a GPU.
    pub fn name(&self) -> String {
        self.uuid.as_ref().map_or_else(|| self.source.to_owned(), |uuid| format!("{} {uuid}", self.source))
    }
}

/// Handle of the thread that owns the readers `S` of a source. The thread ends when the handle is dropped,
/// unless it hangs.
#[derive(Debug)]
pub struct SourceThread<S> {
    name: &'static str,
    samples: SyncSender<Job<S>>,
    requests: SyncSender<Job<S>>,
    /// Holds a message if a reading may have been added since the thread last looked.
    added: SyncSender<()>,
    progress: Arc<Mutex<Progress>>,
}

impl<S: 'static> SourceThread<S> {
    /// Starts a thread whose readers are created by `create`, on that thread. They are created again from the old
    /// ones after a reading that took too long, because their windows would not match their counters.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(name: &'static str, create: impl Fn(Option<S>) -> S + Send + 'static) -> io::Result<Self> {
        let (samples, waiting_samples) = mpsc::sync_channel(WAITING_MAX);
        let (requests, waiting_requests) = mpsc::sync_channel(WAITING_MAX);
        let (added, any_added) = mpsc::sync_channel(1);
        let waiting = Waiting { samples: waiting_samples, requests: waiting_requests, added: any_added };
        let start = Instant::now();
        let progress = Progress { busy_since: Some(start), last_read: start, is_logged: false };
        let progress = Arc::new(Mutex::new(progress));
        let shared = progress.clone();
        let run = move || work(name, &waiting, create, &shared);
        thread::Builder::new().name(format!("source-{name}")).spawn(run)?;
        Ok(Self { name, samples, requests, added, progress })
    }

    /// Reads the source for a sample, on the thread of the source.
    ///
    /// # Errors
    /// [`MissingReason::TimedOut`] if the reading takes longer than [`READING_MAX`], and at once if an earlier
    /// reading already has.
    pub async fn sample<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, MissingReason> {
        self.read(&self.samples, Instant::now() + READING_MAX, read).await
    }

    /// Reads the source for a request, on the thread of the source and after the samples that wait.
    ///
    /// # Errors
    /// [`MissingReason::TimedOut`] if the reading has not ended before `due`, and at once if an earlier reading
    /// has taken longer than [`READING_MAX`]. [`MissingReason::Busy`] if too many requests wait.
    pub async fn request<T: Send + 'static>(
        &self,
        due: Instant,
        read: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, MissingReason> {
        self.read(&self.requests, due, read).await
    }

    async fn read<T: Send + 'static>(
        &self,
        jobs: &SyncSender<Job<S>>,
        due: Instant,
        read: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, MissingReason> {
        let ended =
            || MissingReason::Unsupported(format!("the thread of the {} source has ended", self.name));
        if self.hangs() {
            return Err(self.timed_out());
        }
        let (done, value) = oneshot::channel();
        let read = Box::new(move |readers: &mut S| drop(done.send(read(readers))));
        match jobs.try_send(Job { due, read }) {
            // If the channel is full, the thread will look anyway.
            Ok(()) => drop(self.added.try_send(())),
            Err(TrySendError::Full(_)) => return Err(MissingReason::Busy { source_name: self.name }),
            Err(TrySendError::Disconnected(_)) => return Err(ended()),
        }
        let value = timeout_at(due.into(), value).await.map_err(|_| self.timed_out())?;
        value.map_err(|_| ended())
    }

    /// Returns the state of the source.
    pub fn state(&self) -> SourceState {
        let progress = lock(&self.progress);
        SourceState {
            source: self.name,
            uuid: None,
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

fn work<S>(
    name: &'static str,
    waiting: &Waiting<S>,
    create: impl Fn(Option<S>) -> S,
    progress: &Mutex<Progress>,
) {
    let mut readers = create(None);
    lock(progress).finish(name);
    while let Some(job) = waiting.next() {
        let start = Instant::now();
        // The caller of an overdue reading has given up.
        if start >= job.due {
            continue;
        }
        lock(progress).busy_since = Some(start);
        (job.read)(&mut readers);
        if start.elapsed() >= READING_MAX {
            readers = create(Some(readers));
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

    use evenstep_tests::wait::until;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(future)
    }

    /// The reading hangs until the test releases it. It is not started a second time, and the readers are
    /// created again afterwards.
    #[test]
    fn a_reading_that_hangs_times_out_and_is_not_started_twice() {
        let source = SourceThread::start("fake", |_| 0_u32).unwrap();
        assert_eq!(block_on(source.sample(|count| std::mem::replace(count, 7))), Ok(0));
        let (release, released) = mpsc::channel::<()>();
        let timed_out = MissingReason::TimedOut { source_name: "fake" };
        assert_eq!(
            block_on(source.sample(move |_| {
                let _ = released.recv();
            })),
            Err(timed_out.clone())
        );
        // The reading may have started later than the request.
        until("the reading hangs", || source.state().hangs_for_s);
        let (started, starts) = mpsc::channel();
        for _ in 0..2 * WAITING_MAX {
            let started = started.clone();
            assert_eq!(
                block_on(source.sample(move |_| {
                    let _ = started.send(());
                })),
                Err(timed_out.clone())
            );
        }
        drop((started, release));
        while source.hangs() {
            thread::yield_now();
        }
        assert_eq!(block_on(source.sample(|count| *count)), Ok(0));
        assert!(starts.recv().is_err(), "a reading was started while the source hung");
    }

    /// The first request holds the source until all others wait. The sample comes last and is read first.
    #[test]
    fn requests_are_bounded_and_samples_come_before_them() {
        let source = SourceThread::start("fake", |_| Vec::new()).unwrap();
        let due = Instant::now() + Duration::from_secs(60);
        let (begun, has_begun) = mpsc::channel::<()>();
        let (release, released) = mpsc::channel::<()>();
        let held = source.request(due, move |_| {
            let _ = begun.send(());
            let _ = released.recv();
        });
        let others = async {
            has_begun.recv().unwrap();
            let mut waiting: Vec<_> = (0..WAITING_MAX)
                .map(|_| Box::pin(source.request(due, |read: &mut Vec<&str>| read.push("request"))))
                .collect();
            for request in &mut waiting {
                assert!(poll_once(request.as_mut()).await.is_none());
            }
            let busy = Err(MissingReason::Busy { source_name: "fake" });
            assert_eq!(source.request(due, |_| ()).await, busy);
            let mut sample = Box::pin(source.sample(|read| read.push("sample")));
            assert!(poll_once(sample.as_mut()).await.is_none());
            release.send(()).unwrap();
            sample.await.unwrap();
            for request in waiting {
                request.await.unwrap();
            }
        };
        let (held, ()) = block_on(async { tokio::join!(held, others) });
        held.unwrap();
        let read = block_on(source.sample(|read| read.clone())).unwrap();
        assert_eq!((read[0], read.len()), ("sample", 1 + WAITING_MAX));
    }

    /// Polls a future once, and returns its value if it is ready.
    async fn poll_once<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
