//! Returns of a run to an earlier iteration.
//!
//! A position is planned once. If its allocation cannot be used any more, its iteration gets another position, and so do all
//! later iterations:
//!
//! - The run starts again: it requests an iteration that was carried out, and reports nothing that it did before. A repeated
//!   or late request differs: no worker joined or departed since the newest report, or the request carries reports.
//! - A worker departed or ran out of memory during an iteration, which is planned again for the others.

use super::state::JobState;
use crate::attempts::Segment;

/// Limit of iterations that a request may be ahead of the first iteration that was not requested yet.
pub const LOOK_AHEAD_MAX: u64 = 64;

impl JobState {
    /// Whether the run has passed the iteration at this position: all its workers have reported it or a later one, or the run has
    /// returned to a later one.
    pub fn is_carried_out(&self, position: u64) -> bool {
        position < self.models.carried_out().max(self.attempts.newest())
    }

    /// Whether the run starts again with a request for the iteration at this position.
    pub fn starts_again(&self, position: u64, has_reports: bool) -> bool {
        self.regrouped && !has_reports && self.is_carried_out(position)
    }

    /// Returns the segment that begins at a position when the run starts again with an iteration.
    pub fn next_attempt(&self, iteration: u64, position: u64) -> Segment {
        self.attempts.next(iteration, position, true)
    }

    /// Whether no iteration was planned since a worker departed: all allocations are void. The first iteration that is planned shows
    /// where the run continues.
    pub fn is_void(&self) -> bool {
        let departed = self.members.departed_generation();
        self.last_allocation.as_ref().is_some_and(|last| last.generation < departed)
    }

    /// Returns the segment that begins at a position when an iteration is planned that was not carried out: if its allocation is
    /// void, or if allocations of later iterations are. Otherwise `None`. The segment begins with the first iteration that no worker
    /// has reported, since ranks may request the later ones in any order, unless the run returns further.
    pub fn void_segment(&self, iteration: u64, is_void: bool, position: u64) -> Option<Segment> {
        let first = self.models.reported().max(self.attempts.newest());
        let is_ahead = self.last_allocation.as_ref().is_some_and(|last| last.iteration >= first);
        let earliest = iteration.saturating_sub(LOOK_AHEAD_MAX);
        let first = self.attempts.at(first).iteration.clamp(earliest, iteration);
        (is_void || (is_ahead && self.is_void())).then(|| self.attempts.next(first, position, false))
    }
}
