//! Roll-ups of expired samples and summaries, prepared from a reader's view of the store.

use std::collections::BTreeMap;

use evenstep_protocol::{JobId, NodeSample};

use crate::database::rows;
use crate::encode::{Json, integer};
use crate::error::StoreError;
use crate::from_row::from_row;
use crate::roll_up::{RollUp, SampleKey};
use crate::store::Store;
use crate::summary::{HOUR_S, MINUTE_S, NodeStep, NodeSums, WorkerStep, WorkerSums, node_sums, step_start};

/// Maximum number of rows per roll-up, so that it blocks the writer only for some milliseconds.
pub(super) const SLICE_ROWS: usize = 1000;
/// Maximum number of nodes per query for old samples.
const NODES_MAX: i64 = 256;

/// Nodes with samples before a time.
pub(crate) const OLD_NODES: &str = "SELECT node FROM node WHERE
    (SELECT min(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node) < $1
    AND (SELECT min(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node)
    < (SELECT max(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node)
    ORDER BY node LIMIT $2";

/// The oldest samples of a node before a time, without its latest sample.
pub(crate) const OLD_SAMPLES: &str =
    "SELECT boot_id, sequence, at_unix_ms, CAST(sample AS TEXT) FROM node_sample
    WHERE node = $1 AND at_unix_ms < $2
    AND at_unix_ms < (SELECT max(at_unix_ms) FROM node_sample WHERE node = $1)
    ORDER BY at_unix_ms LIMIT $3";

/// The oldest summaries of nodes before a time.
pub(crate) const OLD_NODE_STEPS: &str = "SELECT node, at_unix_ms, samples, readings FROM node_summary
    WHERE step_s = $1 AND at_unix_ms <= $2 ORDER BY at_unix_ms LIMIT $3";

/// The oldest summaries of a job's workers before a time.
pub(crate) const OLD_WORKER_STEPS: &str =
    "SELECT worker, at_unix_ms, reports, samples, compute_time_s, barrier_wait_s, loader_wait_s, predicted,
    predicted_time_s
    FROM worker_summary WHERE job_id = $1 AND step_s = $2 AND at_unix_ms <= $3
    ORDER BY at_unix_ms LIMIT $4";

impl Store {
    /// Returns a roll-up of some of the oldest samples before a given time; `None` if there are no such
    /// samples. The latest sample of each node is kept.
    ///
    /// # Errors
    /// If the database cannot be read or contains an invalid value.
    pub async fn old_samples(&self, before_unix_ms: i64) -> Result<Option<RollUp>, StoreError> {
        let nodes = rows!(&self.readers, (String,), OLD_NODES, before_unix_ms, NODES_MAX,)?;
        let (mut samples, mut minutes) = (Vec::new(), BTreeMap::<NodeStep, NodeSums>::new());
        for (node,) in nodes {
            let room = SLICE_ROWS - samples.len();
            if room == 0 {
                break;
            }
            let old = rows!(
                &self.readers,
                (String, i64, i64, Json),
                OLD_SAMPLES,
                &node,
                before_unix_ms,
                integer(room as u64),
            )?;
            for (boot_id, sequence, at_unix_ms, sample) in old {
                // An unreadable sample must not stop retention. It has no readings.
                let sample: NodeSample = sample.read("node sample").unwrap_or_default();
                let step = NodeStep {
                    node: node.clone(),
                    step_s: MINUTE_S,
                    at_unix_ms: step_start(at_unix_ms, MINUTE_S),
                };
                minutes.entry(step).or_default().add(&sample);
                samples.push(SampleKey { node: node.clone(), boot_id, sequence, at_unix_ms });
            }
        }
        Ok((!samples.is_empty()).then_some(RollUp::Samples { samples, minutes }))
    }

    /// Returns a roll-up of some of the oldest node summaries that ended before a given time. Summaries per
    /// minute become summaries per hour; summaries per hour are deleted.
    ///
    /// # Errors
    /// See [`Store::old_samples`].
    pub async fn old_node_steps(
        &self,
        step_s: i64,
        before_unix_ms: i64,
    ) -> Result<Option<RollUp>, StoreError> {
        let old = rows!(
            &self.readers,
            (String, i64, i64, Json),
            OLD_NODE_STEPS,
            step_s,
            before_unix_ms.saturating_sub(step_s * 1000),
            integer(SLICE_ROWS as u64),
        )?;
        let (mut steps, mut hours) = (Vec::new(), BTreeMap::<NodeStep, NodeSums>::new());
        for (node, at_unix_ms, samples, readings) in old {
            if step_s == MINUTE_S {
                let at_unix_ms = step_start(at_unix_ms, HOUR_S);
                let hour = NodeStep { node: node.clone(), step_s: HOUR_S, at_unix_ms };
                hours.entry(hour).or_default().merge(&node_sums(samples, &readings));
            }
            steps.push(NodeStep { node, step_s, at_unix_ms });
        }
        Ok((!steps.is_empty()).then_some(RollUp::NodeSteps { steps, hours }))
    }

    /// Returns a roll-up of some of the oldest worker summaries of a job that ended before a given time.
    /// Summaries per minute become summaries per hour; summaries per hour are deleted.
    ///
    /// # Errors
    /// See [`Store::old_samples`].
    pub async fn old_worker_steps(
        &self,
        job_id: &JobId,
        step_s: i64,
        before_unix_ms: i64,
    ) -> Result<Option<RollUp>, StoreError> {
        let old = rows!(
            &self.readers,
            StepRow,
            OLD_WORKER_STEPS,
            job_id.as_str(),
            step_s,
            before_unix_ms.saturating_sub(step_s * 1000),
            integer(SLICE_ROWS as u64),
        )?;
        let (mut steps, mut hours) = (Vec::new(), BTreeMap::<WorkerStep, WorkerSums>::new());
        for StepRow { worker, at_unix_ms, sums } in old {
            if step_s == MINUTE_S {
                let at_unix_ms = step_start(at_unix_ms, HOUR_S);
                let hour = WorkerStep { worker: worker.clone(), step_s: HOUR_S, at_unix_ms };
                hours.entry(hour).or_default().merge(&sums);
            }
            steps.push(WorkerStep { worker, step_s, at_unix_ms });
        }
        Ok((!steps.is_empty()).then(|| RollUp::WorkerSteps { job_id: job_id.clone(), steps, hours }))
    }
}

struct StepRow {
    worker: String,
    at_unix_ms: i64,
    sums: WorkerSums,
}

from_row!(StepRow { worker, at_unix_ms; whole: sums });
