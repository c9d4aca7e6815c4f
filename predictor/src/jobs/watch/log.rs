//! The log of a job as text, and counters of its events.

use std::collections::{BTreeMap, VecDeque};

use evenstep_protocol::{AllocateResponse, Allocation, DecisionKind, LogEntry, LogKind, WorkerId};
use evenstep_store::{MemberEvent, MemberEventKind, StoredEvent};

/// Limit of entries in memory.
const ENTRIES_MAX: usize = 500;

/// The log of a job. Entries are numbered, so that a reader can request only new ones.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<LogEntry>,
    /// Number of entries ever written.
    written: u64,
    reallocations: BTreeMap<&'static str, u64>,
    membership_changes: BTreeMap<&'static str, u64>,
}

impl Log {
    /// Returns the entries after the first `read`, oldest first, and the number of entries ever written.
    pub fn since(&self, read: u64) -> (Vec<LogEntry>, u64) {
        let new = usize::try_from(self.written.saturating_sub(read)).unwrap_or(usize::MAX);
        let skip = self.entries.len().saturating_sub(new);
        (self.entries.iter().skip(skip).cloned().collect(), self.written)
    }

    /// Whether an entry was ever written.
    pub fn is_empty(&self) -> bool {
        self.written == 0
    }

    /// Adds the changes of workers before this predictor owned the job.
    pub fn restore(&mut self, events: Vec<StoredEvent>) {
        for StoredEvent { at_unix_ms, kind, worker } in events {
            let (kind, text) = match kind.as_str() {
                "joined" => (LogKind::Joined, "joined"),
                "left" => (LogKind::Left, "left"),
                "expired" => (LogKind::Expired, "expired: its lease was not renewed"),
                "out_of_memory" => (LogKind::OutOfMemory, "ran out of memory"),
                "override" => {
                    (LogKind::Override, "was overridden by an operator, or an override was removed")
                }
                _ => continue,
            };
            self.write(at_unix_ms, kind, Some(&worker), format!("{worker} {text}"));
        }
    }

    /// Reallocations by reason.
    pub fn reallocations(&self) -> &BTreeMap<&'static str, u64> {
        &self.reallocations
    }

    /// Membership changes by event.
    pub fn membership_changes(&self) -> &BTreeMap<&'static str, u64> {
        &self.membership_changes
    }

    /// Writes an entry.
    pub fn write(
        &mut self,
        at_unix_ms: i64,
        kind: LogKind,
        worker: Option<&WorkerId>,
        text: impl Into<String>,
    ) {
        self.push(LogEntry { at_unix_ms, kind, iteration: None, worker: worker.cloned(), text: text.into() });
    }

    fn push(&mut self, entry: LogEntry) {
        self.entries.push_back(entry);
        self.written += 1;
        if self.entries.len() > ENTRIES_MAX {
            self.entries.pop_front();
        }
    }

    /// Logs a new allocation of an iteration if its shares differ from the previous one.
    pub fn answered(
        &mut self,
        at_unix_ms: i64,
        before: Option<&AllocateResponse>,
        answer: &AllocateResponse,
        iteration: u64,
    ) {
        let Some(reason) = changed(before, answer) else { return };
        *self.reallocations.entry(reason).or_default() += 1;
        self.push(LogEntry {
            at_unix_ms,
            kind: LogKind::Reallocated,
            iteration: Some(iteration),
            worker: None,
            text: answer.decision.reason.clone(),
        });
    }

    /// Logs a change of a worker: it joined, left, or its bounds changed.
    pub fn member(&mut self, at_unix_ms: i64, event: &MemberEvent) {
        let (kind, text) = match &event.kind {
            MemberEventKind::Joined(_) => (LogKind::Joined, "joined".to_owned()),
            MemberEventKind::Rejoined(_) => (LogKind::Changed, "joined again with new bounds".to_owned()),
            MemberEventKind::Left => (LogKind::Left, "left".to_owned()),
            MemberEventKind::Expired => (LogKind::Expired, "expired: its lease was not renewed".to_owned()),
            MemberEventKind::OutOfMemory(cap) => (
                LogKind::OutOfMemory,
                format!("ran out of memory: capped at {cap} samples per micro-batch from now on"),
            ),
            MemberEventKind::MemoryChanged => {
                (LogKind::Changed, "has other memory: the cap from out of memory is removed".to_owned())
            }
            MemberEventKind::Override(None) => {
                (LogKind::Override, "is no longer overridden by an operator".to_owned())
            }
            MemberEventKind::Override(Some(wanted)) => {
                let bound = |name: &str, bound: Option<u64>| bound.map(|bound| format!("{name} {bound}"));
                let wishes: Vec<String> = [
                    wanted.paused.then(|| "paused".to_owned()),
                    bound("pinned to", wanted.pinned_local_batch),
                    bound("at least", wanted.min_local_batch),
                    bound("at most", wanted.max_local_batch),
                ]
                .into_iter()
                .flatten()
                .collect();
                (LogKind::Override, format!("is overridden by an operator: {}", wishes.join(", ")))
            }
        };
        let counted = match kind {
            LogKind::Joined => Some("joined"),
            LogKind::Left => Some("left"),
            LogKind::Expired => Some("expired"),
            _ => None,
        };
        if let Some(counted) = counted {
            *self.membership_changes.entry(counted).or_default() += 1;
        }
        self.write(at_unix_ms, kind, Some(&event.worker), format!("{} {text}", event.worker));
    }
}

/// The reason why the shares of an allocation differ from the previous one; `None` if they are equal. Samples
/// that a tail takes from a share do not count as a change of the plan, and neither does the smaller last
/// batch of an epoch.
fn changed(before: Option<&AllocateResponse>, answer: &AllocateResponse) -> Option<&'static str> {
    let varies = |answer: &AllocateResponse| answer.decision.kind == DecisionKind::Profiling;
    let planned = |answer: &AllocateResponse, share: &Allocation| {
        share.planned_batch.filter(|_| !varies(answer)).unwrap_or(share.local_batch)
    };
    let by_kind = match answer.decision.kind {
        DecisionKind::ColdStart => Some("cold_start"),
        DecisionKind::Profiling => Some("profiling"),
        DecisionKind::Rebalanced => Some("rebalanced"),
        DecisionKind::Held => None,
    };
    // The first allocation since this predictor owns the job: the previous one is unknown.
    let Some(before) = before else { return by_kind.filter(|reason| *reason != "rebalanced") };
    if before.allocations.len() != answer.allocations.len()
        || before.allocations.iter().zip(&answer.allocations).any(|(a, b)| a.worker != b.worker)
    {
        return Some("membership");
    }
    // Shares that vary on purpose return to the plan: one entry for several such iterations.
    let same = |(a, b): (&Allocation, &Allocation)| planned(before, a) == planned(answer, b);
    if before.allocations.iter().zip(&answer.allocations).all(same) || (varies(before) && varies(answer)) {
        return None;
    }
    // Even shares are held now, or not any more.
    by_kind.or_else(|| (before.holds_even() != answer.holds_even()).then_some("rebalanced"))
}
