//! What happened to a job, in plain words, and how often.

use std::collections::{BTreeMap, VecDeque};

use evenstep_protocol::{AllocateAnswer, Allocation, DecisionKind, LogEntry, LogKind, WorkerId};
use evenstep_store::{MemberEvent, MemberEventKind};

/// Entries kept.
const ENTRIES_MAX: usize = 500;

/// The log of a job. Each entry has a number, so that a reader knows what is new to it.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<LogEntry>,
    /// Entries ever written.
    written: u64,
    reallocations: BTreeMap<&'static str, u64>,
    comings: BTreeMap<&'static str, u64>,
}

impl Log {
    /// The entries after the first `read`, the oldest first, and how many were ever written.
    pub fn since(&self, read: u64) -> (Vec<LogEntry>, u64) {
        let new = usize::try_from(self.written.saturating_sub(read)).unwrap_or(usize::MAX);
        let skip = self.entries.len().saturating_sub(new);
        (self.entries.iter().skip(skip).cloned().collect(), self.written)
    }

    /// Reallocations by reason.
    pub fn reallocations(&self) -> &BTreeMap<&'static str, u64> {
        &self.reallocations
    }

    /// Comings and goings by event.
    pub fn comings(&self) -> &BTreeMap<&'static str, u64> {
        &self.comings
    }

    /// Something happened.
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

    /// A plan was answered, after another one. Only a plan whose shares differ is a change.
    pub fn answered(&mut self, at_unix_ms: i64, before: Option<&AllocateAnswer>, answer: &AllocateAnswer) {
        let Some(reason) = changed(before, answer) else { return };
        *self.reallocations.entry(reason).or_default() += 1;
        self.push(LogEntry {
            at_unix_ms,
            kind: LogKind::Reallocated,
            iteration: Some(answer.iteration),
            worker: None,
            text: answer.decision.reason.clone(),
        });
    }

    /// Somebody came, went, or is used otherwise.
    pub fn member(&mut self, at_unix_ms: i64, event: &MemberEvent) {
        let (kind, text) = match &event.kind {
            MemberEventKind::Joined(_) => (LogKind::Joined, "joined".to_owned()),
            MemberEventKind::Rejoined(_) => (LogKind::Changed, "said anew what it can take".to_owned()),
            MemberEventKind::Left => (LogKind::Left, "left".to_owned()),
            MemberEventKind::Expired => (LogKind::Expired, "fell silent: its lease ran out".to_owned()),
            MemberEventKind::OutOfMemory(cap) => (
                LogKind::OutOfMemory,
                format!("ran out of memory: at most {cap} samples at once from now on"),
            ),
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
            *self.comings.entry(counted).or_default() += 1;
        }
        self.write(at_unix_ms, kind, Some(&event.worker), format!("{} {text}", event.worker));
    }
}

/// Why the shares of an answer differ from those before it; `None` where they do not. What a tail takes off a share is a layer
/// on the plan, and no change of it; neither is the ragged end of an epoch.
fn changed(before: Option<&AllocateAnswer>, answer: &AllocateAnswer) -> Option<&'static str> {
    let planned = |share: &Allocation| share.planned_batch.unwrap_or(share.local_batch);
    let same = |(a, b): (&Allocation, &Allocation)| planned(a) == planned(b);
    let by_kind = match answer.decision.kind {
        DecisionKind::ColdStart => Some("cold_start"),
        DecisionKind::Profiling => Some("profiling"),
        DecisionKind::Rebalanced => Some("rebalanced"),
        DecisionKind::Held => None,
    };
    // The first that is seen: what was in force before is not known.
    let Some(before) = before else { return by_kind.filter(|reason| *reason != "rebalanced") };
    if before.allocations.len() != answer.allocations.len()
        || before.allocations.iter().zip(&answer.allocations).any(|(a, b)| a.worker != b.worker)
    {
        return Some("membership");
    }
    if before.allocations.iter().zip(&answer.allocations).all(same) {
        return None;
    }
    by_kind
}
