//! Rank 0's line to the predictor: asks while it answers, and costs nothing while it does not.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use evenstep_protocol::{AllocateAnswer, AllocateRequest};

use super::backlog::Backlog;
use super::client::{AskError, Timed};
use super::registration::Registration;
use crate::output::Output;
use crate::plan::Plan;

/// Waits between attempts to find a silent predictor again: the first, doubled each time up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(2);

/// Refusals of one kind in a row after which the reports that went along are given up: they may be the cause.
const REFUSALS_MAX: u64 = 3;

/// Of repeated refusals every so many is told.
const REFUSALS_TOLD_EVERY: u64 = 100;

/// An answer that can be followed.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The plan in it.
    pub plan: Plan,
    /// All of it, and how long it took.
    pub timed: Timed<AllocateAnswer>,
}

/// The line.
#[derive(Debug)]
pub struct Link {
    registration: Registration,
    backlog: Backlog,
    state: State,
    refusals: u64,
    output: Output,
}

#[derive(Debug)]
enum State {
    /// It answers.
    Up { generation: u64 },
    /// It does not; a thread of its own tries to find it again, and ends when `stop` is dropped.
    Down { found: Receiver<Result<u64, AskError>>, _stop: Sender<()> },
    /// It will not serve this run.
    Off,
}

impl Link {
    /// Makes the run known. Where nobody answers training begins all the same, and asking goes on in the background.
    ///
    /// # Errors
    /// The predictor refuses this run.
    pub fn open(registration: Registration, backlog: Backlog, output: Output) -> Result<Self, AskError> {
        let registered = registration.register().and_then(|registered| {
            registration.check_first(registered)?;
            Ok(registered)
        });
        let mut link = Self { registration, backlog, state: State::Off, refusals: 0, output };
        match registered {
            Ok(registered) => link.state = State::Up { generation: registered.generation },
            Err(error @ AskError::Silent(_)) => {
                link.output.say(&format!("{error}; training begins with an even split, and asks on"));
                link.go_down();
            }
            Err(error) => return Err(error),
        }
        Ok(link)
    }

    /// Asks for an iteration of `global_batch` samples and delivers waiting reports along with it. None: there is no
    /// answer now, and what was in force stays so.
    pub fn ask(&mut self, iteration: u64, global_batch: u64) -> Option<Answered> {
        let generation = self.generation()?;
        let taken = self.backlog.take();
        let request = AllocateRequest {
            job_id: self.registration.client.job_id().clone(),
            generation,
            iteration,
            global_batch: (global_batch != self.registration.spec.global_batch).then_some(global_batch),
            reports: taken.iter().flatten().cloned().collect(),
        };
        let answered = self.registration.client.allocate(&request).and_then(|timed| {
            let plan = Plan::from_answer(&timed.answer, &self.registration.workers, global_batch);
            let plan = plan.map_err(|error| AskError::Unusable(error.to_string()))?;
            Ok(Answered { plan, timed })
        });
        match answered {
            Ok(answered) => {
                self.refusals = 0;
                return Some(answered);
            }
            Err(AskError::Refused(why)) => {
                self.refusals += 1;
                if self.refusals % REFUSALS_TOLD_EVERY == 1 {
                    self.output.say(&format!(
                        "iteration {iteration}: the predictor refused: {why}; the last allocation stays in force"
                    ));
                }
                if self.refusals < REFUSALS_MAX {
                    self.backlog.put_back(taken);
                } else {
                    self.backlog.count_lost(request.reports.len());
                }
            }
            Err(AskError::Unusable(why)) => {
                // The reports were taken in; only the answer is of no use. Joining again puts foreign workers right.
                self.output.say(&format!("iteration {iteration}: unusable answer: {why}; joining again"));
                self.go_down();
            }
            Err(error) => {
                self.backlog.put_back(taken);
                self.output.say(&format!(
                    "iteration {iteration}: {error}; the last allocation stays in force, and asking goes on"
                ));
                self.go_down();
            }
        }
        None
    }

    /// Delivers what waits and says that the workers leave.
    pub fn close(mut self) {
        let Some(generation) = self.generation() else {
            if !self.backlog.is_empty() {
                self.output.say("the predictor is still away: the last reports were not delivered");
            }
            return;
        };
        let done = self.backlog.done();
        let registered = super::registration::Registered { generation, next_iteration: done };
        let delivered = self.registration.catch_up(registered, &self.backlog);
        let left = delivered.and_then(|()| {
            self.registration.workers.iter().try_for_each(|worker| self.registration.client.leave(worker))
        });
        if let Err(error) = left {
            self.output.say(&format!("leaving the job: {error}; leases will run out instead"));
        }
    }

    /// The generation to ask in, while the predictor answers.
    fn generation(&mut self) -> Option<u64> {
        if let State::Down { found, .. } = &self.state {
            match found.try_recv() {
                Ok(Ok(generation)) => {
                    self.output.say(&format!("the predictor answers; generation {generation}"));
                    self.state = State::Up { generation };
                }
                Ok(Err(error)) => {
                    self.output.say(&format!("{error}; this run goes on without asking"));
                    self.state = State::Off;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.state = State::Off,
            }
        }
        match self.state {
            State::Up { generation } => Some(generation),
            State::Down { .. } | State::Off => None,
        }
    }

    /// Looks for the predictor in the background, so that its absence costs no step anything.
    fn go_down(&mut self) {
        let (registration, backlog) = (self.registration.clone(), self.backlog.clone());
        let (report, found) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        thread::spawn(move || {
            if let Some(outcome) = recover(&registration, &backlog, &stopped) {
                // The receiver is gone when training has ended: nobody is left to tell.
                let _ = report.send(outcome);
            }
        });
        self.state = State::Down { found, _stop: stop };
    }
}

/// Registers and catches up, again and again; none when told to stop.
fn recover(
    registration: &Registration,
    backlog: &Backlog,
    stopped: &Receiver<()>,
) -> Option<Result<u64, AskError>> {
    let mut wait = RETRY_FIRST;
    loop {
        let outcome = registration.register().and_then(|registered| {
            if backlog.done() <= registration.begin.iteration {
                registration.check_first(registered)?;
            }
            registration.catch_up(registered, backlog)?;
            Ok(registered.generation)
        });
        match outcome {
            Ok(generation) => return Some(Ok(generation)),
            Err(error @ AskError::Refused(_)) if backlog.done() <= registration.begin.iteration => {
                return Some(Err(error));
            }
            Err(_) => {}
        }
        match stopped.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => wait = (wait * 2).min(RETRY_LAST),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}
