//! Iterations whose reports are not complete yet.
//!
//! Learning must not depend on how reports are grouped into requests. Therefore iterations are learned in
//! order, each once, with all its reports in order of their workers. An iteration is closed, and then learned:
//!
//! - when all workers that its plan gives work have reported, and every earlier iteration with reports is closed;
//! - or when a report arrives that is [`WINDOW`] or more iterations newer.
//!
//! Reports of closed iterations are late and are not learned, and neither are reports of workers that the plan
//! gives no work. So a report is late only in two cases: a report that is [`WINDOW`] or more iterations newer came
//! first, or a later iteration was complete while this one had no report at all. The models are the same for every
//! order and every grouping of reports in which the same reports are late.

use std::borrow::Cow;
use std::collections::BTreeMap;

use evenstep_protocol::{WorkerId, WorkerReport};
use serde::{Deserialize, Serialize};

use crate::parallel;

use super::plans::{Choices, PlannedWork, PlannedWorker, Plans};

/// Number of iterations for which an incomplete iteration waits for its missing reports.
pub const WINDOW: u64 = 4;

/// Approximate memory of a waiting report, in bytes.
const REPORT_BYTES: u64 = 1536;

/// The open iterations of a job, and the plans that name the workers with work.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OpenIterations {
    plans: Plans,
    /// The first iteration that is not closed.
    next: u64,
    /// Reports of open iterations, at most [`WINDOW`] of them.
    #[serde(with = "json")]
    reports: BTreeMap<u64, BTreeMap<WorkerId, WorkerReport>>,
}

/// A closed iteration.
#[derive(Debug)]
pub struct Closed<'a> {
    /// Its number.
    pub iteration: u64,
    /// Its reports in order of their workers, with the plan for each; `None` if the plan is unknown.
    pub reports: Vec<(Cow<'a, WorkerReport>, Option<PlannedWorker>)>,
    /// Workers without samples by the plan.
    pub idle: Vec<(WorkerId, Choices)>,
    /// Number of samples by the plan.
    pub samples: u64,
    /// Whether the shares vary on purpose.
    pub is_probe: bool,
    /// Whether every worker with work has reported; false if the plan is unknown.
    pub is_complete: bool,
}

impl OpenIterations {
    /// Whether stored iterations are within their limits.
    pub fn is_valid(&self) -> bool {
        self.plans.is_valid() && self.reports.len() as u64 <= WINDOW
    }

    /// Returns the first iteration that is not closed.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of open iterations whose shares vary on purpose.
    pub fn probes(&self) -> usize {
        self.plans.probes_from(self.next)
    }

    /// Returns the plan of an iteration; `None` if it is unknown.
    pub fn planned(&self, iteration: u64) -> Option<&PlannedWork> {
        self.plans.at(iteration)
    }

    /// Sets the plan of an iteration that is not closed. Returns whether it is another than the one that held before.
    pub fn plan(&mut self, iteration: u64, work: PlannedWork) -> bool {
        let changes = self.plans.set(iteration, work);
        if changes {
            for (iteration, reports) in self.reports.range_mut(iteration..) {
                let work = self.plans.at(*iteration);
                reports.retain(|worker, _| work.is_some_and(|work| work.workers.contains_key(worker)));
            }
            self.reports.retain(|_, reports| !reports.is_empty());
        }
        self.forget();
        changes
    }

    /// Sets the plan of an iteration to the one that holds.
    pub fn repeat_plan(&mut self, iteration: u64) {
        self.plans.repeat(iteration);
        self.forget();
    }

    /// Returns the iteration after all that were carried out: they are closed, or all workers that its plan gives work have
    /// reported an iteration from them on.
    pub fn carried_out(&self) -> u64 {
        let is_complete = |(iteration, reports): &(&u64, &BTreeMap<WorkerId, WorkerReport>)| {
            self.plans.at(**iteration).is_some_and(|plan| plan.workers.len() == reports.len())
        };
        let complete = self.reports.iter().rev().find(is_complete);
        complete.map_or(self.next, |(iteration, _)| iteration.saturating_add(1))
    }

    /// Returns the iteration after all that are closed or that some worker has reported.
    pub fn reported(&self) -> u64 {
        self.reports.last_key_value().map_or(self.next, |(iteration, _)| iteration.saturating_add(1))
    }

    /// Returns the approximate memory of plans and waiting reports, in bytes.
    pub fn bytes(&self) -> u64 {
        let reports: usize = self.reports.values().map(BTreeMap::len).sum();
        self.plans.bytes() + reports as u64 * REPORT_BYTES
    }

