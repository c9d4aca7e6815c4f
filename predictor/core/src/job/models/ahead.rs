//! The models with the reports of incomplete iterations.

use std::collections::{BTreeMap, VecDeque};

use evenstep_protocol::WorkerId;

use super::super::open::Closed;
use super::super::state::WorkerState;
use super::{Learned, Models};
use crate::attempts::Attempts;

/// Models that have also learned from incomplete iterations. They depend on the reports that have arrived so far, so they serve
/// for decisions and views only.
#[derive(Debug)]
pub struct Ahead {
    models: Models,
    /// The iterations that only these models have learned, with the numbers of their reports.
    learned: VecDeque<(u64, usize)>,
    /// The generation of the members at that time: joins change the devices of workers.
    generation: u64,
}

impl Ahead {
    /// Returns the models ahead of `models`; `None` if no iteration is incomplete. What `earlier` has learned from the same
    /// reports is not learned again, so a decision costs about one iteration, also while one worker never reports.
    pub fn of(
        models: &Models,
        earlier: Option<Self>,
        generation: u64,
        attempts: &Attempts,
        joined: &BTreeMap<WorkerId, WorkerState>,
    ) -> Option<Self> {
        if !models.open.is_waiting() {
            return None;
        }
        let is_usable = |earlier: &Self| {
            let mut open = models.open.sizes();
            earlier.generation == generation && earlier.learned.iter().all(|one| open.next() == Some(*one))
        };
        let new = || Self { models: models.clone(), learned: VecDeque::new(), generation };
        let mut ahead = earlier.filter(is_usable).unwrap_or_else(new);
        let first = ahead.learned.back().map_or(0, |(iteration, _)| iteration.saturating_add(1));
        for closed in models.open.closed_from(first) {
            ahead.learned.push_back((closed.iteration, closed.reports.len()));
            ahead.models.learn_iteration(closed, attempts, joined, &mut Learned::default());
        }
        // What planning changes.
        ahead.models.open = models.open.after_all();
        (ahead.models.probes, ahead.models.newest_probe) = (models.probes, models.newest_probe);
        Some(ahead)
    }

    /// Returns the models.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// Records iterations that the other models have learned now. Returns whether these models had learned the same.
    pub fn is_same(&mut self, closed: &[Closed<'_>]) -> bool {
        closed.iter().all(|closed| self.learned.pop_front() == Some((closed.iteration, closed.reports.len())))
    }

    /// Whether they have learned no iteration from this one on.
    pub fn is_before(&self, iteration: u64) -> bool {
        self.learned.back().is_none_or(|(newest, _)| *newest < iteration)
    }
}
