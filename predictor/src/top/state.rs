//! The state of the screen. Only events and keys change it; both carry the time as a number.

mod job;
mod key;

use std::cmp::Reverse;
use std::time::Duration;

use evenstep_protocol::{JobId, JobState, JobSummary, LiveView, NodesView};

pub use super::event::{ConnectionState, FeedEvent, StreamEvent};
pub use job::OpenJob;
pub use key::{Action, Key};

/// Time after which a failed job needs no attention any more, in milliseconds.
const OLD_MS: i64 = 86_400_000;

/// The state of the screen.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// URL of the predictor that responds.
    pub server: String,
    /// Connection of the stream of all jobs.
    pub link: ConnectionState,
    /// All jobs, and the time at which they were received.
    pub live: Option<(LiveView, Duration)>,
    /// The nodes' latest samples.
    pub nodes: Option<NodesView>,
    /// The selected job in the list.
    pub chosen: Option<JobId>,
    /// The open job.
    pub open: Option<OpenJob>,
    /// Whether help is shown.
    pub help: bool,
    /// Error message of the latest command.
    pub notice: Option<String>,
}

impl State {
    /// A state without data.
    pub fn new(server: String, job: Option<JobId>) -> Self {
        let open = job.clone().map(OpenJob::new);
        Self { server, chosen: job, open, ..Self::default() }
    }

    /// Applies an event.
    pub fn apply(&mut self, news: FeedEvent, now: Duration) {
        match news {
            FeedEvent::All(heard, server) => {
                self.server = server;
                self.link.apply(&heard, now);
                match heard {
                    StreamEvent::Jobs(mut live) => {
                        let now_unix_ms = live.now_unix_ms;
                        live.jobs.sort_by_key(|job| (rank(job, now_unix_ms), Reverse(job.created_unix_ms)));
                        self.live = Some((live, now));
                    }
                    StreamEvent::Nodes(nodes) => self.nodes = Some(nodes),
                    _ => {}
                }
                self.choose(0);
            }
            // Events of a job that is no longer open may still arrive.
            FeedEvent::Job(job, heard) => {
                if let Some(open) = self.open.as_mut().filter(|open| open.job_id == job) {
                    open.apply(heard, now);
                }
            }
        }
    }

    /// The jobs in the order of the list.
    pub fn jobs(&self) -> &[JobSummary] {
        self.live.as_ref().map_or(&[], |(live, _)| &live.jobs)
    }

    /// Position of the selected job in the list.
    pub fn chosen_at(&self) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        self.jobs().iter().position(|job| job.job_id == *chosen)
    }

    /// The time of the service's clock, in milliseconds since 1970. Ages use this clock, because the local
    /// one may be wrong.
    pub fn service_unix_ms(&self, now: Duration) -> Option<i64> {
        let (live, heard) = self.live.as_ref()?;
        let since = i64::try_from(now.saturating_sub(*heard).as_millis()).unwrap_or(i64::MAX);
        Some(live.now_unix_ms.saturating_add(since))
    }

    /// Selects the job `below` rows down, or the first if the selected job no longer exists.
    fn choose(&mut self, below: isize) {
        let last = self.jobs().len().saturating_sub(1);
        let at = self.chosen_at().map_or(0, |at| at.saturating_add_signed(below).min(last));
        if let Some(job) = self.jobs().get(at) {
            self.chosen = Some(job.job_id.clone());
        }
    }
}

/// The place of a job in the list: trouble first, and jobs that need no attention any more last.
fn rank(job: &JobSummary, now_unix_ms: i64) -> u8 {
    let since_unix_ms = job.state_since_unix_ms.unwrap_or(now_unix_ms);
    match job.state {
        Some(JobState::Failed) if now_unix_ms.saturating_sub(since_unix_ms) > OLD_MS => 5,
        Some(JobState::Failed | JobState::Unreadable) => 0,
        Some(JobState::Stalled | JobState::Paused) => 1,
        Some(JobState::Running) if job.slow_workers > 0 => 2,
        Some(JobState::Running | JobState::Starting) => 3,
        None => 4,
        Some(JobState::Finished) => 5,
    }
}

