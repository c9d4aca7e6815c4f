//! The part of the live statistics that is stored while the job runs, and read again after a restart.

use std::collections::BTreeMap;

use evenstep_store::{StoredEvent, StoredPast, StoredSummary};

use super::live::Live;
use super::seen::MembersSummary;
use super::steps::{Steps, Unstored};
use super::totals::Totals;
use crate::jobs::load::attempts;

/// Time until a job is restored again after that failed, in milliseconds.
const RESTORE_PAUSE_MS: i64 = 30_000;

impl Live {
    /// The completed iterations that are not stored for charts as they are now.
    pub fn unstored_steps(&self) -> Vec<Unstored> {
        self.lock().steps.unstored()
    }

    /// Records that these iterations were stored for charts.
    pub fn stored_steps(&self, stored: &[Unstored]) {
        self.lock().steps.stored(stored);
    }

    /// The totals of all iterations and their version, unless they are stored.
    pub fn new_totals(&self) -> Option<(Totals, u64)> {
        let seen = self.lock();
        if seen.closed == seen.stored {
            return None;
        }
        let until = seen.until.max(seen.earlier.as_ref()?.until);
        let totals = Totals { until, account: seen.account()?, means: seen.steps.means().or(seen.means) };
        Some((totals, seen.closed))
    }

    /// Records that totals of this version are stored.
    pub fn stored_totals(&self, version: u64) {
        self.lock().stored = version;
    }

    /// Whether the job may be restored at a time of the steady clock. After a failure, it may be only later.
    pub fn may_restore(&self, now_ms: i64) -> bool {
        let seen = self.lock();
        seen.earlier.is_none() && seen.restorable_ms.is_none_or(|from_ms| from_ms <= now_ms)
    }

    /// Records that the job could not be restored at a time of the steady clock.
    pub fn restore_failed(&self, now_ms: i64) {
        self.lock().restorable_ms = Some(now_ms.saturating_add(RESTORE_PAUSE_MS));
    }

    /// Records the past of the job, from the store.
    pub fn past(&self, past: StoredPast) {
        let facts = &mut self.lock().facts;
        let newer = facts.past.reported.filter(|known| past.reported.is_none_or(|stored| stored.0 < known.0));
        facts.past = StoredPast { reported: newer.or(past.reported), ..past };
    }

    /// Whether the log is empty.
    pub fn has_empty_log(&self) -> bool {
        self.lock().log.is_empty()
    }

    /// Begins the log with earlier changes of workers, from the store.
    pub fn restore_log(&self, events: Vec<StoredEvent>) {
        self.lock().log.restore(events);
    }

    /// Records the summary of a job whose state is not in memory.
    pub fn stored(&self, stored: &StoredSummary) {
        self.past(stored.past.clone());
        let mut seen = self.lock();
        let totals = stored.totals.as_deref().and_then(Totals::read);
        // Totals of all reported iterations are complete: the history is not read.
        let reported = stored.past.reported.map_or(0, |(iteration, _)| iteration + 1);
        if let Some(totals) = totals.filter(|totals| totals.until >= reported) {
            seen.means = totals.means;
            seen.facts.step_time_s = totals.means.map(|means| means.step_time_s);
            seen.earlier = Some(totals);
        }
        seen.attempts = attempts(stored.segments.clone());
        seen.facts.live = stored.live_workers;
        seen.facts.min_workers = stored.spec.as_ref().map_or(0, |spec| spec.min_workers);
        seen.facts.unreadable.clone_from(&stored.unreadable);
        seen.reason = stored.last_decision.as_ref().map(|decision| decision.reason.clone());
        seen.members = Some(MembersSummary {
            live: stored.live_workers,
            departed: stored.past.joined.saturating_sub(stored.live_workers),
            global_batch: stored.spec.as_ref().map_or(0, |spec| spec.global_batch),
            unit: stored.spec.as_ref().map_or_else(|| "samples".to_owned(), |spec| spec.unit.clone()),
            overrides: BTreeMap::new(),
        });
    }

    /// Time of the latest report, in milliseconds since 1970.
    pub fn reported_unix_ms(&self) -> Option<i64> {
        self.lock().facts.past.reported.map(|(_, at)| at)
    }

    /// Whether the workers of the job are known: from its state, or from the store.
    pub fn is_known(&self) -> bool {
        self.lock().members.is_some()
    }

    /// Whether no allocation is in memory.
    pub fn has_no_steps(&self) -> bool {
        self.lock().steps.is_empty()
    }

    /// Whether earlier iterations were read from the store.
    pub fn is_restored(&self) -> bool {
        self.lock().earlier.is_some()
    }

    /// The first iteration that ended while this predictor followed the job: the history before it is to be restored.
    pub fn restored_until(&self) -> u64 {
        self.lock().account_from.unwrap_or(u64::MAX)
    }

    /// Records that the job is new: it has no earlier iterations.
    pub fn begin(&self) {
        self.lock().earlier = Some(Totals::none());
    }

    /// Restores the totals of earlier iterations and the latest of them, before iteration `until`.
    pub fn restore(&self, earlier: Totals, latest: Steps, until: u64) {
        let mut seen = self.lock();
        // An iteration may have ended meanwhile: then the account is read again.
        if seen.earlier.is_some() || seen.account_from.unwrap_or(u64::MAX) != until {
            return;
        }
        seen.means = seen.means.or(earlier.means);
        // The next iteration stands for those since the last one of these, too.
        seen.account_to = seen.account_to.or(earlier.until.checked_sub(1));
        seen.earlier = Some(earlier);
        seen.facts.step_time_s = seen.means.map(|means| means.step_time_s);
        if seen.steps.is_empty() {
            seen.steps = latest;
        }
        drop(seen);
        self.changes.send_replace(());
    }

    /// Drops the latest iterations, when the state of the job is removed from memory.
    pub fn rest(&self) {
        let mut seen = self.lock();
        seen.reason = seen.reason();
        seen.means = seen.means();
        seen.steps = Steps::default();
    }
}
