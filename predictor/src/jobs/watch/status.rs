//! The state of a job: a function of its workers, its latest report and the time.

use evenstep_core::job::JobState as CoreState;
use evenstep_core::membership::{Member, State};
use evenstep_protocol::{JobState, WorkerId};
use evenstep_store::StoredPast;

use crate::clock::Now;
use crate::number_format::{count as count_of, whole};

/// Time without a report after which a job is stalled, in seconds.
const STALLED_S: f64 = 60.0;
/// Number of mean step times without a report after which a job is stalled.
const STALLED_STEPS: f64 = 10.0;

/// The facts that determine the state of a job. Times are in milliseconds since 1970, unless stated otherwise.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Number of live workers.
    pub live: u64,
    /// Minimum number of live workers.
    pub min_workers: u64,
    /// Times of joins, departures and reports.
    pub past: StoredPast,
    /// The leases that expired after the latest report: their number, and the worker of the first; `None` if it is not known.
    pub expired: Option<(usize, WorkerId)>,
    /// Time at which this predictor began to receive the reports of the job, or received the latest report or join, in
    /// milliseconds of the steady clock.
    pub active_ms: i64,
    /// Mean step time, in seconds.
    pub step_time_s: Option<f64>,
    /// Why this predictor cannot read or cannot plan the job.
    pub unreadable: Option<String>,
}

/// The state of a job, since when, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The state.
    pub state: JobState,
    /// Time at which it began, in milliseconds since 1970.
    pub since_unix_ms: Option<i64>,
    /// The reason in words.
    pub reason: String,
}

impl Facts {
    /// Updates the number of workers and the times of departures from the state of the job.
    pub fn members(&mut self, state: &CoreState, now: Now) {
        self.live = state.members.live().count() as u64;
        self.min_workers = state.spec.min_workers;
        self.departures(state.members.all(), now);
    }

    fn departures(&mut self, all: &[Member<WorkerId>], now: Now) {
        let departures = |of: State| {
            let of = all.iter().filter(move |member| member.state == of);
            of.filter_map(|member: &Member<WorkerId>| {
                Some((member, now.unix_ms_at(*member.departures_ms.back()?)))
            })
        };
        self.past.joined = all.len() as u64;
        if let Some((_, at)) = departures(State::Left).max_by_key(|(_, at)| *at) {
            self.past.left_unix_ms = self.past.left_unix_ms.max(Some(at));
        }
        let last = departures(State::Expired).max_by_key(|(_, at)| *at);
        self.past.expired = last.map(|(member, at)| (member.id.clone(), at));
        let reported = self.past.reported.map_or(i64::MIN, |(_, at)| at);
        let in_the_end = || departures(State::Expired).filter(|(_, at)| *at > reported);
        let first = in_the_end().min_by_key(|(member, at)| (*at, member.last_seen_ms));
        self.expired = first.map(|(member, _)| (in_the_end().count(), member.id.clone()));
    }

    /// Returns the state at this time.
    pub fn status(&self, now: Now) -> Status {
        let Self { live, min_workers, past, .. } = self;
        let of = |state, since_unix_ms, reason| Status { state, since_unix_ms, reason };
        let workers =
            |count: u64| if count == 1 { "1 worker".to_owned() } else { format!("{} workers", whole(count)) };
        let created = Some(past.created_unix_ms).filter(|at| *at > 0);
        if let Some(reason) = &self.unreadable {
            return of(JobState::Unreadable, None, reason.clone());
        }
        if past.joined == 0 {
            return of(JobState::Starting, created, "no worker has joined".to_owned());
        }
        if *live == 0 {
            return self.ended();
        }
        if live < min_workers {
            let left = past.left_unix_ms.max(past.expired.as_ref().map(|(_, at)| *at)).or(created);
            let reason = format!("{} live, fewer than min_workers {}", workers(*live), whole(*min_workers));
            return of(JobState::Paused, left, reason);
        }
        let Some((_, reported)) = past.reported else {
            let reason = format!("{} live; no iteration has been reported", workers(*live));
            return of(JobState::Starting, past.joined_unix_ms.or(created), reason);
        };
        let limit_ms = (1e3 * STALLED_S.max(STALLED_STEPS * self.step_time_s.unwrap_or(0.0))) as i64;
        // A time in the future says nothing: the clock was set back.
        let joined = past.joined_unix_ms.filter(|at| *at <= now.unix_ms).unwrap_or(reported);
        // Workers that join after a pause need time for their first step, and so do all after a restart of the predictor.
        let stored = Some(reported.max(joined)).filter(|at| *at <= now.unix_ms);
        let active_ms = self.active_ms.max(stored.map_or(i64::MIN, |at| now.steady_ms_at(at)));
        if now.steady_ms.saturating_sub(active_ms) > limit_ms {
            let reason = format!("{} live, but none has reported since", workers(*live));
            return of(JobState::Stalled, Some(reported), reason);
        }
        if joined.saturating_sub(reported) > limit_ms {
            let reason = format!("{} live; no iteration has been reported since they joined", workers(*live));
            return of(JobState::Starting, Some(joined), reason);
        }
        of(JobState::Running, created, format!("{} live", workers(*live)))
    }