#[cfg(test)]
pub mod tests {
    use evenstep_protocol::{
        DecisionKind, GainView, SavedView, StepView, StepWorker, StragglerReason, StragglerView, WorkerId,
        WorkerState, WorkerView, WorkersView,
    };

    use super::*;

    pub fn job_id(name: &str) -> JobId {
        JobId::new(name).unwrap()
    }

    pub fn line(name: &str) -> JobSummary {
        JobSummary {
            live_workers: 4,
            iteration: Some(1233),
            attempt: Some(1),
            at_unix_ms: Some(9_000),
            step_time_s: Some(0.2125),
            samples_per_s: Some(2413.4),
            waiting_share: Some(0.031),
            error_ratio: Some(0.02),
            verdict: Some("1.41x as fast as even shares (1.38 to 1.44). Forecast off by 2 %.".into()),
            state: Some(JobState::Running),
            gain: Some(GainView { ratio: 1.412, lower: 1.38, upper: 1.44, iterations: 1000 }),
            time_saved: Some(SavedView {
                seconds: 11_520.0,
                lower_s: 11_000.0,
                upper_s: 12_000.0,
                share: 0.29,
            }),
            ..JobSummary::named(job_id(name), None)
        }
    }

    pub fn live(jobs: &[&str]) -> LiveView {
        LiveView {
            now_unix_ms: 10_000,
            jobs: jobs.iter().map(|name| line(name)).collect(),
            nodes: Vec::new(),
        }
    }

    /// An iteration of `workers` workers. The first is the slowest of them by 5 %.
    pub fn step(iteration: u64, workers: u64) -> StepView {
        let worker = |rank: u64| StepWorker {
            worker: WorkerId::new(format!("node-a/{rank}")).unwrap(),
            rank,
            local_batch: 100 + 20 * rank,
            samples: Some(100 + 20 * rank),
            predicted_samples_per_s: Some(500.0 + 100.0 * rank as f64),
            lower_samples_per_s: Some(450.0),
            upper_samples_per_s: Some(550.0),
            actual_samples_per_s: Some(if rank == 0 { 475.0 } else { 500.0 + 100.0 * rank as f64 }),
            predicted_compute_time_s: Some(0.2),
            compute_time_s: Some(if rank == 0 { 0.21 } else { 0.2 }),
            barrier_wait_s: Some(if rank == 0 { 0.0 } else { 0.01 }),
        };
        StepView {
            attempt: 1,
            iteration,
            at_unix_ms: 9_900,
            generation: 2,
            global_batch: 512,
            step_time_s: Some(0.21),
            predicted_step_time_s: Some(0.205),
            even_step_time_s: Some(0.34),
            decision: DecisionKind::Held,
            reason: "a change would gain 0.4 %, less than 2 %".into(),
            lr_multiplier: 1.0,
            loss: None,
            tail_samples: 16,
            unit: "samples".into(),
            workers: (0..workers).map(worker).collect(),
        }
    }

    /// Workers as in [`step`].
    pub fn workers(count: u64) -> WorkersView {
        let worker = |rank: u64| WorkerView {
            worker: WorkerId::new(format!("node-a/{rank}")).unwrap(),
            state: WorkerState::Live,
            rank: Some(rank),
            device: None,
            min_local_batch: None,
            max_local_batch: None,
            last_seen_unix_ms: 9_900,
            speed_samples_per_s: None,
            claims: true,
            pool: None,
            cap: None,
            curve: None,
            straggler: None,
            operator_override: None,
        };
        WorkersView { job_id: job_id("night-run"), generation: 2, workers: (0..count).map(worker).collect() }
    }

    pub fn straggler() -> StragglerView {
        StragglerView {
            reason: StragglerReason::Unknown,
            speed_ratio: 0.41,
            since_iteration: 30,
            detail: "the readings of its node do not explain it".into(),
        }
    }

