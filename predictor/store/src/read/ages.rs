//! How old the stored history is, and how long each job keeps its own.

use evenstep_protocol::{JobId, JobSpec};

use crate::database::rows;
use crate::encode::{from_json, id};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Every job, and for how many seconds its raw history is kept where it says so itself.
    ///
    /// # Errors
    /// As [`Store::old_samples`].
    pub async fn job_keeps(&self) -> Result<Vec<(JobId, Option<u64>)>, StoreError> {
        let jobs = rows!(&self.readers, (String, String), "SELECT job_id, spec FROM job ORDER BY job_id")?;
        let keep = |(job_id, spec): (String, String)| {
            let spec: JobSpec = from_json(&spec, "job")?;
            Ok((id(job_id)?, spec.keep_s))
        };
        jobs.into_iter().map(keep).collect()
    }

    /// When the oldest and the newest sample were taken, in milliseconds since 1970 by the nodes' clocks.
    ///
    /// # Errors
    /// As [`Store::old_samples`].
    pub async fn samples_span_unix_ms(&self) -> Result<Option<[i64; 2]>, StoreError> {
        self.span(
            "SELECT min(first), max(last) FROM (
                 SELECT (SELECT min(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node) AS first,
                        (SELECT max(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node) AS last
                 FROM node) AS spans",
        )
        .await
    }

    /// When the oldest and the newest answer were given, in milliseconds since 1970 by our clock.
    ///
    /// # Errors
    /// As [`Store::old_samples`].
    pub async fn answers_span_unix_ms(&self) -> Result<Option<[i64; 2]>, StoreError> {
        self.span(
            "SELECT min(first), max(last) FROM (
                 SELECT (SELECT at_unix_ms FROM allocation WHERE allocation.job_id = job.job_id
                         ORDER BY iteration, generation LIMIT 1) AS first,
                        (SELECT at_unix_ms FROM allocation WHERE allocation.job_id = job.job_id
                         ORDER BY iteration DESC, generation DESC LIMIT 1) AS last
                 FROM job) AS spans",
        )
        .await
    }

    async fn span(&self, sql: &'static str) -> Result<Option<[i64; 2]>, StoreError> {
        let spans = rows!(&self.readers, (Option<i64>, Option<i64>), sql)?;
        Ok(spans.into_iter().next().and_then(|(first, last)| Some([first?, last?])))
    }
}
