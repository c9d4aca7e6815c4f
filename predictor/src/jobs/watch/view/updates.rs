//! The changes of a job since a reader's last read, for streams.

use evenstep_protocol::{LogEntry, StepView};

use super::super::live::Live;
use super::step::latest;

/// The position up to which a reader has read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cursor {
    step: Option<(u64, i64)>,
    log: u64,
    changed: u64,
}

/// The changes since a reader's last read.
#[derive(Debug, Default)]
pub struct Updates {
    /// The latest completed iteration, without the ragged end of an epoch.
    pub step: Option<StepView>,
    /// New entries of the log.
    pub log: Vec<LogEntry>,
    /// Whether workers, job options or overrides changed.
    pub changed: bool,
}

impl Live {
    /// Returns the changes since `cursor`, and advances it.
    pub fn updates(&self, cursor: &mut Cursor) -> Updates {
        let seen = self.lock();
        let newest = seen.steps.latest_full();
        let mark = newest.map(|step| (step.iteration(), step.at_unix_ms()));
        let step =
            newest.filter(|_| mark != cursor.step).map(|step| latest(step, &seen.attempts, seen.unit()));
        cursor.step = mark;
        let (log, written) = seen.log.since(cursor.log);
        let changed = seen.changed != cursor.changed;
        (cursor.log, cursor.changed) = (written, seen.changed);
        Updates { step, log, changed }
    }

    /// A cursor at the end of the log, for a reader that has not seen the latest iteration.
    pub fn cursor(&self) -> Cursor {
        let seen = self.lock();
        Cursor { step: None, log: seen.log.since(u64::MAX).1, changed: seen.changed }
    }

    /// The whole log.
    pub fn log(&self) -> Vec<LogEntry> {
        self.lock().log.since(0).0
    }
}
