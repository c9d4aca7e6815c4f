//! Xid errors, which the driver reports as events.
//!
//! A thread per session waits for them, because NVML queues an event only for a set that was registered before.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenstep_protocol::GpuSample;
use evenstep_sensors::MissingReason;
use evenstep_sensors::gpu::Identity;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::{EventSet, Nvml};

use super::log_limit::LogLimit;

/// Name of the reading.
const COUNT: &str = "gpu_xid_errors";
/// Time between two looks for events.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of events of a GPU per look.
const EVENTS_MAX: usize = 64;
/// Number that NVML uses for an unknown Xid.
const UNKNOWN_XID: u64 = 999;

/// The Xid errors of a GPU since the agent started.
#[derive(Debug, Default)]
pub(super) struct Xids(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    count: u64,
    last: Option<u64>,
    /// Why they cannot be read.
    missing: Option<MissingReason>,
    log: LogLimit,
}

impl Xids {
    /// Adds the number of errors, and the last error after at least one.
    pub(super) fn put(&self, sample: &mut GpuSample) {
        let state = self.state();
        match &state.missing {
            Some(reason) => drop(sample.missing.insert(COUNT.to_owned(), reason.to_string())),
            None => drop(sample.readings.insert(COUNT.to_owned(), state.count as f64)),
        }
        if let Some(last) = state.last {
            sample.readings.insert("gpu_last_xid".to_owned(), last as f64);
        }
    }

    /// Counts an error. The same number is logged once until another one occurs.
    fn count(&self, gpu: &str, xid: u64) {
        let mut state = self.state();
        state.count += 1;
        if state.last.replace(xid) != Some(xid) && state.log.allows(Instant::now()) {
            tracing::warn!(
                gpu,
                xid,
                "the driver reports an Xid error of a GPU; NVIDIA's documentation explains the number"
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Thread that waits for the errors of GPUs. It ends soon after the handle is dropped, unless NVML hangs.
#[derive(Debug)]
pub(super) struct XidThread {
    _stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl XidThread {
    /// Starts a thread for these GPUs.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(nvml: Arc<Nvml>, gpus: Vec<(Identity, Arc<Xids>)>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let run = move || wait(&nvml, &gpus, &stopped);
        let thread = thread::Builder::new().name("gpu-xid".to_owned()).spawn(run)?;
        Ok(Self { _stop: stop, thread })
    }

    /// Signals the thread to stop, and returns its handle.
    pub(super) fn stop(self) -> JoinHandle<()> {
        self.thread
    }
}

fn wait(nvml: &Nvml, gpus: &[(Identity, Arc<Xids>)], stopped: &Receiver<()>) {
    let mut sets = Vec::new();
    for (identity, xids) in gpus {
        match register(nvml, identity) {
            Ok(set) => {
                xids.state().missing = None;
                sets.push((set, identity, xids));
            }
            Err(reason) => xids.state().missing = Some(reason),
        }
    }
    while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        for (set, identity, xids) in &sets {
            for _ in 0..EVENTS_MAX {
                // Any error means that there is no event now.
                let Ok(event) = set.wait(0) else { break };
                match event.event_data {
                    Some(XidError::Value(xid)) => xids.count(identity.id(), xid),
                    Some(XidError::Unknown) => xids.count(identity.id(), UNKNOWN_XID),
                    None => {}
                }
            }
        }
    }
}

/// Returns a set of the events of one GPU.
fn register<'a>(nvml: &'a Nvml, identity: &Identity) -> Result<EventSet<'a>, MissingReason> {
    let device = identity.open(nvml)?;
    let set = nvml.create_event_set()?;
    let registered = device.register_events(EventTypes::CRITICAL_XID_ERROR, set);
    registered.map_err(|failed| failed.error.into())
}
