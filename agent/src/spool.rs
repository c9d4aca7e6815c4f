//! The spool: samples on disk until the predictor has acknowledged them.
//!
//! It is a directory of segments, files of lines that are only ever appended to, each line with its checksum. Every
//! start of the agent is a life of its own: it takes a new boot id, counts from 0 and writes segments of its own, so
//! that no (boot id, sequence number) is ever used twice, whatever a crash or a power cut took from the disk.
//!
//! A sample is handed to the operating system as soon as it is taken, which survives the end of the agent in any way,
//! `kill -9` too. It is not synced to the disk one by one: that would write a device block every second for the life
//! of the node. A power cut may therefore take the last seconds that were not sent yet. Segments are synced when full.

mod rejected;
mod segment;

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use evenstep_protocol::{NodeId, NodeSample};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use rejected::Rejected;
use segment::{Scan, Segment};

/// The least room that makes sense: some dozens of samples.
pub const SPOOL_BYTES_MIN: u64 = 64 << 10;
/// The part of the room that is kept for rejected batches.
const REJECTED_SHARE: u64 = 8;
/// The spool is cut in about this many segments: the oldest is what is dropped when it is full.
const SEGMENTS: u64 = 16;
/// A segment is closed when it has grown to this, however large the spool may be.
const SEGMENT_BYTES_MAX: u64 = 1 << 20;
/// Samples in one batch, by the contract.
pub const BATCH_SAMPLES_MAX: usize = 1000;
/// Bytes of samples in one batch, unless a single sample is larger.
const BATCH_BYTES_MAX: usize = 512 << 10;

/// Whose samples a segment holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// The machine they were taken on.
    pub node: NodeId,
    /// The life of the sequence counter.
    pub boot_id: String,
}

/// Samples that wait, in the shape of a telemetry batch.
#[derive(Debug, Serialize)]
pub struct Batch {
    /// Whose samples.
    #[serde(flatten)]
    pub life: Life,
    /// Sequence number of the first.
    pub sequence: u64,
    /// The samples, with consecutive numbers.
    pub samples: Vec<Box<RawValue>>,
    #[serde(skip)]
    segment: u64,
    /// For each sample the place in the segment just behind it.
    #[serde(skip)]
    ends: Vec<u64>,
}

/// How the spool fares.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SpoolState {
    /// Bytes on disk in segments.
    pub bytes: u64,
    /// The most they may take; the oldest samples are dropped beyond.
    pub bytes_max: u64,
    /// Samples not acknowledged yet.
    pub waiting: u64,
    /// Samples lost because the spool was full.
    pub dropped_full: u64,
    /// Samples lost because they could not be written.
    pub dropped_unwritable: u64,
    /// Lines that a crash tore, or that the disk garbled; each held one sample at most.
    pub damaged_lines: u64,
    /// Batches set aside because the predictor refused their content.
    pub rejected_batches: u64,
    /// Samples in them.
    pub rejected_samples: u64,
}

/// Why the spool cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Another agent has it.
    #[error("the spool {0} is in use by another agent: give each its own --spool-dir")]
    InUse(PathBuf),
    /// One sample alone is larger than the spool may be.
    #[error(
        "a sample of {bytes} bytes is larger than the spool may be ({bytes_max} bytes, --spool-max-bytes)"
    )]
    SampleTooLarge {
        /// Its size.
        bytes: u64,
        /// The room.
        bytes_max: u64,
    },
    /// The disk refused.
    #[error("the spool {path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A sample cannot be written down.
    #[error("a sample cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// An open spool.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    /// Locked while this lives.
    _lock: File,
    life: Life,
    next_sequence: u64,
    /// The oldest first; the last is the one written to while `open` is there.
    segments: VecDeque<Segment>,
    next_segment: u64,
    open: Option<File>,
    rejected: Rejected,
    state: SpoolState,
}

