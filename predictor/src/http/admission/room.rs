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

/// The limit did not allow more in time.
#[derive(Debug)]
pub struct Full;

impl Room {
    /// Releases all bytes.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// Holds `bytes` bytes in all. Waits at most `patience` for other requests to release theirs.
    pub async fn grow(&mut self, bytes: usize, patience: Duration) -> Result<(), Full> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = u32::try_from(bytes.div_ceil(UNIT_BYTES).saturating_sub(held)).unwrap_or(u32::MAX);
        if missing == 0 {
            return Ok(());
        }
        let more = acquire(&self.free, missing, patience).await?;
        match &mut self.held {
            Some(held) => held.merge(more),
            held => *held = Some(more),
        }
        Ok(())
    }
}

/// Waits for permits, at most `patience`.
pub async fn acquire(
    semaphore: &Arc<Semaphore>,
    permits: u32,
    patience: Duration,
) -> Result<OwnedSemaphorePermit, Full> {
    // Tried first, because a timeout of zero could expire although permits are free.
    if let Ok(acquired) = semaphore.clone().try_acquire_many_owned(permits) {
        return Ok(acquired);
    }
    let acquired = tokio::time::timeout(patience, semaphore.clone().acquire_many_owned(permits)).await;
    // The semaphore is never closed.
    acquired.map_err(|_| Full)?.map_err(|_| Full)
}
