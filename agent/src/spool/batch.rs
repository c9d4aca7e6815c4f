//! Waiting samples, as they are sent.

use serde::Serialize;
use serde_json::value::RawValue;

use super::segment::SampleIdentity;

/// Waiting samples, in the form of a telemetry batch.
#[derive(Debug, Serialize)]
pub struct Batch {
    /// Identity of the samples.
    #[serde(flatten)]
    pub identity: SampleIdentity,
    /// Sequence number of the first sample.
    pub sequence: u64,
    /// The samples, with consecutive sequence numbers.
    pub samples: Vec<Box<RawValue>>,
    #[serde(skip)]
    pub(super) segment: u64,
    /// Offset in the segment of each sample's end.
    #[serde(skip)]
    pub(super) ends: Vec<u64>,
}

#[cfg(test)]
impl Batch {
    /// Creates a batch of `count` samples without readings.
    pub(crate) fn for_test(identity: SampleIdentity, sequence: u64, count: usize) -> Self {
        let sample = || RawValue::from_string("{\"at_unix_ms\":0}".to_owned()).unwrap();
        let samples = (0..count).map(|_| sample()).collect();
        Self { identity, sequence, samples, segment: 0, ends: Vec::new() }
    }
}
