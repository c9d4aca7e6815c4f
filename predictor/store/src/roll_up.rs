//! Roll-up: old rows are replaced by their summary.
//!
//! A roll-up names exactly the rows that it summarizes, and takes effect only if all of them still exist.
//! Therefore no row is counted twice or lost if several processes roll up at once or one is killed. No
//! progress marker is needed.

use std::collections::BTreeMap;

use evenstep_protocol::JobId;

use crate::summary::{NodeStep, NodeSums, WorkerStep, WorkerSums};

/// Rows to delete, and the summaries that replace them.
#[derive(Debug, Clone)]
pub enum RollUp {
    /// Replaces samples by summaries per minute.
    Samples {
        /// Samples to delete.
        samples: Vec<SampleKey>,
        /// Their summaries.
        minutes: BTreeMap<NodeStep, NodeSums>,
    },
    /// Replaces a node's summaries per minute by summaries per hour, or deletes summaries per hour.
    NodeSteps {
        /// Summaries to delete.
        steps: Vec<NodeStep>,
        /// Their summaries per hour.
        hours: BTreeMap<NodeStep, NodeSums>,
    },
    /// Replaces the oldest iterations of a job by summaries per minute of its workers.
    Iterations {
        /// The job.
        job_id: JobId,
        /// First iteration that is kept before the roll-up.
        kept_from: u64,
        /// First iteration that is kept after it.
        keep_from: u64,
        /// Number of reports before `keep_from`.
        reports: u64,
        /// Number of allocations before `keep_from`.
        answers: u64,
        /// Summaries of the reports.
        minutes: BTreeMap<WorkerStep, WorkerSums>,
    },
    /// Replaces summaries per minute of a job's workers by summaries per hour, or deletes summaries per hour.
    WorkerSteps {
        /// The job.
        job_id: JobId,
        /// Summaries to delete.
        steps: Vec<WorkerStep>,
        /// Their summaries per hour.
        hours: BTreeMap<WorkerStep, WorkerSums>,
    },
}

/// Key and time of a sample.
#[derive(Debug, Clone)]
pub struct SampleKey {
    pub(crate) node: String,
    pub(crate) boot_id: String,
    pub(crate) sequence: i64,
    pub(crate) at_unix_ms: i64,
}

impl RollUp {
    /// Returns the number of rows that the roll-up deletes.
    pub fn rows(&self) -> u64 {
        match self {
            Self::Samples { samples, .. } => samples.len() as u64,
            Self::NodeSteps { steps, .. } => steps.len() as u64,
            Self::Iterations { reports, answers, .. } => reports + answers,
            Self::WorkerSteps { steps, .. } => steps.len() as u64,
        }
    }
}
