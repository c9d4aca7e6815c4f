//! The GPUs that NVML lists, each with its own thread, and the thread that searches for them.
//!
//! A search finds a driver that was installed later, GPUs that were added and indices that changed. While a GPU is
//! lost, NVML is initialised again from time to time, because only then does it list a GPU that was reset. A GPU
//! that is no longer listed stays, so that its loss is visible.

use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenstep_protocol::{GpuGap, GpuSample};
use evenstep_sensors::gpu::{GPUS_MAX, Gpu, Identity, NAMES, Session, unknown};
use evenstep_sensors::{GpuId, MissingReason, Reading};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::amd;
use super::log_limit::LogLimit;
use super::xid::{XidThread, Xids};
use crate::source::thread::{READING_MAX, SourceState, SourceThread};

/// Number of searches between two initialisations of NVML while a GPU is lost: doubled after each, up to the maximum.
const RENEW_AFTER: u32 = 6;
const RENEW_AFTER_MAX: u32 = 60;

/// The GPUs of this machine.
#[derive(Debug)]
pub struct Gpus {
    known: Arc<Known>,
    /// Ends the thread when it is dropped, unless it hangs.
    _stop: Sender<()>,
}

#[derive(Debug)]
struct Known {
    session: Session,
    gpus: Mutex<Vec<Arc<KnownGpu>>>,
    state: Mutex<SearchState>,
    /// Whether a search has ended.
    searched: watch::Sender<bool>,
}

#[derive(Debug)]
struct SearchState {
    /// Start of the search in progress.
    busy_since: Option<Instant>,
    /// End of the last search; at first the start of the thread.
    last: Instant,
}

/// A GPU and its thread.
#[derive(Debug)]
struct KnownGpu {
    identity: Mutex<Identity>,
    thread: SourceThread<Gpu>,
    last: Mutex<LastSample>,
    xids: Arc<Xids>,
}

/// State of a GPU after its last sample.
#[derive(Debug, Default)]
struct LastSample {
    /// UUIDs of its MIG instances when it last could be read.
    instances: Vec<String>,
    /// Why it could not be read.
    gap: Option<GpuGap>,
    /// The gap of the last log line.
    logged: Option<GpuGap>,
    log: LogLimit,
}

impl Gpus {
    /// Starts the search.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(every: Duration) -> io::Result<Self> {
        let state = SearchState { busy_since: None, last: Instant::now() };
        let known = Known {
            session: Session::new(),
            gpus: Mutex::default(),
            state: Mutex::new(state),
            searched: watch::Sender::new(false),
        };
        let known = Arc::new(known);
        let (stop, stopped) = mpsc::channel();
        let searched = known.clone();
        let search = move || Search::new(&searched).run(every, &stopped);
        thread::Builder::new().name("gpu-search".to_owned()).spawn(search)?;
        Ok(Self { known, _stop: stop })
    }

    /// Reads all GPUs at the same time for a sample. Also returns why GPUs may be missing.
    pub async fn sample(&self) -> (Vec<GpuSample>, Option<MissingReason>) {
        let reads = self.known.list().into_iter().map(async |gpu| gpu.sample().await);
        let mut samples = futures_util::future::join_all(reads).await;
        samples.sort_by_key(|gpu| gpu.index);
        (samples, self.known.hangs_for().map(|_| MissingReason::TimedOut { source_name: "gpu-search" }))
    }

    /// Reads a GPU or MIG instance for a request. Also returns its identity and the reasons for lowered clocks, in a
    /// sample without readings.
    pub async fn request(&self, id: GpuId, due: Instant) -> (Reading, Option<GpuSample>) {
        // A request at the start of the agent waits for the first search.
        if self.known.hangs_for().is_none() {
            let mut searched = self.known.searched.subscribe();
            let _ = timeout_at(due.into(), searched.wait_for(|searched| *searched)).await;
        }
        let Some(gpu) = self.known.list().into_iter().find(|gpu| gpu.is_named(&id)) else {
            let reason = match (self.known.hangs_for(), self.known.session.get()) {
                (Some(_), _) => MissingReason::TimedOut { source_name: "gpu-search" },
                (None, Err(reason)) => reason,
                (None, Ok(_)) => unknown(&id),
            };
            return (Reading::gap(&NAMES, &reason), None);
        };
        let identity = lock(&gpu.identity).sample();
        let read = gpu.thread.request(due, move |reader| reader.read_device(&id)).await;
        let (reading, throttle_reasons) = read.unwrap_or_else(|gap| (Reading::gap(&NAMES, &gap), Vec::new()));
        (reading, Some(GpuSample { throttle_reasons, ..identity }))
    }

    /// Returns the state of the search and of each GPU.
    pub fn states(&self) -> Vec<SourceState> {
        let age_s = lock(&self.known.state).last.elapsed().as_secs_f64();
        let hangs_for_s = self.known.hangs_for().map(|time| time.as_secs_f64());
        let search = SourceState { source: "gpu-search", uuid: None, age_s, hangs_for_s };
        let gpus = self.known.list().into_iter().map(|gpu| {
            let uuid = Some(lock(&gpu.identity).id().to_owned());
            SourceState { uuid, ..gpu.thread.state() }
        });
        std::iter::once(search).chain(gpus).collect()
    }
}

