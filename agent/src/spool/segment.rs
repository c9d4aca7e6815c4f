//! A segment of the spool: a header with the identity of the samples, then one line per sample.
//!
//! A line is `<CRC-32 of the rest, 8 hex digits> <rest>\n`. The rest is JSON in the header, and `<sequence
//! number> <JSON>` elsewhere. JSON text contains no line breaks, so a line with a valid checksum and a line
//! break was written completely.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenstep_protocol::{NodeId, NodeSample};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Maximum length of a line in bytes; samples are much smaller, so a longer line is damaged.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Number of digits in the name of a segment. Files with other names are not segments.
const NUMBER_DIGITS: usize = 12;

/// File with the position of the first unacknowledged sample, for the next start.
const CURSOR: &str = "acknowledged";

/// Identity of the samples in a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleIdentity {
    /// The node on which they were taken.
    pub node: NodeId,
    /// Boot id; sequence numbers are unique within it.
    pub boot_id: String,
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    /// `None` if the header is damaged, so the identity of the samples is unknown.
    pub(super) identity: Option<SampleIdentity>,
    pub(super) bytes: u64,
    /// Number of unacknowledged samples.
    pub(super) waiting: u64,
    /// Offset of the end of the last acknowledged sample.
    pub(super) acknowledged: u64,
}

impl Segment {
    pub(super) fn new(directory: &Path, number: u64, identity: SampleIdentity) -> Self {
        let path = directory.join(format!("{number:0NUMBER_DIGITS$}.segment"));
        Self { number, path, identity: Some(identity), bytes: 0, waiting: 0, acknowledged: 0 }
    }

    /// Opens a segment of an earlier run, whose samples are acknowledged up to the offset `from`. Also
    /// returns the number of damaged lines.
    pub(super) fn recover(number: u64, path: PathBuf, from: u64) -> io::Result<(Self, u64)> {
        let (identity, header_end) = read_header(&path)?;
        let acknowledged = from.max(header_end);
        let (mut records, mut damaged) = (0, 0);
        // Only counted: another program may have written more than fits into memory.
        each_line(&path, acknowledged, |_, line| {
            match line.and_then(record) {
                Some(_) => records += 1,
                None => damaged += 1,
            }
            true
        })?;
        let bytes = fs::metadata(&path)?.len();
        let (waiting, damaged) = match &identity {
            Some(_) => (records, damaged),
            None => (0, damaged + records + u64::from(bytes > 0)),
        };
        Ok((Self { number, path, identity, bytes, waiting, acknowledged }, damaged))
    }
}

/// A sample in a segment.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) sequence: u64,
    pub(super) sample: Box<RawValue>,
    /// Offset of its end.
    pub(super) end: u64,
}

/// Samples and damaged lines in a range of a segment.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) records: Vec<Record>,
    pub(super) damaged: u64,
}

impl Scan {
    /// Reads up to `records_max` samples from the offset `from`. Stops after the sample that reaches
    /// `bytes_max` bytes.
    pub(super) fn records(path: &Path, from: u64, records_max: usize, bytes_max: usize) -> io::Result<Self> {
        let mut scan = Self::default();
        let mut bytes = 0;
        each_line(path, from, |end, line| {
            match line.and_then(record) {
                Some((sequence, sample)) => {
                    bytes += sample.get().len();
                    scan.records.push(Record { sequence, sample, end });
                }
                None => scan.damaged += 1,
            }
            scan.records.len() < records_max && bytes < bytes_max
        })?;
        Ok(scan)
    }
}

/// Calls `take` with the end of each line from the offset `from`, and with its text if the checksum matches, until `take`
/// returns false.
fn each_line(path: &Path, from: u64, mut take: impl FnMut(u64, Option<&str>) -> bool) -> io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut reader = BufReader::new(file);
    let (mut end, mut line) = (from, Vec::new());
    loop {
        line.clear();
        let length = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        end += length as u64;
        if length == 0 || !take(end, verify_checksum(&line)) {
            return Ok(());
        }
    }
}

pub(super) fn header_line(identity: &SampleIdentity) -> serde_json::Result<Vec<u8>> {
    Ok(with_checksum(&serde_json::to_string(identity)?))
}

pub(super) fn record_line(sequence: u64, sample: &NodeSample) -> serde_json::Result<Vec<u8>> {
    Ok(with_checksum(&format!("{sequence} {}", serde_json::to_string(sample)?)))
}

/// Whether an open file is still the one at `path`.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let open = file.metadata().map(identity);
    matches!((open, fs::metadata(path).map(identity)), (Ok(open), Ok(there)) if open == there)
}

/// Returns the number in the name of a file: exactly 12 digits.
pub(super) fn file_number(stem: &str) -> Option<u64> {
    let is_number = stem.len() == NUMBER_DIGITS && stem.bytes().all(|byte| byte.is_ascii_digit());
    stem.parse().ok().filter(|_| is_number)
}

/// Returns the segments in a directory, oldest first.
pub(super) fn list(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "segment") {
            continue;
        }
        if let Some(number) = path.file_stem().and_then(|stem| file_number(stem.to_str()?)) {
            segments.push((number, path));
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// Saves the position atomically. A lost or old position only means that samples are sent again.
pub(super) fn save_cursor(directory: &Path, segment: u64, place: u64) -> io::Result<()> {
    let written = directory.join("acknowledged.new");
    super::write(&written, &with_checksum(&format!("{segment} {place}")))?;
    fs::rename(written, directory.join(CURSOR))
}

pub(super) fn read_cursor(directory: &Path) -> Option<(u64, u64)> {
    let line = fs::read(directory.join(CURSOR)).ok()?;
    let (segment, place) = verify_checksum(&line)?.split_once(' ')?;
    // The next segment has the next number.
    let segment = segment.parse::<u64>().ok().filter(|segment| *segment < u64::MAX)?;
    Some((segment, place.parse().ok()?))
}

fn read_header(path: &Path) -> io::Result<(Option<SampleIdentity>, u64)> {
    let mut line = Vec::new();
    let length = BufReader::new(File::open(path)?).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    let identity = verify_checksum(&line).and_then(|text| serde_json::from_str(text).ok());
    Ok((identity, length as u64))
}

fn record(text: &str) -> Option<(u64, Box<RawValue>)> {
    let (sequence, sample) = text.split_once(' ')?;
    Some((sequence.parse().ok()?, RawValue::from_string(sample.to_owned()).ok()?))
}

fn with_checksum(text: &str) -> Vec<u8> {
    format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes())).into_bytes()
}

fn verify_checksum(line: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (sum, text) = text.split_at_checked(8)?;
    let text = text.strip_prefix(' ')?;
    (u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(text.as_bytes())).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_line_round_trips_and_any_change_is_detected(text in "[ -~]{0,80}", at: prop::sample::Index, flip in 1_u8..) {
            let mut line = with_checksum(&text);
            prop_assert_eq!(verify_checksum(&line), Some(text.as_str()));
            let at = at.index(line.len());
            line[at] ^= flip;
            // A hexadecimal digit of the checksum may change its case, which does not change its value.
            let same = verify_checksum(&line) == Some(text.as_str()) && at < 8;
            prop_assert!(same || verify_checksum(&line).is_none());
        }

        #[test]
        fn a_line_truncated_at_any_byte_is_damaged(text in "[ -~]{0,80}", at: prop::sample::Index) {
            let line = with_checksum(&text);
            prop_assert_eq!(verify_checksum(&line[..at.index(line.len())]), None);
        }
    }
}
