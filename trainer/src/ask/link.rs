//! Rank 0's line to the predictor: asks while it answers, and costs nothing while it does not.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use evenstep_protocol::AllocateAnswer;

use super::backlog::Backlog;
use super::client::{AskError, Timed};
use super::registration::Registration;
use crate::output::Output;
use crate::plan::{Asked, Plan, PlanError};

/// Waits between attempts to find a silent predictor again: the first, doubled each time up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(2);
/// How long a request of the end may take at the least.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

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
    /// Whether the predictor took this run in: from then on the job's past is ours.
    known: bool,
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
        let registered = registration.register().and_then(|joined| {
            registration.check_first(&joined)?;
            Ok(joined.generation)
        });
        let mut link = Self { registration, backlog, state: State::Off, known: false, refusals: 0, output };
        match registered {
            Ok(generation) => link.up(generation),
            Err(error @ AskError::Silent(_)) => {
                link.output.say(&format!("{error}; training begins with an even split, and asks on"));
                link.go_down();
            }
            Err(error) => return Err(error),
        }
        Ok(link)
    }

    /// Makes a changed set of workers known, in the background: training goes on meanwhile with what is in force.
    pub fn reopen(registration: Registration, backlog: Backlog, output: Output) -> Self {
        let mut link = Self { registration, backlog, state: State::Off, known: true, refusals: 0, output };
        link.go_down();
        link
    }

    /// Asks for an iteration of `global_batch` samples and delivers waiting reports along with it. None: there is no
    /// answer now, and what was in force stays so.
    pub fn ask(&mut self, iteration: u64, global_batch: u64) -> Option<Answered> {
        let generation = self.generation()?;
        let taken = self.backlog.take(iteration);
        let request = self.registration.request(generation, iteration, Some(global_batch), &taken);
        let answered = self.registration.client.allocate(&request).and_then(|timed| {
            let asked = Asked {
                workers: &self.registration.workers,
                global_batch,
                generation,
                follows_workers: self.registration.spec.per_worker_batch.is_some(),
            };
            match Plan::from_answer(&timed.answer, &asked) {
                Ok(plan) => Ok(Some(Answered { plan, timed })),
                // The workers before us asked for it; the next iterations are ours to ask for.
                Err(PlanError::Outgrown) => Ok(None),
                Err(error) => Err(AskError::Unusable(error.to_string())),
            }
        });
        match answered {
            Ok(answered) => {
                self.refusals = 0;
                return answered;
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

    /// Delivers what waits, along with a request for the iteration that would come next, and says that the workers leave.
    pub fn close(mut self, next_size: u64) {
        // No step waits for it any more, and who does not leave is waited for until its lease runs out.
        self.registration.client = self.registration.client.clone().with_timeout_of_at_least(LEAVE_TIMEOUT);
        if self.generation().is_some() {
            let next = self.backlog.done();
            // The first carries what a request may; what a long silence left was delivered when it ended.
            let _ = self.ask(next, next_size);
        }
        if !self.backlog.is_empty() {
            self.output.say("the predictor is away: the last reports were not delivered");
        }
        if self.generation().is_some() {
            let (client, workers) = (&self.registration.client, &self.registration.workers);
            if let Err(error) = workers.iter().try_for_each(|worker| client.leave(worker).map(drop)) {
                self.output.say(&format!("leaving the job: {error}; the leases will run out instead"));
            }
        }
    }

    /// The generation to ask in, while the predictor answers.
    fn generation(&mut self) -> Option<u64> {
        if let State::Down { found, .. } = &self.state {
            match found.try_recv() {
                Ok(Ok(generation)) => {
                    self.output.say(&format!("the predictor answers; generation {generation}"));
                    self.up(generation);
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

    fn up(&mut self, generation: u64) {
        self.known = true;
        self.state = State::Up { generation };
    }

    /// Looks for the predictor in the background, so that its absence costs no step anything.
    fn go_down(&mut self) {
        let (registration, backlog, known) = (self.registration.clone(), self.backlog.clone(), self.known);
        let (report, found) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        thread::spawn(move || {
            if let Some(outcome) = recover(&registration, &backlog, known, &stopped) {
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
    known: bool,
    stopped: &Receiver<()>,
) -> Option<Result<u64, AskError>> {
    let mut wait = RETRY_FIRST;
    loop {
        let outcome = registration.register().and_then(|joined| {
            if !known {
                registration.check_first(&joined)?;
            }
            registration.catch_up(joined.generation, backlog)?;
            Ok(joined.generation)
        });
        match outcome {
            Ok(generation) => return Some(Ok(generation)),
            // A job that refused this run from the first will refuse it for ever.
            Err(error @ AskError::Refused(_)) if !known => return Some(Err(error)),
            Err(_) => {}
        }
        match stopped.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => wait = (wait * 2).min(RETRY_LAST),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}
