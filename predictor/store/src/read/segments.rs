//! Reading the segments of a job's positions.

use evenstep_protocol::JobId;

use crate::database::rows;
use crate::error::StoreError;
use crate::from_row::from_row;
use crate::store::Store;

/// A segment: iterations of one attempt that follow one another. Iterations of stored reports, allocations and steps are positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredSegment {
    /// The attempt, from 1.
    pub attempt: u64,
    /// The first iteration.
    pub first_iteration: u64,
    /// Its position.
    pub first_position: u64,
}

pub(crate) struct SegmentRow {
    pub job_id: String,
    attempt: i64,
    first_iteration: i64,
    first_position: i64,
}

from_row!(SegmentRow { job_id, attempt, first_iteration, first_position });

impl SegmentRow {
    /// Returns the segment.
    pub fn segment(&self) -> StoredSegment {
        StoredSegment {
            attempt: self.attempt.cast_unsigned(),
            first_iteration: self.first_iteration.cast_unsigned(),
            first_position: self.first_position.cast_unsigned(),
        }
    }
}

/// The segments of a job, in order.
pub(crate) const SEGMENTS: &str = "SELECT job_id, attempt, first_iteration, first_position FROM segment
    WHERE job_id = $1 ORDER BY first_position";

/// The segments of all jobs, in order.
pub(crate) const ALL_SEGMENTS: &str =
    "SELECT job_id, attempt, first_iteration, first_position FROM segment ORDER BY job_id, first_position";

impl Store {
    /// Returns the segments of a job in order of positions, without the first one.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn segments(&self, job_id: &JobId) -> Result<Vec<StoredSegment>, StoreError> {
        let rows = rows!(&self.readers, SegmentRow, SEGMENTS, job_id.as_str())?;
        Ok(rows.iter().map(SegmentRow::segment).collect())
    }
}
