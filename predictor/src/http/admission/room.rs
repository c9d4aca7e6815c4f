//! Memory that a request holds, as a part of a limit that tokens share.

use std::time::Duration;

use axum::extract::Request;

use crate::access::{Auth, Caller, Full, Share, Shares};

/// The bytes of a body are counted in units of this size.
const UNIT_BYTES: usize = 1 << 10;

/// A limit of bytes.
#[derive(Debug)]
pub struct ByteLimit {
    bytes: Shares,
}

impl ByteLimit {
    /// A limit of bytes that nothing has used yet. `what` is what the bytes are, for messages.
    pub fn new(auth: Auth, bytes_max: usize, what: &'static str) -> Self {
        Self { bytes: Shares::new(auth, bytes_max, what) }
    }

    /// Returns a part without any bytes, for a request.
    pub fn room(&self, request: &Request) -> Room {
        let caller = request.extensions().get().cloned();
        let caller = caller.unwrap_or_else(|| Caller::anonymous(&[]));
        Room { caller, bytes: self.bytes.clone(), held: None, place: None }
    }

    pub fn bytes_in_flight(&self) -> usize {
        self.bytes.in_use()
    }
}

/// The bytes that a request holds. They are released when it is dropped.
#[derive(Debug)]
pub struct Room {
    caller: Caller,
    bytes: Shares,
    held: Option<Share>,
    place: Option<Share>,
}

impl Room {
    /// Releases all bytes.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// Takes one of the places for requests that are handled at once. Waits at most `patience` for other requests to end.
    pub async fn take_place(&mut self, places: &Shares, patience: Duration) -> Result<(), Full> {
        self.place = Some(places.take(&self.caller, 1, patience).await?);
        Ok(())
    }

    /// Holds `bytes` bytes in all. Waits at most `patience` for other requests to release theirs.
    pub async fn grow(&mut self, bytes: usize, patience: Duration) -> Result<(), Full> {
        let held = self.held.as_ref().map_or(0, Share::amount);
        let missing = bytes.next_multiple_of(UNIT_BYTES).saturating_sub(held);
        if missing == 0 {
            return Ok(());
        }
        let more = self.bytes.take(&self.caller, missing, patience).await?;
        match &mut self.held {
            Some(held) => held.merge(more),
            held => *held = Some(more),
        }
        Ok(())
    }
}
