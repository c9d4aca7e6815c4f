//! Memory that a request holds, as a part of a limit shared by many requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per semaphore permit.
const UNIT_BYTES: usize = 1 << 10;

/// Limit of requests that are handled at once.
const TURNS_MAX: usize = 512;

/// A limit of bytes, and of requests that are handled at once.
#[derive(Debug)]
pub struct ByteLimit {
    free: Arc<Semaphore>,
    bytes_max: usize,
    turns: Arc<Semaphore>,
}

impl ByteLimit {
    pub fn of(bytes_max: usize) -> Self {
        let (free, turns) = (Semaphore::new(bytes_max / UNIT_BYTES), Semaphore::new(TURNS_MAX));
        Self { free: Arc::new(free), bytes_max, turns: Arc::new(turns) }
    }

    /// Returns a part without any bytes.
    pub fn room(&self) -> Room {
        Room { free: self.free.clone(), held: None, turns: self.turns.clone(), turn: None }
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
    turns: Arc<Semaphore>,
    turn: Option<OwnedSemaphorePermit>,
}

/// The limit did not allow more bytes in time.
#[derive(Debug)]
pub struct Full;

impl Room {
    /// Releases all bytes.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// Takes a turn to be handled. Waits at most `patience` for other requests to end.
    pub async fn take_turn(&mut self, patience: Duration) -> Result<(), Full> {
        self.turn = Some(acquire(&self.turns, 1, patience).await?);
        Ok(())
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

async fn acquire(
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