impl Known {
    fn list(&self) -> Vec<Arc<KnownGpu>> {
        lock(&self.gpus).clone()
    }

    fn hangs_for(&self) -> Option<Duration> {
        lock(&self.state).busy_since.map(|since| since.elapsed()).filter(|time| *time >= READING_MAX)
    }
}

impl KnownGpu {
    fn start(session: &Session, identity: Identity) -> io::Result<Self> {
        let (session, first) = (session.clone(), identity.clone());
        let create = move |old: Option<Gpu>| old.unwrap_or_else(|| Gpu::new(session.clone(), first.clone()));
        Ok(Self {
            thread: SourceThread::start("gpu", create)?,
            identity: Mutex::new(identity),
            last: Mutex::default(),
            xids: Arc::default(),
        })
    }

    fn is_named(&self, id: &GpuId) -> bool {
        let identity = lock(&self.identity).clone();
        id.names(identity.uuid.as_deref(), identity.pci_bus_id.as_deref())
            || lock(&self.last).instances.iter().any(|uuid| id.names(Some(uuid), None))
    }

    async fn sample(&self) -> GpuSample {
        let identity = lock(&self.identity).clone();
        let current = identity.clone();
        let read = self.thread.sample(move |reader| {
            reader.identify(current);
            reader.read()
        });
        let mut sample = read.await.unwrap_or_else(|gap| identity.gap(&gap));
        self.keep(&identity, &sample);
        self.xids.put(&mut sample);
        sample
    }

    /// Keeps the state, and logs a change of it. A state that changes all the time is logged up to a limit, and again
    /// when the limit allows it.
    fn keep(&self, identity: &Identity, sample: &GpuSample) {
        let mut last = lock(&self.last);
        last.gap = sample.gap;
        if sample.gap.is_none() {
            last.instances = sample.instances.iter().map(|instance| instance.uuid.clone()).collect();
        }
        if last.logged == sample.gap || !last.log.allows(Instant::now()) {
            return;
        }
        last.logged = sample.gap;
        let (gpu, index, name) =
            (identity.id(), identity.index, identity.name.as_deref().unwrap_or_default());
        match sample.gap {
            Some(gap) => {
                let reason = sample.missing.values().next().map(String::as_str).unwrap_or_default();
                tracing::warn!(gpu, index, name, gap = gap.name(), reason, "a GPU cannot be read");
            }
            None => tracing::info!(gpu, index, name, "a GPU can be read again"),
        }
    }
}

/// The search thread's own state.
struct Search<'a> {
    known: &'a Known,
    /// The last error, which is logged once.
    error: Option<String>,
    log: LogLimit,
    /// Number of searches until the next initialisation, and its start value.
    renew_in: u32,
    renew_after: u32,
    /// Whether the log has the number of GPUs, because not all of them are read.
    has_said_count: bool,
    /// The thread of the Xid errors, and the GPUs that it reads; and an earlier one that has not ended yet.
    xids: Option<(XidThread, Vec<Identity>)>,
    ending: Option<JoinHandle<()>>,
}

impl<'a> Search<'a> {
    fn new(known: &'a Known) -> Self {
        Self {
            known,
            error: None,
            log: LogLimit::default(),
            renew_in: RENEW_AFTER,
            renew_after: RENEW_AFTER,
            has_said_count: false,
            xids: None,
            ending: None,
        }
    }

