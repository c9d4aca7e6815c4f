//! Memory that a request holds, as a part of a limit shared by many requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per semaphore permit.
const UNIT_BYTES: usize = 1 << 10;

/// A limit of bytes.
#[derive(Debug)]
pub struct ByteLimit {
    free: Arc<Semaphore>,
    bytes_max: usize,
}

impl ByteLimit {
    pub fn of(bytes_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes_max / UNIT_BYTES)), bytes_max }
    }

    /// Returns a part without any bytes.
    pub fn room(&self) -> Room {
        Room { free: self.free.clone(), held: None }
    }

    pub fn bytes_in_flight(&self) -> usize {
        self.bytes_max - self.free.available_permits() * UNIT_BYTES
    }
}

/// The bytes that a request holds. They are released when it is dropped.
#[derive(Debug)]
pub struct Room {
    free: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

/// The limit did not allow more bytes in time.
#[derive(Debug)]
pub struct Full;

impl Room {
    /// Holds `bytes` bytes in all. Waits at most `patience` for other requests to release theirs.
    pub async fn grow(&mut self, bytes: usize, patience: Duration) -> Result<(), Full> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = u32::try_from(bytes.div_ceil(UNIT_BYTES).saturating_sub(held)).unwrap_or(u32::MAX);
        if missing == 0 {
            return Ok(());
        }
        // Tried first, because a timeout of zero could expire although memory is free.
        let more = match self.free.clone().try_acquire_many_owned(missing) {
            Ok(more) => more,
            Err(_) => {
                let more = self.free.clone().acquire_many_owned(missing);
                // The semaphore is never closed.
                tokio::time::timeout(patience, more).await.map_err(|_| Full)?.map_err(|_| Full)?
            }
        };
        match &mut self.held {
            Some(held) => held.merge(more),
            held => *held = Some(more),
        }
        Ok(())
    }
}
