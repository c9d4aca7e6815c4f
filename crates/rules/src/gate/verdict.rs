//! The gate: decides whether the next piece of background work may run, and by which rule.

use super::limit::Limit;

/// Target duration of a piece of background work in microseconds. This is the longest time that the
/// foreground waits if a device cannot preempt the piece.
pub const PIECE_US: f64 = 500.0;

/// A receive that takes longer than this when the foreground runs alone is a gap; in microseconds.
pub const GAP_US: f64 = 500.0;

/// Weight of the newest time in the moving average of recent times.
const RECENT_WEIGHT: f64 = 0.1;

/// Maximum number of pieces on the device at once with a foreground, and without one.
const IN_FLIGHT: usize = 1;
const IN_FLIGHT_ALONE: usize = 4;

/// Kind of a tasklet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Compute.
    Compute,
    /// Waiting for data from another worker.
    Receive,
    /// A sum over workers.
    AllReduce,
}

/// The gate's decision on a piece, with its rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the next piece may begin.
    pub open: bool,
    /// The rule that decided.
    pub rule: Rule,
    /// Maximum number of pieces on the device at once.
    pub in_flight: usize,
}

/// Rules that open or close the gate. If several rules apply, the last of them in this list decides. An
/// all-reduce is never a gap, because a tasklet has one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Open: the tasklet takes as long as when the foreground runs alone, within the limit.
    WithinLimit,
    /// Closed: the tasklet takes longer than the limit allows.
    SlowedDown,
    /// Open: the tasklet is a long receive, which background work does not slow down.
    Gap,
    /// Closed: the tasklet is an all-reduce, and other workers wait for it, too.
    AllReduce,
    /// Open: the tasklet is flagged as insensitive to background work.
    Flagged,
    /// Open: no foreground is running.
    NoForeground,
}

/// Gate for the background work of one worker.
#[derive(Debug, Clone)]
pub struct Gate {
    limit: Limit,
    tasklets: Vec<Tasklet>,
    /// The tasklet that began last; `None` if no foreground is running.
    current: Option<usize>,
    /// Whether the current tasklet has ended.
    ended: bool,
}

/// One tasklet of the iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Tasklet {
    kind: Kind,
    flagged: bool,
    benchmark_us: f64,
    recent_us: f64,
}

impl Gate {
    /// Creates a gate for these tasklets: their kinds and their benchmarks, in the order of the iteration.
    pub(super) fn new(limit: Limit, tasklets: impl Iterator<Item = (Kind, f64)>) -> Self {
        let tasklet = |(kind, us)| Tasklet { kind, flagged: false, benchmark_us: us, recent_us: us };
        Self { limit, tasklets: tasklets.map(tasklet).collect(), current: None, ended: true }
    }

    /// Flags a tasklet: background work may always run next to it.
    pub fn flag(&mut self, place: usize) {
        if let Some(tasklet) = self.tasklets.get_mut(place) {
            tasklet.flagged = true;
        }
    }

    /// Records that the tasklet at this position begins.
    pub fn begins(&mut self, place: usize) {
        self.current = Some(place);
        self.ended = false;
    }

    /// Records that the current tasklet ended after `took_us` microseconds. Times that are negative or not
    /// finite do not change its recent time.
    pub fn ends(&mut self, took_us: f64) {
        self.ended = true;
        let limit = self.limit.ratio();
        let Some(tasklet) = self.current.and_then(|place| self.tasklets.get_mut(place)) else { return };
        if !(took_us >= 0.0 && took_us.is_finite()) {
            return;
        }
        tasklet.recent_us = if took_us > limit * tasklet.benchmark_us {
            took_us
        } else {
            tasklet.recent_us + RECENT_WEIGHT * (took_us - tasklet.recent_us)
        };
    }

    /// Records that no foreground is running until the next tasklet begins.
    pub fn leaves(&mut self) {
        self.current = None;
    }

    /// Returns the recent time of a tasklet in microseconds; `None` if there is no tasklet at this position.
    pub fn recent_us(&self, place: usize) -> Option<f64> {
        self.tasklets.get(place).map(|tasklet| tasklet.recent_us)
    }

    /// Returns whether a piece may begin now. Between two tasklets only the slow-down of the last one
    /// decides. Next to a tasklet without a benchmark the gate is closed.
    pub fn verdict(&self) -> Verdict {
        let Some(place) = self.current else {
            return Verdict { open: true, rule: Rule::NoForeground, in_flight: IN_FLIGHT_ALONE };
        };
        let rule = self.tasklets.get(place).map_or(Rule::SlowedDown, |tasklet| self.rule(tasklet));
        let open = !matches!(rule, Rule::SlowedDown | Rule::AllReduce);
        Verdict { open, rule, in_flight: IN_FLIGHT }
    }

    fn rule(&self, tasklet: &Tasklet) -> Rule {
        let within = tasklet.recent_us <= self.limit.ratio() * tasklet.benchmark_us;
        let running = !self.ended;
        if running && tasklet.flagged {
            Rule::Flagged
        } else if running && tasklet.kind == Kind::AllReduce {
            Rule::AllReduce
        } else if running && tasklet.kind == Kind::Receive && tasklet.benchmark_us > GAP_US {
            Rule::Gap
        } else if within {
            Rule::WithinLimit
        } else {
            Rule::SlowedDown
        }
    }
}
