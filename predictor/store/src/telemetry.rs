//! Telemetry samples to be stored: validated once, and kept as the received bytes.

use std::ops::Range;

use evenstep_protocol::NodeId;

/// Samples of one node, as ranges of the received text, so that they need no serialization.
#[derive(Debug, Clone)]
pub struct TelemetryRows {
    node: NodeId,
    boot_id: String,
    sequence: u64,
    text: String,
    samples: Vec<Sample>,
}

/// A sample: its time, and its range in the text.
#[derive(Debug, Clone)]
struct Sample {
    at_unix_ms: i64,
    bytes: Range<usize>,
}

/// A row of `node_sample`, without the node and boot id that all rows share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TelemetryRow<'a> {
    /// Sequence number.
    pub sequence: u64,
    /// Time of the sample, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// The sample as received (JSON, `protocol::NodeSample`).
    pub sample: &'a str,
}

impl TelemetryRows {
    /// Creates the rows for samples of `node` in `text`. `samples` has the time and byte range of each;
    /// `sequence` is the number of the first.
    ///
    /// Returns `None` if a range lies outside the text or splits a character.
    pub fn new(
        node: NodeId,
        boot_id: String,
        sequence: u64,
        text: String,
        samples: impl IntoIterator<Item = (i64, Range<usize>)>,
    ) -> Option<Self> {
        let sample = |(at_unix_ms, bytes): (i64, Range<usize>)| {
            text.get(bytes.clone()).map(|_| Sample { at_unix_ms, bytes })
        };
        let samples = samples.into_iter().map(sample).collect::<Option<Vec<_>>>()?;
        Some(Self { node, boot_id, sequence, text, samples })
    }

    /// Returns the node of the samples.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Returns the boot id: the sender's sequence numbers are unique within it.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Returns the sequence number of the first sample.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns the sequence number that follows the last sample.
    pub fn next_sequence(&self) -> u64 {
        self.sequence.saturating_add(self.samples.len() as u64)
    }

    /// Returns the memory in use, in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.samples.len() * size_of::<Sample>()
    }

    /// Iterates over the rows in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = TelemetryRow<'_>> {
        self.samples.iter().enumerate().map(|(at, sample)| TelemetryRow {
            sequence: self.sequence.saturating_add(at as u64),
            at_unix_ms: sample.at_unix_ms,
            // `new` has checked the range.
            sample: self.text.get(sample.bytes.clone()).unwrap_or_default(),
        })
    }
}
