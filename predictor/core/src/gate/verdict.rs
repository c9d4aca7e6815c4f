//! Whether the next piece of background work may run, and by which rule.

use super::limit::Limit;

/// What a piece of background work should take, in microseconds: what the foreground waits for at most, where a device cannot
/// put the piece aside.
pub const PIECE_US: f64 = 500.0;

/// A receive that takes longer than this alone is a gap, in microseconds.
pub const GAP_US: f64 = 500.0;

/// By so much of the difference a recent time follows the last one.
const FOLLOWS: f64 = 0.1;

/// Pieces on the device at once beside a foreground, and without one.
const IN_FLIGHT: usize = 1;
const IN_FLIGHT_ALONE: usize = 4;

/// What a tasklet does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It computes.
    Compute,
    /// It waits for what another worker sends.
    Receive,
    /// It sums over workers.
    AllReduce,
}

/// Whether a piece may run, and what decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the next piece may begin.
    pub open: bool,
    /// The rule that decided.
    pub rule: Rule,
    /// Pieces that may be on the device at once.
    pub in_flight: usize,
}

/// What opens or closes the gate; of rules that apply at once the last here decides, but no receive opens it during an all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Open: the tasklet takes as long as alone, within the limit.
    WithinLimit,
    /// Closed: it takes longer than the limit allows.
    SlowedDown,
    /// Open: a long receive; slow or not, there is nothing to slow down.
    Gap,
    /// Closed: an all-reduce keeps other workers waiting too.
    AllReduce,
    /// Open: this tasklet does not mind.
    Flagged,
    /// Open: there is no foreground.
    NoForeground,
}

/// Opens and closes for one worker's background work.
#[derive(Debug, Clone)]
pub struct Gate {
    limit: Limit,
    tasklets: Vec<Tasklet>,
    /// The tasklet that began last, while the foreground is there.
    current: Option<usize>,
    /// Whether it has ended.
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
    /// For a foreground with these tasklets, in the order of its iteration: their kinds, and what they take alone.
    pub(super) fn new(limit: Limit, tasklets: impl Iterator<Item = (Kind, f64)>) -> Self {
        let tasklet = |(kind, us)| Tasklet { kind, flagged: false, benchmark_us: us, recent_us: us };
        Self { limit, tasklets: tasklets.map(tasklet).collect(), current: None, ended: true }
    }

    /// Background work may always run beside this tasklet.
    pub fn flag(&mut self, place: usize) {
        if let Some(tasklet) = self.tasklets.get_mut(place) {
            tasklet.flagged = true;
        }
    }

    /// A tasklet begins, by its place in the iteration.
    pub fn begins(&mut self, place: usize) {
        self.current = Some(place);
        self.ended = false;
    }

    /// The tasklet that began last has ended, after so many microseconds. Times that are none teach nothing.
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
            tasklet.recent_us + FOLLOWS * (took_us - tasklet.recent_us)
        };
    }

    /// There is no foreground from now on, until a tasklet begins.
    pub fn leaves(&mut self) {
        self.current = None;
    }

    /// What a tasklet takes lately, in microseconds; `None` where there is no such tasklet.
    pub fn recent_us(&self, place: usize) -> Option<f64> {
        self.tasklets.get(place).map(|tasklet| tasklet.recent_us)
    }

    /// Whether a piece may begin now. Between two tasklets the first rule alone decides. A tasklet that was not benchmarked is
    /// not known to bear anything: closed.
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
