//! Changes that the store can make.

use std::sync::Arc;

use bytes::Bytes;
use evenstep_protocol::{JobId, JobSpec, JoinRequest, WorkerId, WorkerOverride, WorkerReport};

use crate::access::{AccessChange, AuditEntry};
use crate::read::StoredSegment;
use crate::roll_up::RollUp;
use crate::telemetry::TelemetryRows;

/// A change. One transaction makes several changes, all or none.
#[derive(Debug, Clone)]
pub enum Change {
    /// Adds a job and an entry to the audit log, unless the job exists.
    CreateJob {
        /// The job.
        job_id: JobId,
        /// The job options.
        spec: Box<JobSpec>,
        /// The entry.
        entry: AuditEntry,
    },
    /// Replaces a job's options.
    PutJob {
        /// The job.
        job_id: JobId,
        /// The job options.
        spec: Box<JobSpec>,
    },
    /// Deletes some of a job's oldest rows and expires all its iterations. Deleting a job starts with these
    /// changes, so that no transaction is as long as the job's history.
    TrimJob {
        /// The job.
        job_id: JobId,
    },
    /// Deletes a job and its history.
    DeleteJob {
        /// The job.
        job_id: JobId,
    },
    /// Changes the membership of a job.
    Membership {
        /// The job.
        job_id: JobId,
        /// The generation that this change builds on. Fails with [`crate::StoreError::Superseded`] if another
        /// change came first.
        replaces: u64,
        /// The new generation.
        generation: u64,
        /// The generation of the job's latest departure.
        departed_generation: u64,
        /// The events, one per worker.
        events: Vec<MemberEvent>,
    },
    /// Adds reports of workers.
    Reports {
        /// The job.
        job_id: JobId,
        /// One report per worker and iteration; reports that are already stored stay unchanged.
        reports: Arc<[WorkerReport]>,
    },
    /// Stores the allocation of an iteration. Fails with [`crate::StoreError::Superseded`] if one exists for this
    /// generation.
    Allocation {
        /// The job.
        job_id: JobId,
        /// The position of the iteration.
        iteration: u64,
        /// The generation in which it was planned.
        generation: u64,
        /// The response (JSON), byte for byte.
        answer: Bytes,
    },
    /// Begins a segment of a job's positions with the allocation of its first iteration.
    Segment {
        /// The job.
        job_id: JobId,
        /// The segment.
        segment: StoredSegment,
    },
    /// Records whether workers joined, joined again or departed since the newest report of a job.
    Regrouped {
        /// The job.
        job_id: JobId,
        /// Whether they did.
        regrouped: bool,
    },
    /// Replaces the state of a job's learning-rate rule.
    LearningRate {
        /// The job.
        job_id: JobId,
        /// The rule's state (JSON).
        state: String,
    },
    /// Adds or replaces iterations as charts show them, unless they or their job were deleted.
    Steps {
        /// The job.
        job_id: JobId,
        /// Time of its creation, in milliseconds since 1970. A later job of the same ID is another job.
        created_unix_ms: i64,
        /// The iterations.
        steps: Vec<ShownStep>,
    },
    /// Replaces the totals of a job's iterations.
    Totals {
        /// The job.
        job_id: JobId,
        /// Time of its creation, in milliseconds since 1970. A later job of the same ID is another job.
        created_unix_ms: i64,
        /// The totals (JSON).
        totals: String,
    },
    /// Adds a part of a job's models. Part 0, which must be the last one that is written, makes its revision valid and deletes
    /// all others.
    ModelPart {
        /// The job.
        job_id: JobId,
        /// Format version of the state.
        format: u32,
        /// Number of these models, different from all that the job had before.
        revision: i64,
        /// Number of this part.
        part: u64,
        /// The models of this part.
        state: Vec<u8>,
    },
    /// Replaces the models of a device type.
    DeviceModel {
        /// The device type, as workers report it.
        device: String,
        /// Format version of the state.
        format: u32,
        /// The models.
        state: Vec<u8>,
    },
    /// Adds telemetry samples; samples that are already stored stay unchanged.
    Telemetry(TelemetryRows),
    /// Replaces old rows by their summary. Fails with [`crate::StoreError::Superseded`] if one of the rows no
    /// longer exists.
    RollUp(Arc<RollUp>),
    /// Changes tokens or the audit log.
    Access(AccessChange),
    /// Writes durably without changing data, to test whether the store accepts a write of this size.
    Probe {
        /// Size, in bytes.
        bytes: usize,
    },
}

/// An iteration as charts show it.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownStep {
    /// The iteration.
    pub iteration: u64,
    /// Time of the allocation that it was computed with, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// The shown values (JSON).
    pub shown: String,
}

/// Approximate memory of a report, in bytes.
const REPORT_BYTES: usize = 1024;
/// Approximate memory of a row to delete, in bytes.
const ROLLED_UP_BYTES: usize = 256;
/// Approximate memory of any other change, in bytes.
const CHANGE_BYTES: usize = 1024;

impl Change {
    /// Returns the approximate memory that the change uses while it waits, in bytes.
    pub fn bytes(&self) -> usize {
        let more = match self {
            Self::Reports { reports, .. } => reports.len() * REPORT_BYTES,
            Self::Allocation { answer, .. } => answer.len(),
            Self::ModelPart { state, .. } | Self::DeviceModel { state, .. } => state.len(),
            Self::Steps { steps, .. } => steps.iter().map(|step| step.shown.len()).sum(),
            Self::Totals { totals, .. } => totals.len(),
            Self::Probe { bytes } => *bytes,
            Self::Telemetry(rows) => rows.bytes(),
            Self::RollUp(roll_up) => {
                usize::try_from(roll_up.rows()).unwrap_or(usize::MAX).saturating_mul(ROLLED_UP_BYTES)
            }
            _ => 0,
        };
        CHANGE_BYTES + more
    }

    /// Whether no training loop waits for this change.
    pub(crate) fn can_wait(&self) -> bool {
        match self {
            // The job cannot serve requests while its iterations are rolled up.
            Self::RollUp(roll_up) => !matches!(**roll_up, RollUp::Iterations { .. }),
            other => matches!(
                other,
                Self::Telemetry(_)
                    | Self::Steps { .. }
                    | Self::Totals { .. }
                    | Self::ModelPart { .. }
                    | Self::DeviceModel { .. }
                    | Self::TrimJob { .. }
            ),
        }
    }
}

/// An event of a worker's membership.
#[derive(Debug, Clone)]
pub struct MemberEvent {
    /// The worker.
    pub worker: WorkerId,
    /// Kind of event.
    pub kind: MemberEventKind,
}

/// Kinds of membership events.
#[derive(Debug, Clone)]
pub enum MemberEventKind {
    /// The worker joined with this request, and comes last in the order of workers.
    Joined(JoinRequest),
    /// A member joined again, with a new request.
    Rejoined(JoinRequest),
    /// The worker left.
    Left,
    /// The worker's lease expired.
    Expired,
    /// The worker ran out of memory; its local batch is limited to this value from now on.
    OutOfMemory(u64),
    /// The worker joined with other memory: the limit from out of memory no longer applies.
    MemoryChanged,
    /// The operator set an override; `None` if it was removed.
    Override(Option<WorkerOverride>),
}
