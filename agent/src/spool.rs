//! The spool: keeps samples on disk until the predictor has acknowledged them.
//!
//! A spool is a directory of segments, which are append-only files of lines with a checksum each. Each start
//! of the agent uses a new boot id, counts from 0 and writes new segments. So no (boot id, sequence number)
//! is used twice, whatever a crash or a power failure removes from the disk.
//!
//! Each sample is passed to the operating system at once, so it survives any end of the agent, including
//! `kill -9`. Samples are not synced to the disk one by one, as this would write a device block every second
//! for the lifetime of the node. A power failure may therefore lose the unsent samples of the last seconds.
//! Segments are synced when they are full.

mod batch;
mod rejected;
mod segment;

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use evenstep_protocol::NodeSample;
use serde::Serialize;

pub use batch::Batch;
use rejected::Rejected;
pub use segment::SampleIdentity;
use segment::{Scan, Segment};

/// Name of the lock file.
const LOCK: &str = "lock";
/// Minimum size limit: room for some dozens of samples.
pub const SPOOL_BYTES_MIN: u64 = 64 << 10;
/// Divisor of the size limit that is reserved for rejected batches.
const REJECTED_SHARE: u64 = 8;
/// Approximate number of segments when the spool is full; the oldest segment is then dropped.
const SEGMENTS: u64 = 16;
/// Maximum segment size in bytes, however large the spool may be.
const SEGMENT_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of samples per batch, as the protocol specifies.
pub const BATCH_SAMPLES_MAX: usize = 1000;
/// Maximum bytes of samples per batch, unless a single sample is larger.
const BATCH_BYTES_MAX: usize = 512 << 10;

/// State of the spool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SpoolState {
    /// Size of the segments on disk, in bytes.
    pub bytes: u64,
    /// Maximum of `bytes`; beyond it, the oldest samples are dropped.
    pub bytes_max: u64,
    /// Samples that are not acknowledged yet.
    pub waiting: u64,
    /// Samples lost because the spool was full.
    pub dropped_full: u64,
    /// Samples lost because they could not be written.
    pub dropped_unwritable: u64,
    /// Samples lost because another program removed or changed their file. Some may have been sent before.
    pub dropped_removed: u64,
    /// Lines damaged by a crash or by the disk; each held at most one sample.
    pub damaged_lines: u64,
    /// Batches that the predictor rejected for their content.
    pub rejected_batches: u64,
    /// Samples in these batches.
    pub rejected_samples: u64,
}

/// An error of the spool.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Another agent uses the spool.
    #[error("the spool {0} is in use by another agent; give each agent its own --spool-dir")]
    InUse(PathBuf),
    /// A single sample exceeds the size limit of the spool.
    #[error(
        "a sample of {bytes} bytes exceeds the spool's limit of {bytes_max} bytes; raise --spool-max-bytes"
    )]
    SampleTooLarge {
        /// Size of the sample, in bytes.
        bytes: u64,
        /// Size limit, in bytes.
        bytes_max: u64,
    },
    /// A file operation failed.
    #[error("spool {path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A sample cannot be serialized.
    #[error("cannot serialize a sample as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// An open spool.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    /// Locked for the lifetime of this value.
    lock: File,
    identity: SampleIdentity,
    next_sequence: u64,
    /// Oldest first; if `open` is set, it is the file of the last one.
    segments: VecDeque<Segment>,
    next_segment: u64,
    open: Option<File>,
    rejected: Rejected,
    state: SpoolState,
    /// The state after the last operation, for threads that must not wait for the disk.
    published: Arc<Mutex<SpoolState>>,
}