    /// The state of a job without live workers.
    fn ended(&self) -> Status {
        let past = &self.past;
        let left = past.left_unix_ms;
        let reported = past.reported.map(|(_, at)| at);
        match &past.expired {
            Some((worker, at))
                if left.is_none_or(|left| left <= *at) || reported.is_none_or(|report| report < *at) =>
            {
                let leases = match &self.expired {
                    Some((count @ 2.., first)) => {
                        format!("{} expired, first {first}'s", count_of(*count, "lease"))
                    }
                    _ => format!("the lease of {worker} expired"),
                };
                let reason = format!("no worker is live; {leases}");
                Status { state: JobState::Failed, since_unix_ms: Some(*at), reason }
            }
            _ => {
                let reason = if past.joined == 1 {
                    "its worker left".to_owned()
                } else {
                    format!("all {} workers left", whole(past.joined))
                };
                Status { state: JobState::Finished, since_unix_ms: left, reason }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evenstep_core::membership::Members;

    use super::*;

    fn facts(live: u64) -> Facts {
        let past = StoredPast {
            created_unix_ms: 1,
            joined: 4,
            joined_unix_ms: Some(10),
            reported: Some((7, 1_000)),
            ..StoredPast::default()
        };
        Facts { live, min_workers: 2, past, active_ms: 0, step_time_s: Some(0.5), ..Facts::default() }
    }

    #[test]
    fn states_follow_from_workers_and_reports() {
        let at = |facts: &Facts, now| {
            let status = facts.status(Now { unix_ms: now, steady_ms: now });
            (status.state, status.since_unix_ms)
        };
        let mut new =
            Facts { past: StoredPast { created_unix_ms: 5, ..StoredPast::default() }, ..Facts::default() };
        assert_eq!(at(&new, 100), (JobState::Starting, Some(5)));
        (new.live, new.past.joined, new.past.joined_unix_ms) = (1, 1, Some(7));
        assert_eq!(at(&new, 1 << 40), (JobState::Starting, Some(7)));

        assert_eq!(at(&facts(4), 2_000), (JobState::Running, Some(1)));
        assert_eq!(at(&facts(4), 61_000), (JobState::Running, Some(1)));
        assert_eq!(at(&facts(4), 61_001), (JobState::Stalled, Some(1_000)));
        // Steps of 20 s: 60 s without a report is usual.
        assert_eq!(at(&Facts { step_time_s: Some(20.0), ..facts(4) }, 61_001).0, JobState::Running);
        // After a restart of the predictor, workers have time to report.
        assert_eq!(at(&Facts { active_ms: 50_000, ..facts(4) }, 61_001).0, JobState::Running);

        let mut paused = facts(1);
        paused.past.left_unix_ms = Some(3_000);
        assert_eq!(at(&paused, 4_000), (JobState::Paused, Some(3_000)));

        let mut rejoined = facts(4);
        rejoined.past.joined_unix_ms = Some(90_000);
        assert_eq!(at(&rejoined, 90_001), (JobState::Starting, Some(90_000)));
    }

    /// A job reports every second. The clock is set while it runs.
    #[test]
    fn a_correction_of_the_clock_changes_no_state() {
        for days in [-400, -30, -1, 0, 1, 30, 400] {
            let facts = Facts { active_ms: 1_000, ..facts(4) };
            let at =
                |steady_ms| facts.status(Now { unix_ms: steady_ms + days * 86_400_000, steady_ms }).state;
            assert_eq!((at(61_000), at(61_001)), (JobState::Running, JobState::Stalled), "{days} days");
        }
    }

    /// A worker is lost, a second later all others are. One was lost long before, and the job continued without it.
    #[test]
    fn a_failed_job_names_the_first_worker_of_those_that_it_lost_in_the_end() {
        let mut members = Members::default();
        let worker = |number: u64| WorkerId::new(format!("node/{number}")).unwrap();
        (0..2_003).for_each(|number| assert!(members.join(&worker(number), number as i64 % 7).unwrap()));
        let mut facts = facts(0);
        facts.past.reported = Some((7, 1_000));
        for (last, at) in [(5, 900), (1_201, 2_000)] {
            (0..2_003).filter(|number| *number != last).for_each(|number| members.renew(&worker(number), at));
            assert_eq!(members.expire(at + 10, 10), [worker(last)]);
        }
        facts.departures(members.all(), Now { unix_ms: 2_010, steady_ms: 2_010 });
        let reason = |facts: &Facts| facts.status(Now { unix_ms: 4_000, steady_ms: 4_000 }).reason;
        assert_eq!(reason(&facts), "no worker is live; the lease of node/1201 expired");
        members.renew(&worker(1_200), 1_999);
        assert_eq!(members.expire(3_000, 10).len(), 2_001);
        facts.departures(members.all(), Now { unix_ms: 3_000, steady_ms: 3_000 });
        assert_eq!(reason(&facts), "no worker is live; 2,002 leases expired, first node/1201's");
        facts.past.reported = Some((8, 2_500));
        facts.departures(members.all(), Now { unix_ms: 3_000, steady_ms: 3_000 });
        assert_eq!(reason(&facts), "no worker is live; 2,001 leases expired, first node/1200's");
    }

    #[test]
    fn a_job_without_workers_finished_or_failed() {
        let ended = |left, expired: Option<i64>| {
            let mut facts = facts(0);
            facts.past.left_unix_ms = left;
            facts.past.expired = expired.map(|at| (WorkerId::new("node/1").unwrap(), at));
            let status = facts.status(Now { unix_ms: 1 << 40, steady_ms: 1 << 40 });
            (status.state, status.since_unix_ms)
        };
        assert_eq!(ended(Some(2_000), None), (JobState::Finished, Some(2_000)));
        assert_eq!(ended(None, Some(2_000)), (JobState::Failed, Some(2_000)));
        // The job continued without the worker, and the others left at the end.
        assert_eq!(ended(Some(2_000), Some(900)), (JobState::Finished, Some(2_000)));
        // The others gave up after the lease of the worker had expired.
        assert_eq!(ended(Some(9_000), Some(2_000)), (JobState::Failed, Some(2_000)));
    }
}
