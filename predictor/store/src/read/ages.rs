//! Age of the stored history, and the retention that jobs request.

use evenstep_protocol::JobId;

use crate::database::rows;
use crate::encode::{Json, id, job_spec};
use crate::error::StoreError;
use crate::store::Store;

/// The times of the oldest and the newest sample.
pub(crate) const SAMPLES_SPAN: &str = "SELECT min(first), max(last) FROM (
    SELECT (SELECT min(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node) AS first,
    (SELECT max(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node) AS last
    FROM node) AS spans";

/// The times of the oldest and the newest allocation.
pub(crate) const ALLOCATIONS_SPAN: &str = "SELECT min(first), max(last) FROM (
    SELECT (SELECT at_unix_ms FROM allocation WHERE allocation.job_id = job.job_id
    ORDER BY iteration, generation LIMIT 1) AS first,
    (SELECT at_unix_ms FROM allocation WHERE allocation.job_id = job.job_id
    ORDER BY iteration DESC, generation DESC LIMIT 1) AS last
    FROM job) AS spans";

impl Store {
    /// Returns every job whose options can be read, with its own retention of raw history in seconds, if they set one.
    ///
    /// # Errors
    /// See [`Store::old_samples`].
    pub async fn job_retentions(&self) -> Result<Vec<(JobId, Option<u64>)>, StoreError> {
        let jobs = rows!(&self.readers, (String, Json), "SELECT job_id, spec FROM job ORDER BY job_id")?;
        let keep = |(job_id, spec): (String, Json)| Some((id(job_id).ok()?, job_spec(&spec).ok()?.0.keep_s));
        Ok(jobs.into_iter().filter_map(keep).collect())
    }

    /// Returns the times of the oldest and newest samples, in milliseconds since 1970 by the nodes' clocks.
    ///
    /// # Errors
    /// See [`Store::old_samples`].
    pub async fn samples_span_unix_ms(&self) -> Result<Option<[i64; 2]>, StoreError> {
        self.span(SAMPLES_SPAN).await
    }

    /// Returns the times of the oldest and newest allocations, in milliseconds since 1970 by the predictor's
    /// clock.
    ///
    /// # Errors
    /// See [`Store::old_samples`].
    pub async fn allocations_span_unix_ms(&self) -> Result<Option<[i64; 2]>, StoreError> {
        self.span(ALLOCATIONS_SPAN).await
    }

    async fn span(&self, sql: &'static str) -> Result<Option<[i64; 2]>, StoreError> {
        let spans = rows!(&self.readers, (Option<i64>, Option<i64>), sql)?;
        Ok(spans.into_iter().next().and_then(|(first, last)| Some([first?, last?])))
    }
}
