//! An initialisation of NVML that several threads use.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::MissingReason;

/// NVML. Threads borrow it for one reading, so that it can be initialised again between readings: NVML lists the
/// GPUs of the time when it was initialised.
#[derive(Debug, Clone)]
pub struct Session(Arc<(Mutex<Slot>, Condvar)>);

#[derive(Debug)]
struct Slot {
    nvml: Option<Arc<Nvml>>,
    /// Reason for its absence.
    reason: MissingReason,
    /// Whether NVML is between shutdown and initialisation.
    is_closed: bool,
}

/// Time between two looks whether a thread still uses NVML.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Maximum time that a reading waits for a new initialisation.
const WAIT_MAX: Duration = Duration::from_millis(500);

impl Session {
    /// Creates a session that has not initialised NVML yet.
    pub fn new() -> Self {
        let reason = MissingReason::Driver("NVML is not initialised yet".to_owned());
        let slot = Slot { nvml: None, reason, is_closed: false };
        let session = Self(Arc::new((Mutex::new(slot), Condvar::new())));
        // NVML's shutdown can hang, so it never happens at the end of the process.
        std::mem::forget(session.clone());
        session
    }

    /// Returns NVML for one reading. Waits a short time while it is initialised again.
    ///
    /// # Errors
    /// Why it is not initialised.
    pub fn get(&self) -> Result<Arc<Nvml>, MissingReason> {
        let opened = self.0.1.wait_timeout_while(self.slot(), WAIT_MAX, |slot| slot.is_closed);
        let slot = opened.unwrap_or_else(PoisonError::into_inner).0;
        slot.nvml.clone().ok_or_else(|| slot.reason.clone())
    }

    /// Initialises NVML if it is not.
    ///
    /// # Errors
    /// The library or the driver is missing, or the driver failed.
    pub fn open(&self) -> Result<Arc<Nvml>, NvmlError> {
        if let Some(nvml) = self.slot().nvml.clone() {
            return Ok(nvml);
        }
        // The lock is free meanwhile, because this may hang.
        let opened = Nvml::init();
        let mut slot = self.slot();
        slot.is_closed = false;
        self.0.1.notify_all();
        match opened {
            Ok(nvml) => Ok(slot.nvml.insert(Arc::new(nvml)).clone()),
            Err(error) => {
                slot.reason = MissingReason::Unsupported(format!("no NVIDIA driver: {error}"));
                Err(error)
            }
        }
    }

    /// Shuts NVML down, and returns whether it could: only while no thread uses it. Waits for that at most this long.
    pub fn close(&self, wait: Duration) -> bool {
        let due = Instant::now() + wait;
        while Instant::now() < due {
            let mut slot = self.slot();
            if slot.nvml.as_ref().is_none_or(|nvml| Arc::strong_count(nvml) == 1) {
                slot.is_closed = true;
                slot.reason = MissingReason::Driver("NVML is being initialised again".to_owned());
                let nvml = slot.nvml.take();
                drop(slot);
                drop(nvml);
                return true;
            }
            drop(slot);
            thread::park_timeout(LOOK_EVERY);
        }
        false
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}