impl Spool {
    /// Opens the spool in `directory`, with what earlier lives left there; `life` must be a new one.
    ///
    /// # Errors
    /// [`SpoolError::InUse`] where another agent has it, [`SpoolError::Io`] where the disk refuses.
    pub fn open(directory: &Path, bytes_max: u64, life: Life) -> Result<Self, SpoolError> {
        let io_error = |source| SpoolError::Io { path: directory.to_owned(), source };
        fs::create_dir_all(directory).map_err(io_error)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(directory.join("lock"));
        let lock = lock.map_err(io_error)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(SpoolError::InUse(directory.to_owned())),
            Err(fs::TryLockError::Error(error)) => return Err(io_error(error)),
        }
        let rejected_bytes = bytes_max / REJECTED_SHARE;
        let mut spool = Self {
            directory: directory.to_owned(),
            _lock: lock,
            life,
            next_sequence: 0,
            segments: VecDeque::new(),
            next_segment: 0,
            open: None,
            rejected: Rejected::open(&directory.join("rejected"), rejected_bytes).map_err(io_error)?,
            state: SpoolState { bytes_max: bytes_max - rejected_bytes, ..SpoolState::default() },
        };
        spool.recover().map_err(io_error)?;
        Ok(spool)
    }

    /// Whose samples are appended.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// How it fares.
    pub fn state(&self) -> SpoolState {
        let waiting = self.segments.iter().map(|segment| segment.waiting).sum();
        SpoolState { bytes: self.bytes(), waiting, ..self.state.clone() }
    }

    /// Keeps a sample and gives its sequence number. Where there is no room the oldest samples are dropped.
    ///
    /// # Errors
    /// The sample could not be written and is lost, and counted; its sequence number is not used up.
    pub fn append(&mut self, sample: &NodeSample) -> Result<u64, SpoolError> {
        self.try_append(sample).inspect_err(|_| self.state.dropped_unwritable += 1)
    }

    /// The oldest samples that wait, from one life and with consecutive numbers; none when all are acknowledged.
    ///
    /// # Errors
    /// A segment could not be read.
    pub fn next_batch(&mut self, samples_max: usize) -> Result<Option<Batch>, SpoolError> {
        while let Some(index) = self.segments.iter().position(|segment| segment.waiting > 0) {
            let segment = &mut self.segments[index];
            let scan = Scan::records(&segment.path, segment.acknowledged, samples_max, BATCH_BYTES_MAX);
            let scan = scan.map_err(|source| SpoolError::Io { path: segment.path.clone(), source })?;
            let Some(first) = scan.records.first() else {
                // The count of waiting samples came from this very file, which has been garbled since.
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
            let Some(life) = segment.life.clone() else {
                segment.waiting = 0;
                continue;
            };
            return Ok(Some(Batch { life, sequence, samples, segment: segment.number, ends }));
        }
        Ok(None)
    }

    /// Forgets the samples of `batch` below `next_sequence`: the predictor has them. Gives how many those were.
    ///
    /// # Errors
    /// The place could not be noted on disk: it is known in this life, and the next may send samples again.
    pub fn acknowledge(&mut self, batch: &Batch, next_sequence: u64) -> Result<u64, SpoolError> {
        let count = next_sequence.saturating_sub(batch.sequence).min(batch.samples.len() as u64);
        let Some(end) = usize::try_from(count).ok().and_then(|count| batch.ends.get(count.checked_sub(1)?))
        else {
            return Ok(0);
        };
        // A segment that was dropped while its batch was under way has nothing left to forget.
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == batch.segment) {
            segment.acknowledged = *end;
            segment.waiting = segment.waiting.saturating_sub(count);
        }
        self.settle()?;
        Ok(count)
    }

    /// Puts a batch that the predictor refused for its content aside, and goes on behind it.
    ///
    /// # Errors
    /// It could not be put aside; it stays where it is.
    pub fn set_aside(&mut self, batch: &Batch, reason: &str) -> Result<(), SpoolError> {
        self.rejected
            .keep(batch, reason)
            .map_err(|source| SpoolError::Io { path: self.directory.join("rejected"), source })?;
        self.state.rejected_batches += 1;
        self.state.rejected_samples += batch.samples.len() as u64;
        self.acknowledge(batch, batch.sequence + batch.samples.len() as u64).map(drop)
    }

    /// Syncs what was appended to the disk.
    ///
    /// # Errors
    /// The disk refused.
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
        let header = segment::header_line(&self.life)?;
        if bytes + header.len() as u64 > self.state.bytes_max {
            return Err(SpoolError::SampleTooLarge { bytes, bytes_max: self.state.bytes_max });
        }
        let segment_bytes = (self.state.bytes_max / SEGMENTS).min(SEGMENT_BYTES_MAX);
        let is_full = |segment: &Segment| segment.bytes + bytes > segment_bytes;
        if self.open.is_some() && self.segments.back().is_some_and(is_full) {
            self.close();
        }
        let needed = if self.open.is_some() { bytes } else { bytes + header.len() as u64 };
        self.make_room(needed);
        if let Err(source) = self.write(&header, &line) {
            // The line may be torn: nothing may follow it in that file.
            self.close();
            return Err(SpoolError::Io { path: self.directory.clone(), source });
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        Ok(sequence)
    }

    fn write(&mut self, header: &[u8], line: &[u8]) -> io::Result<()> {
        if self.open.is_none() {
            let segment = Segment::new(&self.directory, self.next_segment, self.life.clone());
            self.next_segment += 1;
            let mut file = OpenOptions::new().create_new(true).append(true).open(&segment.path)?;
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
            tracing::warn!(%error, "a full segment of the spool could not be synced");
        }
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
                    "the spool is full: its oldest samples are lost"
                );
            }
            remove(&oldest);
        }
    }

    /// Removes segments that are done with, and notes where the first one left stands.
    fn settle(&mut self) -> Result<(), SpoolError> {
        while let Some(oldest) = self.segments.front().filter(|segment| segment.waiting == 0) {
            if self.open.is_some() && self.segments.len() == 1 {
                break;
            }
            remove(oldest);
            self.segments.pop_front();
        }
        let Some(oldest) = self.segments.front() else { return Ok(()) };
        let noted = segment::note_cursor(&self.directory, oldest.number, oldest.acknowledged);
        noted.map_err(|source| SpoolError::Io { path: self.directory.clone(), source })
    }

    fn recover(&mut self) -> io::Result<()> {
        let cursor = segment::read_cursor(&self.directory);
        // A number is never used again, or an old cursor would be taken for that of a new segment.
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
            tracing::info!(waiting, damaged_lines, "samples of an earlier run are in the spool");
        }
        self.make_room(0);
        Ok(())
    }
}

fn remove(segment: &Segment) {
    if let Err(error) = fs::remove_file(&segment.path) {
        tracing::warn!(path = %segment.path.display(), %error, "a segment of the spool cannot be removed");
    }
}

#[cfg(test)]
impl Batch {
    /// A batch of `count` samples without readings.
    pub(crate) fn for_test(life: Life, sequence: u64, count: usize) -> Self {
        let sample = || RawValue::from_string("{\"at_unix_ms\":0}".to_owned()).unwrap();
        let samples = (0..count).map(|_| sample()).collect();
        Self { life, sequence, samples, segment: 0, ends: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
