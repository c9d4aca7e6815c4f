//! Changes that the store writes.

use std::sync::Arc;

use bytes::Bytes;
use evenstep_protocol::{JobId, JobSpec, JoinRequest, WorkerId, WorkerOverride, WorkerReport};

use crate::roll_up::RollUp;
use crate::telemetry::TelemetryRows;

/// One change; a transaction makes several, all or none.
#[derive(Debug, Clone)]
pub enum Change {
    /// A job is new; one that is there already stays as it is.
    CreateJob {
        /// The job.
        job_id: JobId,
        /// Its wishes.
        spec: Box<JobSpec>,
    },
    /// A job's wishes changed.
    PutJob {
        /// The job.
        job_id: JobId,
        /// Its wishes.
        spec: Box<JobSpec>,
    },
    /// Some of the oldest rows of a job go for good, and none of its iterations is answered any more: the first steps of
    /// its deletion, so that no transaction is as long as its history.
    TrimJob {
        /// The job.
        job_id: JobId,
    },
    /// A job and all its history goes.
    DeleteJob {
        /// The job.
        job_id: JobId,
    },
    /// The set of workers changed.
    Membership {
        /// The job.
        job_id: JobId,
        /// The generation that this change builds on. Fails with [`crate::StoreError::Taken`] where another came in between.
        replaces: u64,
        /// Its generation now.
        generation: u64,
        /// The generation of its latest departure.
        departed_generation: u64,
        /// What happened to whom.
        events: Vec<MemberEvent>,
    },
    /// Iterations went like this.
    Reports {
        /// The job.
        job_id: JobId,
        /// One for each worker and iteration; those stored before stay as they are.
        reports: Arc<[WorkerReport]>,
    },
    /// An iteration is answered. Fails with [`crate::StoreError::Taken`] where it was answered in this generation before.
    Allocation {
        /// The job.
        job_id: JobId,
        /// The iteration.
        iteration: u64,
        /// The generation it was planned in.
        generation: u64,
        /// The answer (JSON), byte for byte.
        answer: Bytes,
    },
    /// Where the learning-rate rule of a job stands, in the place of what was stored before.
    LearningRate {
        /// The job.
        job_id: JobId,
        /// The rule's state (JSON).
        state: String,
    },
    /// What the models of a job have learned, in the place of what was stored before.
    Models {
        /// The job.
        job_id: JobId,
        /// The layout of the state.
        format: u32,
        /// The models.
        state: Vec<u8>,
    },
    /// What was learned on a kind of device, in the place of what was stored before.
    DeviceModel {
        /// The device, as workers name it.
        device: String,
        /// The layout of the state.
        format: u32,
        /// What was learned.
        state: Vec<u8>,
    },
    /// An agent's samples; those stored before stay as they are.
    Telemetry(TelemetryRows),
    /// Old rows go, and what they come to is kept. Fails with [`crate::StoreError::Taken`] where one of them is gone already.
    RollUp(Arc<RollUp>),
    /// Nothing, written durably: it shows whether the store takes writes.
    Probe,
}

/// What a report takes in memory, roughly.
const REPORT_BYTES: usize = 1024;
/// What a row that goes takes in memory, roughly.
const ROLLED_UP_BYTES: usize = 256;
/// What any other change takes in memory, roughly.
const CHANGE_BYTES: usize = 1024;

impl Change {
    /// What it takes in memory while it waits, roughly.
    pub(crate) fn bytes(&self) -> usize {
        let more = match self {
            Self::Reports { reports, .. } => reports.len() * REPORT_BYTES,
            Self::Allocation { answer, .. } => answer.len(),
            Self::Models { state, .. } | Self::DeviceModel { state, .. } => state.len(),
            Self::Telemetry(rows) => rows.bytes(),
            Self::RollUp(roll_up) => {
                usize::try_from(roll_up.rows()).unwrap_or(usize::MAX).saturating_mul(ROLLED_UP_BYTES)
            }
            _ => 0,
        };
        CHANGE_BYTES + more
    }

    /// Whether nobody's training waits for it.
    pub(crate) fn can_wait(&self) -> bool {
        match self {
            // A job is held while its iterations go.
            Self::RollUp(roll_up) => !matches!(**roll_up, RollUp::Iterations { .. }),
            other => matches!(
                other,
                Self::Telemetry(_) | Self::Models { .. } | Self::DeviceModel { .. } | Self::TrimJob { .. }
            ),
        }
    }
}

/// What happened to a worker.
#[derive(Debug, Clone)]
pub struct MemberEvent {
    /// The worker.
    pub worker: WorkerId,
    /// What happened.
    pub kind: MemberEventKind,
}

/// Kinds of changes of the set of workers.
#[derive(Debug, Clone)]
pub enum MemberEventKind {
    /// It takes part, with these bounds, behind the others.
    Joined(JoinRequest),
    /// It still takes part, with new bounds.
    Rejoined(JoinRequest),
    /// It said that it leaves.
    Left,
    /// Its lease ran out.
    Expired,
    /// It ran out of memory: it gets at most so many samples at once from now on.
    OutOfMemory(u64),
    /// What an operator wants of it; `None` where that is lifted.
    Override(Option<WorkerOverride>),
}