impl Spool {
    /// Opens the spool in `directory`, including samples of earlier runs. `identity` must be new.
    ///
    /// # Errors
    /// [`SpoolError::InUse`] if another agent uses the spool, [`SpoolError::Io`] if a file operation fails.
    pub fn open(directory: &Path, bytes_max: u64, identity: SampleIdentity) -> Result<Self, SpoolError> {
        let io_error = |source| SpoolError::Io { path: directory.to_owned(), source };
        let lock = lock(directory)?;
        let rejected_bytes = bytes_max / REJECTED_SHARE;
        let mut spool = Self {
            directory: directory.to_owned(),
            lock,
            identity,
            next_sequence: 0,
            segments: VecDeque::new(),
            next_segment: 0,
            open: None,
            rejected: Rejected::open(&directory.join("rejected"), rejected_bytes).map_err(io_error)?,
            state: SpoolState { bytes_max: bytes_max - rejected_bytes, ..SpoolState::default() },
            published: Arc::default(),
        };
        spool.recover().map_err(io_error)?;
        spool.publish();
        Ok(spool)
    }

    /// Returns the identity of appended samples.
    pub fn identity(&self) -> &SampleIdentity {
        &self.identity
    }

    /// Returns the state of the spool.
    pub fn state(&self) -> SpoolState {
        let waiting = self.segments.iter().map(|segment| segment.waiting).sum();
        SpoolState { bytes: self.bytes(), waiting, ..self.state.clone() }
    }

    /// Returns the state after the last operation. Its mutex is never held during an operation of the disk.
    pub fn published(&self) -> Arc<Mutex<SpoolState>> {
        self.published.clone()
    }

    fn publish(&self) {
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = self.state();
    }

    /// Appends a sample and returns its sequence number. If the spool is full, the oldest samples are
    /// dropped.
    ///
    /// # Errors
    /// If the sample could not be written. It is lost and counted; its sequence number is not used.
    pub fn append(&mut self, sample: &NodeSample) -> Result<u64, SpoolError> {
        let appended = self.try_append(sample).inspect_err(|_| self.state.dropped_unwritable += 1);
        self.publish();
        appended
    }

    /// Returns the oldest waiting samples of one boot id, with consecutive numbers; `None` if all samples are
    /// acknowledged.
    ///
    /// # Errors
    /// If a segment cannot be read.
    pub fn next_batch(&mut self, samples_max: usize) -> Result<Option<Batch>, SpoolError> {
        let batch = self.try_next_batch(samples_max);
        self.publish();
        batch
    }