    fn all(heard: StreamEvent) -> FeedEvent {
        FeedEvent::All(heard, "http://a:1".into())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_selection_follows_its_job_and_ends_with_it() {
        let mut state = State::new("http://a:1".into(), None);
        assert_eq!(state.key(Key::Open), Action::Nothing);
        state.apply(all(StreamEvent::Jobs(live(&["a", "c"]))), SECOND);
        state.key(Key::Down);
        state.key(Key::Down);
        assert_eq!(state.chosen_at(), Some(1));
        state.apply(all(StreamEvent::Jobs(live(&["a", "b", "c"]))), SECOND);
        assert_eq!(state.chosen_at(), Some(2));
        state.apply(all(StreamEvent::Jobs(live(&["a", "b"]))), SECOND);
        assert_eq!(state.chosen_at(), Some(0));
    }

    #[test]
    fn jobs_that_ended_come_last_and_new_jobs_first() {
        let mut state = State::new("http://a:1".into(), None);
        let mut live = live(&["old", "done", "new"]);
        for (job, created) in live.jobs.iter_mut().zip([1, 2, 3]) {
            job.created_unix_ms = Some(created);
        }
        live.jobs[1].state = Some(JobState::Finished);
        state.apply(all(StreamEvent::Jobs(live)), SECOND);
        let order: Vec<&str> = state.jobs().iter().map(|job| job.job_id.as_str()).collect();
        assert_eq!(order, ["new", "old", "done"]);
    }

    #[test]
    fn trouble_comes_first() {
        let mut live = live(&["done", "old", "fine", "slow", "waits", "stalled", "failed"]);
        let states = [JobState::Finished, JobState::Failed, JobState::Running, JobState::Running];
        let states = states.into_iter().chain([JobState::Starting, JobState::Stalled, JobState::Failed]);
        for (at, (job, state)) in live.jobs.iter_mut().zip(states).enumerate() {
            (job.state, job.created_unix_ms) = (Some(state), Some(-(at as i64)));
        }
        live.jobs[1].state_since_unix_ms = Some(live.now_unix_ms - OLD_MS - 1);
        live.jobs[3].slow_workers = 1;
        let mut state = State::new("http://a:1".into(), None);
        state.apply(all(StreamEvent::Jobs(live)), SECOND);
        let order: Vec<&str> = state.jobs().iter().map(|job| job.job_id.as_str()).collect();
        assert_eq!(order, ["failed", "stalled", "slow", "fine", "waits", "done", "old"]);
    }

    #[test]
    fn events_of_another_job_change_nothing() {
        let mut state = State::new("http://a:1".into(), Some(job_id("a")));
        state.apply(FeedEvent::Job(job_id("b"), StreamEvent::Step(Box::new(step(7, 2)))), SECOND);
        assert_eq!(state.open.as_ref().unwrap().step, None);
        state.apply(FeedEvent::Job(job_id("a"), StreamEvent::Step(Box::new(step(7, 2)))), SECOND);
        assert_eq!(state.open.as_ref().unwrap().step.as_ref().unwrap().iteration, 7);
    }

    #[test]
    fn the_age_of_an_outage_counts_from_its_start_and_silence_is_an_outage() {
        let mut state = State::new("http://a:1".into(), None);
        assert_eq!(state.link.without_events_for(60 * SECOND), None, "still connecting");
        state.apply(all(StreamEvent::Jobs(live(&["a"]))), SECOND);
        assert_eq!(state.link.without_events_for(10 * SECOND), None);
        assert_eq!(state.link.without_events_for(21 * SECOND), Some(20 * SECOND));
        state.apply(all(StreamEvent::Lost("refused".into())), 22 * SECOND);
        state.apply(all(StreamEvent::Lost("refused again".into())), 25 * SECOND);
        assert_eq!(state.link, ConnectionState::Lost(22 * SECOND, "refused again".into()));
        assert_eq!(state.link.without_events_for(26 * SECOND), Some(4 * SECOND));
        assert_eq!(state.jobs().len(), 1, "the previous data stays");
        state.apply(all(StreamEvent::Alive), 30 * SECOND);
        assert_eq!(state.link.without_events_for(30 * SECOND), None);
    }

    #[test]
    fn ages_are_by_the_services_clock() {
        let mut state = State::new("http://a:1".into(), None);
        assert_eq!(state.service_unix_ms(SECOND), None);
        state.apply(all(StreamEvent::Jobs(live(&["a"]))), SECOND);
        assert_eq!(state.service_unix_ms(3 * SECOND), Some(12_000));
    }
}