    fn run(&mut self, every: Duration, stopped: &Receiver<()>) {
        if amd::is_present(Path::new("/")) {
            tracing::warn!("this machine has an AMD GPU, which is not supported; its readings are missing");
        }
        loop {
            lock(&self.known.state).busy_since = Some(Instant::now());
            let found = self.search();
            self.log(found.err().as_ref());
            let hung_for = self.known.hangs_for();
            *lock(&self.known.state) = SearchState { busy_since: None, last: Instant::now() };
            self.known.searched.send_replace(true);
            if let Some(hung_for) = hung_for {
                tracing::info!(?hung_for, "the search for GPUs took long");
            }
            if stopped.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn search(&mut self) -> Result<(), NvmlError> {
        let nvml = self.known.session.open()?;
        let count = match nvml.device_count() {
            Ok(count) => {
                if count > GPUS_MAX && !std::mem::replace(&mut self.has_said_count, true) {
                    tracing::warn!("this machine has {count} GPUs; only the first {GPUS_MAX} are read");
                }
                count.min(GPUS_MAX)
            }
            Err(error) => {
                drop(nvml);
                self.renew();
                return Err(error);
            }
        };
        let mut failed = None;
        let mut listed = 0;
        for index in 0..count {
            match Identity::of_index(&nvml, index) {
                Ok(identity) => {
                    listed += 1;
                    self.add(identity);
                }
                Err(error) => failed = Some(error),
            }
        }
        self.read_xids(nvml);
        let gpus = self.known.list();
        let is_lost =
            |gpu: &Arc<KnownGpu>| matches!(lock(&gpu.last).gap, Some(GpuGap::Lost | GpuGap::DriverFailed));
        if listed < gpus.len() || gpus.iter().any(is_lost) {
            self.renew();
        } else {
            (self.renew_in, self.renew_after) = (RENEW_AFTER, RENEW_AFTER);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Adds a GPU, or updates the identity of a known one.
    fn add(&self, identity: Identity) {
        let known = self.known.list().into_iter().find(|gpu| lock(&gpu.identity).is(&identity));
        if let Some(gpu) = known {
            *lock(&gpu.identity) = identity;
            return;
        }
        let (gpu, index) = (identity.id().to_owned(), identity.index);
        let name = identity.name.clone().unwrap_or_default();
        let started = match KnownGpu::start(&self.known.session, identity) {
            Ok(started) => Arc::new(started),
            Err(error) => return tracing::error!(%error, gpu, "cannot start the thread of a GPU"),
        };
        tracing::info!(gpu, index, name, "found a GPU");
        let mut gpus = lock(&self.known.gpus);
        if gpus.len() >= GPUS_MAX as usize {
            // A GPU that is lost makes room.
            let lost = gpus.iter().position(|gpu| lock(&gpu.last).gap.is_some()).unwrap_or(0);
            gpus.remove(lost);
        }
        gpus.push(started);
    }

    /// Initialises NVML again after some searches.
    fn renew(&mut self) {
        self.renew_in = self.renew_in.saturating_sub(1);
        if self.renew_in > 0 {
            return;
        }
        self.renew_after = (self.renew_after * 2).min(RENEW_AFTER_MAX);
        self.renew_in = self.renew_after;
        self.ending = self.xids.take().map(|(thread, _)| thread.stop()).or(self.ending.take());
        if self.known.session.close(READING_MAX) {
            tracing::info!("NVML is initialised again, to find lost GPUs");
            if let Err(error) = self.known.session.open() {
                self.log(Some(&error));
            }
        }
    }

    /// Starts the thread of the Xid errors if the GPUs have changed. There is at most one: an earlier one that hangs
    /// must end first.
    fn read_xids(&mut self, nvml: Arc<Nvml>) {
        let gpus = self.known.list();
        let identities: Vec<Identity> = gpus.iter().map(|gpu| lock(&gpu.identity).clone()).collect();
        if self.xids.as_ref().is_some_and(|(_, read)| *read == identities) {
            return;
        }
        if let Some((thread, _)) = self.xids.take() {
            self.ending = Some(thread.stop());
        }
        if self.ending.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let read = identities.iter().cloned().zip(gpus.iter().map(|gpu| gpu.xids.clone())).collect();
        match XidThread::start(nvml, read) {
            Ok(thread) => self.xids = Some((thread, identities)),
            Err(error) => tracing::error!(%error, "cannot start the thread of Xid errors"),
        }
    }

    /// Logs an error once.
    fn log(&mut self, error: Option<&NvmlError>) {
        let text = error.map(ToString::to_string);
        if text == self.error || !self.log.allows(Instant::now()) {
            return;
        }
        match (error, &text) {
            (Some(NvmlError::LibloadingError(_)), Some(error)) => {
                tracing::info!(
                    error,
                    "NVIDIA driver not found; there are no GPU readings until it is installed"
                );
            }
            (_, Some(error)) => tracing::warn!(error, "NVML cannot list all GPUs"),
            (_, None) => tracing::info!("NVML lists all GPUs"),
        }
        self.error = text;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