    fn try_next_batch(&mut self, samples_max: usize) -> Result<Option<Batch>, SpoolError> {
        while let Some(index) = self.segments.iter().position(|segment| segment.waiting > 0) {
            let segment = &mut self.segments[index];
            let scan = Scan::records(&segment.path, segment.acknowledged, samples_max, BATCH_BYTES_MAX);
            let scan = match scan {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.forget(index);
                    continue;
                }
                scan => scan.map_err(|source| SpoolError::Io { path: segment.path.clone(), source })?,
            };
            let Some(first) = scan.records.first() else {
                // The file was damaged after its waiting samples had been counted.
                self.state.damaged_lines += segment.waiting;
                segment.waiting = 0;
                continue;
            };
            let sequence = first.sequence;
            let consecutive =
                scan.records.iter().zip(sequence..).take_while(|(record, number)| record.sequence == *number);
            let count = consecutive.count();
            let records = scan.records.into_iter().take(count);
            let (samples, ends) = records.map(|record| (record.sample, record.end)).unzip();
            let Some(identity) = segment.identity.clone() else {
                segment.waiting = 0;
                continue;
            };
            return Ok(Some(Batch { identity, sequence, samples, segment: segment.number, ends }));
        }
        Ok(None)
    }

    /// Removes the samples of `batch` below `next_sequence`, which the predictor has stored. Returns their
    /// number.
    ///
    /// # Errors
    /// If the position cannot be saved. This run still uses it, but the next run may send samples again.
    pub fn acknowledge(&mut self, batch: &Batch, next_sequence: u64) -> Result<u64, SpoolError> {
        let count = next_sequence.saturating_sub(batch.sequence).min(batch.samples.len() as u64);
        let Some(end) = usize::try_from(count).ok().and_then(|count| batch.ends.get(count.checked_sub(1)?))
        else {
            return Ok(0);
        };
        // The segment may have been dropped while the batch was in flight.
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == batch.segment) {
            segment.acknowledged = *end;
            segment.waiting = segment.waiting.saturating_sub(count);
        }
        let removed = self.remove_finished();
        self.publish();
        removed.map(|()| count)
    }

    /// Saves a batch that the predictor rejected for its content, and advances past it.
    ///
    /// # Errors
    /// If the batch cannot be saved; it then stays in the spool.
    pub fn reject(&mut self, batch: &Batch, reason: &str) -> Result<(), SpoolError> {
        self.restore_directory()?;
        self.rejected
            .keep(batch, reason)
            .map_err(|source| SpoolError::Io { path: self.directory.join("rejected"), source })?;
        self.state.rejected_batches += 1;
        self.state.rejected_samples += batch.samples.len() as u64;
        self.acknowledge(batch, batch.sequence + batch.samples.len() as u64).map(drop)
    }

    /// Syncs appended samples to the disk.
    ///
    /// # Errors
    /// If the sync fails.
    pub fn sync(&mut self) -> Result<(), SpoolError> {
        let synced = self.open.as_ref().map_or(Ok(()), File::sync_data);
        synced.map_err(|source| SpoolError::Io { path: self.directory.clone(), source })
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    fn try_append(&mut self, sample: &NodeSample) -> Result<u64, SpoolError> {
        let line = segment::record_line(self.next_sequence, sample)?;
        let bytes = line.len() as u64;
        let header = segment::header_line(&self.identity)?;
        if bytes + header.len() as u64 > self.state.bytes_max {
            return Err(SpoolError::SampleTooLarge { bytes, bytes_max: self.state.bytes_max });
        }
        let segment_bytes = (self.state.bytes_max / SEGMENTS).min(SEGMENT_BYTES_MAX);
        self.restore_directory()?;
        self.check_open();
        let is_full = |segment: &Segment| segment.bytes + bytes > segment_bytes;
        if self.open.is_some() && self.segments.back().is_some_and(is_full) {
            self.close();
        }
        let needed = if self.open.is_some() { bytes } else { bytes + header.len() as u64 };
        self.make_room(needed);
        if let Err(source) = self.write(&header, &line) {
            // The line may be incomplete, so no line may follow it in this file.
            self.close();
            // Otherwise each sample would leave a file while the disk is full.
            if let Some(segment) = self.segments.pop_back_if(|segment| segment.waiting == 0) {
                remove(&segment);
            }
            return Err(SpoolError::Io { path: self.directory.clone(), source });
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        Ok(sequence)
    }

    fn write(&mut self, header: &[u8], line: &[u8]) -> io::Result<()> {
        if self.open.is_none() {
            let segment = Segment::new(&self.directory, self.next_segment, self.identity.clone());
            self.next_segment += 1;
            let mut file = private().create_new(true).append(true).open(&segment.path)?;
            self.segments.push_back(segment);
            file.write_all(header)?;
            self.open = Some(file);
            if let Some(segment) = self.segments.back_mut() {
                segment.bytes = header.len() as u64;
                segment.acknowledged = segment.bytes;
            }
        }
        let (Some(file), Some(segment)) = (&mut self.open, self.segments.back_mut()) else { return Ok(()) };
        file.write_all(line)?;
        segment.bytes += line.len() as u64;
        segment.waiting += 1;
        Ok(())
    }

    fn close(&mut self) {
        if let Some(Err(error)) = self.open.take().map(|file| file.sync_data()) {
            tracing::warn!(%error, "failed to sync a full segment of the spool");
        }
    }

    /// Creates the directory again if another program removed it, and locks it again.
    fn restore_directory(&mut self) -> Result<(), SpoolError> {
        let path = self.directory.join(LOCK);
        if segment::is_at(&self.lock, &path) {
            return Ok(());
        }
        tracing::warn!(path = %path.display(), "another program removed this file of the spool; creating it again");
        self.lock = lock(&self.directory)?;
        self.rejected.create().map_err(|source| SpoolError::Io { path, source })
    }

    /// Forgets the open segment if another program removed or changed its file, so that no sample follows in it.
    fn check_open(&mut self) {
        let (Some(file), Some(last)) = (&self.open, self.segments.back()) else { return };
        let is_whole = file.metadata().is_ok_and(|metadata| metadata.len() == last.bytes);
        if !is_whole || !segment::is_at(file, &last.path) {
            self.forget(self.segments.len() - 1);
        }
    }

    /// Forgets a segment whose file another program removed or changed, and counts its samples as lost.
    fn forget(&mut self, index: usize) {
        if index + 1 == self.segments.len() {
            self.open = None;
        }
        let Some(segment) = self.segments.remove(index) else { return };
        self.state.dropped_removed += segment.waiting;
        let (path, lost) = (segment.path.display(), segment.waiting);
        tracing::error!(%path, lost, "another program removed or changed this file of the spool; its samples are lost");
    }

    /// Drops the oldest segments until `bytes` more fit.
    fn make_room(&mut self, bytes: u64) {
        while self.bytes() + bytes > self.state.bytes_max {
            let Some(oldest) = self.segments.pop_front() else { return };
            if self.segments.is_empty() {
                self.open = None;
            }
            if oldest.waiting > 0 {
                self.state.dropped_full += oldest.waiting;
                let total = self.state.dropped_full;
                tracing::warn!(
                    dropped = oldest.waiting,
                    total,
                    "the spool is full; dropped its oldest samples"
                );
            }
            remove(&oldest);
        }
    }

    /// Removes finished segments, and saves the position in the first remaining one.
    fn remove_finished(&mut self) -> Result<(), SpoolError> {
        while let Some(oldest) = self.segments.front().filter(|segment| segment.waiting == 0) {
            if self.open.is_some() && self.segments.len() == 1 {
                break;
            }
            remove(oldest);
            self.segments.pop_front();
        }
        let Some(oldest) = self.segments.front() else { return Ok(()) };
        let (number, acknowledged) = (oldest.number, oldest.acknowledged);
        self.restore_directory()?;
        let noted = segment::save_cursor(&self.directory, number, acknowledged);
        noted.map_err(|source| SpoolError::Io { path: self.directory.clone(), source })
    }

    fn recover(&mut self) -> io::Result<()> {
        let cursor = segment::read_cursor(&self.directory);
        // Numbers are not reused, because a saved position would then apply to a new segment.
        self.next_segment = cursor.map_or(0, |(number, _)| number + 1);
        for (number, path) in segment::list(&self.directory)? {
            self.next_segment = self.next_segment.max(number + 1);
            let from = cursor.filter(|(segment, _)| *segment == number).map_or(0, |(_, place)| place);
            let (segment, damaged) = Segment::recover(number, path, from)?;
            self.state.damaged_lines += damaged;
            if segment.waiting == 0 {
                remove(&segment);
            } else {
                self.segments.push_back(segment);
            }
        }
        let state = self.state();
        if state.waiting > 0 || state.damaged_lines > 0 {
            let (waiting, damaged_lines) = (state.waiting, state.damaged_lines);
            tracing::info!(waiting, damaged_lines, "recovered samples of an earlier run from the spool");
        }
        self.make_room(0);
        Ok(())
    }
}

/// Options of a file that only its owner can read, if it is created.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Creates a directory that only its owner can read, and its parents, unless it exists.
fn create_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Writes a file that only its owner can read, if it is created.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    private().create(true).truncate(true).write(true).open(path)?.write_all(bytes)
}

/// Creates the directory of a spool and locks it.
fn lock(directory: &Path) -> Result<File, SpoolError> {
    let io_error = |source| SpoolError::Io { path: directory.to_owned(), source };
    create_directory(directory).map_err(io_error)?;
    let lock = private().create(true).truncate(false).write(true).open(directory.join(LOCK));
    let lock = lock.map_err(io_error)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(SpoolError::InUse(directory.to_owned())),
        Err(fs::TryLockError::Error(error)) => Err(io_error(error)),
    }
}

fn remove(segment: &Segment) {
    // A file that another program removed held no waiting sample.
    if let Err(error) = fs::remove_file(&segment.path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %segment.path.display(), %error, "failed to remove a segment of the spool");
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests;
