//! Keys and their actions.

use evenstep_protocol::JobId;

use super::{OpenJob, State};

/// The meaning of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// `k`, arrow up.
    Up,
    /// `j`, arrow down.
    Down,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// `g`, Home.
    First,
    /// `G`, End.
    Last,
    /// Enter, arrow right.
    Open,
    /// Esc, arrow left.
    Back,
    /// `?`.
    Help,
    /// `q`, Ctrl-C.
    Quit,
}

/// The action that follows a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Only draw.
    Nothing,
    /// Follow this job.
    Follow(JobId),
    /// Stop following a job.
    Leave,
    /// Quit.
    Quit,
}

/// Rows of a page.
const PAGE: isize = 10;
/// More rows than any list has.
const ROWS_BEYOND: isize = 1 << 40;

impl State {
    /// Handles a key.
    pub fn key(&mut self, key: Key) -> Action {
        self.notice = None;
        if key == Key::Quit {
            return Action::Quit;
        }
        if self.help || key == Key::Help {
            // Any key closes the help.
            self.help = !self.help;
            return Action::Nothing;
        }
        match key {
            Key::Back => {
                return if self.open.take().is_some() { Action::Leave } else { Action::Nothing };
            }
            Key::Open => return self.open_chosen(),
            _ => {}
        }
        let below = match key {
            Key::Up => -1,
            Key::Down => 1,
            Key::PageUp => -PAGE,
            Key::PageDown => PAGE,
            Key::First => -ROWS_BEYOND,
            _ => ROWS_BEYOND,
        };
        match &mut self.open {
            Some(open) => open.choose(below),
            None => self.choose(below),
        }
        Action::Nothing
    }

    fn open_chosen(&mut self) -> Action {
        if self.open.is_some() {
            return Action::Nothing;
        }
        match self.chosen.clone().filter(|_| self.chosen_at().is_some()) {
            Some(job) => {
                self.open = Some(OpenJob::new(job.clone()));
                Action::Follow(job)
            }
            None => Action::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{job_id, live, step};
    use super::super::{FeedEvent, StreamEvent};
    use super::*;

    #[test]
    fn enter_opens_and_escape_goes_back() {
        let mut state = State::new("http://a:1".into(), None);
        state
            .apply(FeedEvent::All(StreamEvent::Jobs(live(&["a", "b"])), "http://a:1".into()), Duration::ZERO);
        assert_eq!(state.key(Key::Last), Action::Nothing);
        assert_eq!(state.key(Key::Open), Action::Follow(job_id("b")));
        assert_eq!(state.key(Key::Open), Action::Nothing);
        assert_eq!(state.key(Key::Back), Action::Leave);
        assert_eq!(state.key(Key::Back), Action::Nothing);
        assert_eq!(state.key(Key::Quit), Action::Quit);
    }

    #[test]
    fn any_key_closes_the_help_and_does_nothing_else() {
        let mut state = State::new("http://a:1".into(), None);
        state.apply(FeedEvent::All(StreamEvent::Jobs(live(&["a"])), "http://a:1".into()), Duration::ZERO);
        state.key(Key::Help);
        assert!(state.help);
        assert_eq!((state.key(Key::Open), state.help, state.open.is_none()), (Action::Nothing, false, true));
    }

    #[test]
    fn in_a_job_the_keys_choose_a_worker() {
        let mut state = State::new("http://a:1".into(), Some(job_id("a")));
        state.apply(FeedEvent::Job(job_id("a"), StreamEvent::Step(Box::new(step(1, 3)))), Duration::ZERO);
        let chosen = |state: &State| state.open.as_ref().unwrap().chosen_worker().unwrap().rank;
        state.key(Key::Down);
        assert_eq!(chosen(&state), 1);
        state.key(Key::Last);
        assert_eq!(chosen(&state), 2);
        state.key(Key::PageUp);
        assert_eq!(chosen(&state), 0);
    }
}
