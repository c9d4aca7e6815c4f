//! Letting old rows go: what they come to is kept in their place, in the same transaction.
//!
//! A roll-up is prepared from what a reader sees, and names the very rows that it stands for. It is carried out only where
//! all of them are still there (`roll_up`), so nothing is ever summed up twice or lost, whoever else is at it, and whenever it
//! is killed: there is no mark of how far it came that could be wrong.

use std::collections::BTreeMap;

use evenstep_protocol::{AllocateAnswer, JobId, JobSpec, NodeSample, WorkerReport};

use crate::database::rows;
use crate::from_row::from_row;
use crate::read::ReportRow;
use crate::summary::{
    HOUR_S, MINUTE_S, NodeStep, NodeSums, WorkerStep, WorkerSums, begin_of_step, node_sums, predicted_time_s,
};
use crate::{Store, StoreError, integer};

/// Rows that one roll-up stands for: it holds up the writer for some milliseconds.
const SLICE_ROWS: usize = 1000;
/// Nodes that one look for old samples names.
const NODES_MAX: i64 = 256;

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

impl Store {
    /// The oldest samples before a moment, some of them; `None` where there are none. The latest sample of a node stays.
    ///
    /// # Errors
    /// Where the database cannot be read or holds what cannot be understood.
    pub async fn old_samples(&self, before_unix_ms: i64) -> Result<Option<RollUp>, StoreError> {
        let nodes = rows!(
            &self.readers,
            (String,),
            "SELECT node FROM node WHERE
                 (SELECT min(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node) < $1
                 AND (SELECT min(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node)
                     < (SELECT max(at_unix_ms) FROM node_sample WHERE node_sample.node = node.node)
             ORDER BY node LIMIT $2",
            before_unix_ms,
            NODES_MAX,
        )?;
        let (mut samples, mut minutes) = (Vec::new(), BTreeMap::<NodeStep, NodeSums>::new());
        for (node,) in nodes {
            let room = SLICE_ROWS - samples.len();
            if room == 0 {
                break;
            }
            let old = rows!(
                &self.readers,
                (String, i64, i64, String),
                "SELECT boot_id, sequence, at_unix_ms, CAST(sample AS TEXT) FROM node_sample
                 WHERE node = $1 AND at_unix_ms < $2
                   AND at_unix_ms < (SELECT max(at_unix_ms) FROM node_sample WHERE node = $1)
                 ORDER BY at_unix_ms LIMIT $3",
                &node,
                before_unix_ms,
                integer(room as u64),
            )?;
            for (boot_id, sequence, at_unix_ms, sample) in old {
                let sample: NodeSample = read(&sample, "node sample")?;
                let step = NodeStep {
                    node: node.clone(),
                    step_s: MINUTE_S,
                    at_unix_ms: begin_of_step(at_unix_ms, MINUTE_S),
                };
                minutes.entry(step).or_default().add(&sample);
                samples.push(SampleKey { node: node.clone(), boot_id, sequence, at_unix_ms });
            }
        }
        Ok((!samples.is_empty()).then_some(RollUp::Samples { samples, minutes }))
    }

    /// The oldest steps of nodes that ended before a moment, some of them: minutes that become hours, or hours that go.
    ///
    /// # Errors
    /// As [`Store::old_samples`].
    pub async fn old_node_steps(
        &self,
        step_s: i64,
        before_unix_ms: i64,
    ) -> Result<Option<RollUp>, StoreError> {
        let old = rows!(
            &self.readers,
            (String, i64, i64, String),
            "SELECT node, at_unix_ms, samples, readings FROM node_summary
             WHERE step_s = $1 AND at_unix_ms <= $2 ORDER BY at_unix_ms, node LIMIT $3",
            step_s,
            before_unix_ms.saturating_sub(step_s * 1000),
            integer(SLICE_ROWS as u64),
        )?;
        let (mut steps, mut hours) = (Vec::new(), BTreeMap::<NodeStep, NodeSums>::new());
        for (node, at_unix_ms, samples, readings) in old {
            if step_s == MINUTE_S {
                let at_unix_ms = begin_of_step(at_unix_ms, HOUR_S);
                let hour = NodeStep { node: node.clone(), step_s: HOUR_S, at_unix_ms };
                hours.entry(hour).or_default().merge(&node_sums(samples, &readings)?);
            }
            steps.push(NodeStep { node, step_s, at_unix_ms });
        }
        Ok((!steps.is_empty()).then_some(RollUp::NodeSteps { steps, hours }))
    }

    /// The oldest steps of a job's workers that ended before a moment, some of them: minutes that become hours, or hours that go.
    ///
    /// # Errors
    /// As [`Store::old_samples`].
    pub async fn old_worker_steps(
        &self,
        job_id: &JobId,
        step_s: i64,
        before_unix_ms: i64,
    ) -> Result<Option<RollUp>, StoreError> {
        let old = rows!(
            &self.readers,
            StepRow,
            "SELECT worker, at_unix_ms, reports, samples, compute_time_s, barrier_wait_s, loader_wait_s, predicted,
                    predicted_time_s
             FROM worker_summary WHERE job_id = $1 AND step_s = $2 AND at_unix_ms <= $3
             ORDER BY at_unix_ms, worker LIMIT $4",
            job_id.as_str(),
            step_s,
            before_unix_ms.saturating_sub(step_s * 1000),
            integer(SLICE_ROWS as u64),
        )?;
        let (mut steps, mut hours) = (Vec::new(), BTreeMap::<WorkerStep, WorkerSums>::new());
        for StepRow { worker, at_unix_ms, sums } in old {
            if step_s == MINUTE_S {
                let at_unix_ms = begin_of_step(at_unix_ms, HOUR_S);
                let hour = WorkerStep { worker: worker.clone(), step_s: HOUR_S, at_unix_ms };
                hours.entry(hour).or_default().merge(&sums);
            }
            steps.push(WorkerStep { worker, step_s, at_unix_ms });
        }
        Ok((!steps.is_empty()).then(|| RollUp::WorkerSteps { job_id: job_id.clone(), steps, hours }))
    }

    /// The oldest iterations of a job, some of them, whose reports and answers were all stored before a moment; `None` where
    /// there are none. The last `keep_iterations` that were answered stay, and the last that were reported.
    ///
    /// # Errors
    /// As [`Store::old_samples`].
    pub async fn old_iterations(
        &self,
        job_id: &JobId,
        before_unix_ms: i64,
        keep_iterations: u64,
    ) -> Result<Option<RollUp>, StoreError> {
        let span = rows!(
            &self.readers,
            Span,
            "SELECT kept_from,
                    (SELECT min(iteration) FROM allocation WHERE job_id = $1) AS first_answer,
                    (SELECT min(iteration) FROM report WHERE job_id = $1) AS first_report,
                    (SELECT max(iteration) FROM allocation WHERE job_id = $1) AS last_answer,
                    (SELECT max(iteration) FROM report WHERE job_id = $1) AS last_report,
                    (SELECT count(*) FROM worker WHERE job_id = $1) AS workers
             FROM job WHERE job_id = $1",
            job_id.as_str(),
        )?;
        let Some((span, [first, end])) =
            span.into_iter().next().and_then(|span| Some((span.kept_from, span.slice(keep_iterations)?)))
        else {
            return Ok(None);
        };
        let reports = rows!(
            &self.readers,
            TimedReport,
            "SELECT *, CAST(drivers AS TEXT) AS drivers_text FROM report
             WHERE job_id = $1 AND iteration < $2 ORDER BY iteration, worker",
            job_id.as_str(),
            end,
        )?;
        let answers = rows!(
            &self.readers,
            (i64, i64, String),
            "SELECT iteration, at_unix_ms, answer FROM allocation
             WHERE job_id = $1 AND iteration < $2 ORDER BY iteration, generation",
            job_id.as_str(),
            end,
        )?;
        // Everything before the first row that is too young goes.
        let times = answers.iter().map(|(iteration, at_unix_ms, _)| (*iteration, *at_unix_ms));
        let times = times.chain(reports.iter().map(|row| (row.report.iteration, row.at_unix_ms)));
        let young =
            times.filter(|(_, at_unix_ms)| *at_unix_ms >= before_unix_ms).map(|(iteration, _)| iteration);
        let end = young.min().unwrap_or(end);
        if end <= first {
            return Ok(None);
        }
        let mut rolled = Iterations::default();
        answers.iter().filter(|(iteration, ..)| *iteration < end).try_for_each(|row| rolled.answer(row))?;
        reports
            .into_iter()
            .filter(|row| row.report.iteration < end)
            .try_for_each(|row| rolled.report(row))?;
        Ok(Some(RollUp::Iterations {
            job_id: job_id.clone(),
            kept_from: span.cast_unsigned(),
            keep_from: end.max(span).cast_unsigned(),
            reports: rolled.reports,
            answers: rolled.answers,
            minutes: rolled.minutes,
        }))
    }

    /// Every job, and for how many seconds its raw history is kept where it says so itself.
    ///
    /// # Errors
    /// As [`Store::old_samples`].
    pub async fn job_keeps(&self) -> Result<Vec<(JobId, Option<u64>)>, StoreError> {
        let jobs = rows!(&self.readers, (String, String), "SELECT job_id, spec FROM job ORDER BY job_id")?;
        let keep = |(job_id, spec): (String, String)| {
            let spec: JobSpec = read(&spec, "job")?;
            Ok((crate::read::id(job_id)?, spec.keep_s))
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

/// The iterations of a job.
struct Span {
    kept_from: i64,
    first_answer: Option<i64>,
    first_report: Option<i64>,
    last_answer: Option<i64>,
    last_report: Option<i64>,
    workers: i64,
}

from_row!(Span { kept_from, first_answer, first_report, last_answer, last_report, workers });

impl Span {
    /// The first iteration that there is, and the one behind the last that may go at once.
    fn slice(&self, keep_iterations: u64) -> Option<[i64; 2]> {
        let first = self.first_answer.into_iter().chain(self.first_report).min()?;
        let last = self.last_answer.into_iter().chain(self.last_report).min()?;
        let stays = last.saturating_add(1).saturating_sub(integer(keep_iterations));
        let iterations = integer(SLICE_ROWS as u64) / self.workers.saturating_add(1);
        let end = first.saturating_add(iterations.max(1)).min(stays);
        (end > first).then_some([first, end])
    }
}

struct TimedReport {
    at_unix_ms: i64,
    report: ReportRow,
}

from_row!(TimedReport { at_unix_ms; whole: report });

struct StepRow {
    worker: String,
    at_unix_ms: i64,
    sums: WorkerSums,
}

from_row!(StepRow { worker, at_unix_ms; whole: sums });

/// What old iterations come to.
#[derive(Default)]
struct Iterations {
    in_force: BTreeMap<i64, AllocateAnswer>,
    answers: u64,
    reports: u64,
    minutes: BTreeMap<WorkerStep, WorkerSums>,
}

impl Iterations {
    /// Takes an answer in; of an iteration's the latest generation's comes last.
    fn answer(&mut self, (iteration, _, answer): &(i64, i64, String)) -> Result<(), StoreError> {
        self.answers += 1;
        self.in_force.insert(*iteration, read(answer, "answer")?);
        Ok(())
    }

    /// Takes a report in, after all answers.
    fn report(&mut self, row: TimedReport) -> Result<(), StoreError> {
        self.reports += 1;
        let report = WorkerReport::try_from(row.report)?;
        let answer = self.in_force.get(&integer(report.iteration));
        let predicted = answer.and_then(|answer| predicted_time_s(answer, &report.worker));
        let step = WorkerStep {
            worker: report.worker.to_string(),
            step_s: MINUTE_S,
            at_unix_ms: begin_of_step(row.at_unix_ms, MINUTE_S),
        };
        self.minutes.entry(step).or_default().add(&report, predicted);
        Ok(())
    }
}

fn read<T: serde::de::DeserializeOwned>(text: &str, what: &'static str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|source| StoreError::Corrupt { what, source })
}