    /// Whether reports of open iterations wait.
    pub fn is_waiting(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Returns the open iterations with reports, in order, with the number of their reports.
    pub fn sizes(&self) -> impl Iterator<Item = (u64, usize)> {
        self.reports.iter().map(|(iteration, held)| (*iteration, held.len()))
    }

    /// Returns the open iterations from `first` on as if they were closed now, in order.
    pub fn closed_from(&self, first: u64) -> impl Iterator<Item = Closed<'_>> {
        let open = self.reports.range(first..);
        open.map(|(iteration, held)| self.closed(*iteration, held.values().map(Cow::Borrowed).collect()))
    }

    /// Returns the state in which all open iterations are closed.
    pub fn after_all(&self) -> Self {
        let newest = self.reports.last_key_value();
        let next = newest.map_or(self.next, |(iteration, _)| iteration.saturating_add(1));
        Self { plans: self.plans.clone(), next, reports: BTreeMap::new() }
    }

    /// Adds reports, in any order, and returns the iterations that are closed now, in order. Of two reports of one
    /// worker and iteration the first counts.
    pub fn take<'a>(&mut self, reports: &'a [WorkerReport]) -> Vec<Closed<'a>> {
        let mut groups: BTreeMap<u64, Vec<&WorkerReport>> = BTreeMap::new();
        for report in reports.iter().filter(|report| report.iteration >= self.next) {
            groups.entry(report.iteration).or_default().push(report);
        }
        groups.retain(|iteration, new| {
            new.sort_by(|a, b| a.worker.cmp(&b.worker));
            new.dedup_by(|later, first| later.worker == first.worker);
            if let Some(plan) = self.plans.at(*iteration) {
                let planned = parallel::find(&plan.workers, &workers(new));
                let mut planned = planned.iter().map(Option::is_some);
                new.retain(|_| planned.next().unwrap_or_default());
            }
            !new.is_empty()
        });
        if groups.is_empty() {
            return Vec::new();
        }
        for iteration in self.reports.keys() {
            groups.entry(*iteration).or_default();
        }
        let newest = groups.last_key_value().map_or(0, |(iteration, _)| *iteration);
        let mut closed = Vec::new();
        let mut waits = false;
        for (iteration, mut new) in groups {
            let mut held = self.reports.remove(&iteration).unwrap_or_default();
            new.retain(|report| !held.contains_key(&report.worker));
            let plan = self.plans.at(iteration);
            let is_complete = plan.is_some_and(|plan| plan.workers.len() == held.len() + new.len());
            waits = waits || !(is_complete || newest - iteration >= WINDOW);
            if waits {
                held.extend(new.into_iter().map(|report| (report.worker.clone(), report.clone())));
                self.reports.insert(iteration, held);
                continue;
            }
            let mut all: Vec<Cow<'a, WorkerReport>> = held.into_values().map(Cow::Owned).collect();
            all.extend(new.into_iter().map(Cow::Borrowed));
            all.sort_by(|a, b| a.worker.cmp(&b.worker));
            closed.push(self.close(iteration, all));
        }
        self.forget();
        closed
    }

    /// Drops plans that nothing needs any more. Who had no samples in the iteration before an open one is still asked.
    fn forget(&mut self) {
        self.plans.forget_before(self.next.saturating_sub(1));
    }

    /// Closes an iteration with these reports, in order of their workers.
    fn close<'a>(&mut self, iteration: u64, reports: Vec<Cow<'a, WorkerReport>>) -> Closed<'a> {
        self.next = iteration.saturating_add(1);
        self.closed(iteration, reports)
    }

    fn closed<'a>(&self, iteration: u64, reports: Vec<Cow<'a, WorkerReport>>) -> Closed<'a> {
        let plan = self.plans.at(iteration);
        let is_complete = plan.is_some_and(|plan| plan.workers.len() == reports.len());
        let planned: Vec<Option<PlannedWorker>> = match plan {
            Some(plan) => {
                let planned = parallel::find(&plan.workers, &workers(&reports));
                planned.into_iter().map(Option::<&_>::copied).collect()
            }
            None => vec![None; reports.len()],
        };
        let reports = reports.into_iter().zip(planned).collect();
        let unknown = PlannedWork::default();
        let PlannedWork { idle, samples, is_probe, .. } = plan.unwrap_or(&unknown);
        Closed { iteration, reports, idle: idle.clone(), samples: *samples, is_probe: *is_probe, is_complete }
    }
}

fn workers<R: std::ops::Deref<Target = WorkerReport>>(reports: &[R]) -> Vec<&WorkerId> {
    reports.iter().map(|report| &report.worker).collect()
}

/// JSON inside the binary format, which cannot omit fields as the wire types do.
mod json {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        serde_json::to_string(value).map_err(S::Error::custom)?.serialize(to)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        serde_json::from_str(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}
