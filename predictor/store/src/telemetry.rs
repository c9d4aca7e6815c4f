//! Samples on their way into the store: checked once, and kept as the bytes that came.

use std::ops::Range;

use evenstep_protocol::NodeId;

/// Samples of one node, in the text they came in: nothing is written out again.
#[derive(Debug, Clone)]
pub struct TelemetryRows {
    node: NodeId,
    boot_id: String,
    sequence: u64,
    text: String,
    samples: Vec<Sample>,
}

/// A sample: when it was taken, and where it stands in the text.
#[derive(Debug, Clone)]
struct Sample {
    at_unix_ms: i64,
    bytes: Range<usize>,
}

/// One row of `node_sample`; node and boot id are those of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TelemetryRow<'a> {
    /// Its sequence number.
    pub sequence: u64,
    /// When it was taken, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// The sample (JSON, `protocol::NodeSample`), as it came.
    pub sample: &'a str,
}

impl TelemetryRows {
    /// The samples of `node` in `text`: of each when it was taken and which bytes it has, the first one numbered `sequence`.
    ///
    /// `None` where bytes lie outside the text or cut through a character.
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

    /// The machine they were taken on.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// The life of the sender's counter.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// The sequence number of the first.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The sequence number behind the last.
    pub fn next_sequence(&self) -> u64 {
        self.sequence.saturating_add(self.samples.len() as u64)
    }

    /// Memory that they hold, in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.samples.len() * size_of::<Sample>()
    }

    /// Row by row, in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = TelemetryRow<'_>> {
        self.samples.iter().enumerate().map(|(at, sample)| TelemetryRow {
            sequence: self.sequence.saturating_add(at as u64),
            at_unix_ms: sample.at_unix_ms,
            // Looked up in `new` already.
            sample: self.text.get(sample.bytes.clone()).unwrap_or_default(),
        })
    }
}
