//! Old rows and what is kept in their place.
//!
//! A roll-up names the very rows that it stands for, and is carried out only if all of them are still there. So nothing is
//! summed up twice or lost, whoever else does the same, and whenever it is killed: no mark of progress can be wrong.

use std::collections::BTreeMap;

use evenstep_protocol::JobId;

use crate::summary::{NodeStep, NodeSums, WorkerStep, WorkerSums};

/// Rows to let go, and what they come to.
#[derive(Debug, Clone)]
pub enum RollUp {
    /// Samples become minutes.
    Samples {
        /// Which.
        samples: Vec<SampleKey>,
        /// Their minutes.
        minutes: BTreeMap<NodeStep, NodeSums>,
    },
    /// Minutes of nodes become hours, or hours go.
    NodeSteps {
        /// Which.
        steps: Vec<NodeStep>,
        /// Their hours.
        hours: BTreeMap<NodeStep, NodeSums>,
    },
    /// The oldest iterations of a job become minutes of its workers.
    Iterations {
        /// The job.
        job_id: JobId,
        /// The first iteration that was kept until now.
        kept_from: u64,
        /// The first iteration that is kept from now on.
        keep_from: u64,
        /// Reports before it.
        reports: u64,
        /// Answers before it.
        answers: u64,
        /// Minutes of the reports.
        minutes: BTreeMap<WorkerStep, WorkerSums>,
    },
    /// Minutes of a job's workers become hours, or hours go.
    WorkerSteps {
        /// The job.
        job_id: JobId,
        /// Which.
        steps: Vec<WorkerStep>,
        /// Their hours.
        hours: BTreeMap<WorkerStep, WorkerSums>,
    },
}

/// Which sample, and when it was taken.
#[derive(Debug, Clone)]
pub struct SampleKey {
    pub(crate) node: String,
    pub(crate) boot_id: String,
    pub(crate) sequence: i64,
    pub(crate) at_unix_ms: i64,
}

impl RollUp {
    /// Rows that it lets go.
    pub fn rows(&self) -> u64 {
        match self {
            Self::Samples { samples, .. } => samples.len() as u64,
            Self::NodeSteps { steps, .. } => steps.len() as u64,
            Self::Iterations { reports, answers, .. } => reports + answers,
            Self::WorkerSteps { steps, .. } => steps.len() as u64,
        }
    }
}
