//! Times of a job's joins, departures and reports, and the latest changes of its workers.

use evenstep_protocol::{JobId, WorkerId};

use crate::database::rows;
use crate::encode::{id, integer};
use crate::error::StoreError;
use crate::from_row::from_row;
use crate::store::Store;

/// Times of joins, departures and reports of a job. Times are in milliseconds since 1970.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredPast {
    /// Time at which the job was created.
    pub created_unix_ms: i64,
    /// Number of workers that ever joined.
    pub joined: u64,
    /// Time of the latest join.
    pub joined_unix_ms: Option<i64>,
    /// Time of the latest leave.
    pub left_unix_ms: Option<i64>,
    /// The worker whose lease expired last, and when.
    pub expired: Option<(WorkerId, i64)>,
    /// The latest reported position, and the time of its latest report.
    pub reported: Option<(u64, i64)>,
}

/// A change of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    /// Its time, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// `joined`, `left`, `expired`, `out_of_memory` or `override`.
    pub kind: String,
    /// The worker.
    pub worker: WorkerId,
}

pub(crate) struct PastRow {
    job_id: String,
    created_unix_ms: i64,
    joined: i64,
    joined_unix_ms: Option<i64>,
    left_unix_ms: Option<i64>,
    expired_unix_ms: Option<i64>,
    expired: Option<String>,
    iteration: Option<i64>,
    reported_unix_ms: Option<i64>,
}

from_row!(PastRow {
    job_id,
    created_unix_ms,
    joined,
    joined_unix_ms,
    left_unix_ms,
    expired_unix_ms,
    expired,
    iteration,
    reported_unix_ms
});

impl PastRow {
    /// Returns the job and its past.
    pub fn read(self) -> (String, StoredPast) {
        let expired = self.expired.and_then(|worker| id(worker).ok()).zip(self.expired_unix_ms);
        let iteration = self.iteration.map(i64::cast_unsigned);
        let past = StoredPast {
            created_unix_ms: self.created_unix_ms,
            joined: self.joined.cast_unsigned(),
            joined_unix_ms: self.joined_unix_ms,
            left_unix_ms: self.left_unix_ms,
            expired,
            reported: iteration.zip(self.reported_unix_ms),
        };
        (self.job_id, past)
    }
}

/// A column of a job's latest event of a kind.
macro_rules! latest {
    ($column:literal, $kind:literal) => {
        concat!(
            "(SELECT ",
            $column,
            " FROM event WHERE event.job_id = job.job_id AND kind = '",
            $kind,
            "' ORDER BY id DESC LIMIT 1)"
        )
    };
}

/// The query for the past of jobs, with a condition.
macro_rules! pasts {
    ($condition:literal) => {
        concat!(
            "SELECT job_id, created_unix_ms,
                 (SELECT count(*) FROM worker WHERE worker.job_id = job.job_id) AS joined,
                 ",
            latest!("at_unix_ms", "joined"),
            " AS joined_unix_ms, ",
            latest!("at_unix_ms", "left"),
            " AS left_unix_ms, ",
            latest!("at_unix_ms", "expired"),
            " AS expired_unix_ms, ",
            latest!("worker", "expired"),
            " AS expired,
                 (SELECT max(iteration) FROM report WHERE report.job_id = job.job_id) AS iteration,
                 (SELECT max(at_unix_ms) FROM report WHERE report.job_id = job.job_id
                  AND iteration = (SELECT max(iteration) FROM report AS newest WHERE newest.job_id = job.job_id)) AS reported_unix_ms
             FROM job ",
            $condition
        )
    };
}

/// The past of every job.
pub(crate) const PASTS: &str = pasts!("");
/// The past of a job.
pub(crate) const PAST: &str = pasts!("WHERE job_id = $1");
/// The latest changes of the workers of a job, newest first.
pub(crate) const EVENTS: &str =
    "SELECT at_unix_ms, kind, worker FROM event WHERE job_id = $1 ORDER BY id DESC LIMIT $2";

impl Store {
    /// Returns the past of a job. It is empty if the job does not exist.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn past(&self, job_id: &JobId) -> Result<StoredPast, StoreError> {
        let past = rows!(&self.readers, PastRow, PAST, job_id.as_str())?;
        Ok(past.into_iter().next().map(|row| row.read().1).unwrap_or_default())
    }

    /// Returns the latest changes of the workers of a job, at most `limit`, oldest first.
    ///
    /// # Errors
    /// See [`Store::job`].
    pub async fn recent_events(&self, job_id: &JobId, limit: u64) -> Result<Vec<StoredEvent>, StoreError> {
        let events = rows!(&self.readers, (i64, String, String), EVENTS, job_id.as_str(), integer(limit),)?;
        let event =
            |(at_unix_ms, kind, worker)| Some(StoredEvent { at_unix_ms, kind, worker: id(worker).ok()? });
        Ok(events.into_iter().rev().filter_map(event).collect())
    }
}
