//! The connection of a run: requests allocations while the predictor is reachable, and returns at once while
//! it is not.

use std::time::{Duration, Instant};

use evenstep_protocol::{AllocateResponse, WorkerReport};
use evenstep_rules::Requested;

use crate::backlog::Backlog;
use crate::backoff::Backoff;
use crate::client::Timed;
use crate::error::{Error, ErrorKind, Operation};
use crate::event::{Event, EventHandler};
use crate::recovery::{Attempted, BackgroundRecovery, FindServers, Recovery};
use crate::registration::Registration;

/// Number of consecutive rejections after which the reports in the request are dropped, because they may be
/// the cause.
const REJECTIONS_MAX: u64 = 3;

/// The first of consecutive rejections is an event, and then every n-th.
const REJECTIONS_PER_EVENT: u64 = 100;

/// An allocation that passed the caller's check.
#[derive(Debug, Clone, PartialEq)]
pub struct Allocated<T> {
    /// The result of the check.
    pub plan: T,
    /// The complete response, and its duration.
    pub timed: Timed<AllocateResponse>,
}

/// How a lost connection is restored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reconnect {
    /// By a thread that the connection starts when it loses the predictor. The thread ends with the outage or
    /// the connection.
    #[default]
    Background,
    /// By the caller, with [`Connection::reconnect`]. The connection starts no thread.
    Caller,
}

/// The connection of a run.
#[derive(Debug)]
pub struct Connection {
    registration: Registration,
    pub(crate) backlog: Backlog,
    state: State,
    /// Whether the predictor has accepted this run. The job's past then belongs to this run.
    pub(crate) registered: bool,
    /// Whether the predictor has returned an allocation to this run.
    pub(crate) begun: bool,
    rejections: u64,
    pub(crate) reconnect: Reconnect,
    pub(crate) backoff: Backoff,
    pub(crate) find_servers: FindServers,
    pub(crate) events: EventHandler,
}

/// A rejected request: the error, and the reports in the request by iteration.
type Rejection = (Error, Vec<Vec<WorkerReport>>);

#[derive(Debug)]
enum State {
    Connected {
        generation: u64,
    },
    /// A thread restores the connection.
    Background(BackgroundRecovery),
    /// The caller restores the connection, not before `due`.
    Caller {
        recovery: Box<Recovery>,
        due: Instant,
    },
    /// The predictor will not serve this run.
    GivenUp,
}

impl Connection {
    /// Creates the connection of a run that is not registered yet, with default options.
    pub(crate) fn new(registration: Registration) -> Self {
        let (backlog, reconnect, backoff, find_servers, events) = Default::default();
        Self {
            registration,
            backlog,
            state: State::GivenUp,
            registered: false,
            begun: false,
            rejections: 0,
            reconnect,
            backoff,
            find_servers,
            events,
        }
    }

    /// Returns the queue of reports.
    pub fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Returns the job and the workers of the run.
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Requests the allocation of an iteration of `global_batch` samples and delivers waiting reports with
    /// it. Returns the result of `check` on the response, or `None` without a new allocation: the previous
    /// one then stays in force.
    ///
    /// `check` returns `Ok(None)` for an allocation of an earlier set of workers that this run cannot follow.
    /// It returns a message for an invalid allocation; the connection then registers again.
    pub fn request<T>(
        &mut self,
        iteration: u64,
        global_batch: u64,
        check: impl FnOnce(&AllocateResponse, &Requested<'_>) -> Result<Option<T>, String>,
    ) -> Option<Allocated<T>> {
        self.attempt(iteration, global_batch, check).unwrap_or_else(|(error, taken)| {
            self.rejections += 1;
            let infeasible = matches!(error.kind, ErrorKind::Infeasible(_));
            match (infeasible, self.rejections < REJECTIONS_MAX) {
                // The predictor has stored the reports.
                (true, _) => {}
                (false, true) => self.backlog.put_back(taken),
                (false, false) => self.backlog.count_lost(taken.iter().map(Vec::len).sum()),
            }
            if self.rejections % REJECTIONS_PER_EVENT == 1 {
                self.events.handle(&Event::Rejected { error, in_a_row: self.rejections });
            }
            None
        })
    }

    /// Requests an allocation before the run starts, when a rejection can still end it. Otherwise like
    /// [`Connection::request`].
    ///
    /// # Errors
    /// The predictor rejects the request: the job options or the workers break a rule.
    pub fn request_first<T>(
        &mut self,
        iteration: u64,
        global_batch: u64,
        check: impl FnOnce(&AllocateResponse, &Requested<'_>) -> Result<Option<T>, String>,
    ) -> Result<Option<Allocated<T>>, Error> {
        self.attempt(iteration, global_batch, check).map_err(|(error, _)| error)
    }

    /// Makes a request. A rejection is an error, with the reports of the request; after any other failure, the
    /// connection is lost.
    fn attempt<T>(
        &mut self,
        iteration: u64,
        global_batch: u64,
        check: impl FnOnce(&AllocateResponse, &Requested<'_>) -> Result<Option<T>, String>,
    ) -> Result<Option<Allocated<T>>, Rejection> {
        let Some(generation) = self.generation() else { return Ok(None) };
        let taken = self.backlog.take(iteration);
        let request = self.registration.request(generation, iteration, Some(global_batch), &taken);
        let allocated = self.registration.client().allocate(&request).and_then(|timed| {
            let requested = Requested {
                workers: self.registration.workers(),
                global_batch,
                generation,
                follows_workers: self.registration.spec().per_worker_batch.is_some(),
                quantum: self.registration.spec().quantum,
                caps: &self.registration.caps(),
            };
            match check(&timed.response, &requested) {
                Ok(plan) => Ok(plan.map(|plan| Allocated { plan, timed })),
                Err(why) => Err(ErrorKind::InvalidResponse(why).in_operation(Operation::Allocate(iteration))),
            }
        });
        let error = match allocated {
            Ok(allocated) => {
                self.rejections = 0;
                self.begun = true;
                return Ok(allocated);
            }
            Err(error) => error,
        };
        match error.kind {
            ErrorKind::Rejected(_) | ErrorKind::Infeasible(_) => return Err((error, taken)),
            // The predictor has accepted the reports; only the response is invalid. Registering again removes
            // foreign workers.
            ErrorKind::InvalidResponse(_) => self.lose(error),
            _ => {
                self.backlog.put_back(taken);
                self.lose(error);
            }
        }
        Ok(None)
    }

    /// Makes one attempt to restore a lost connection, if [`Reconnect::Caller`] is set and the pause since
    /// the last attempt is over. Returns the time until the next attempt, or `None` if the connection is not
    /// lost.
    pub fn reconnect(&mut self) -> Option<Duration> {
        let State::Caller { recovery, due } = &mut self.state else { return None };
        let clock = self.registration.client().config().clock.clone();
        let left = due.saturating_duration_since(clock.now());
        if !left.is_zero() {
            return Some(left);
        }
        match recovery.attempt() {
            Attempted::Connected(generation) => self.set_reconnected(generation),
            Attempted::GivenUp(error) => self.give_up(Some(error)),
            Attempted::Retry(pause) => {
                *due = clock.now() + pause;
                return Some(pause);
            }
        }
        None
    }

    /// Returns whether the predictor was reachable at its last use.
    pub fn is_connected(&mut self) -> bool {
        self.generation().is_some()
    }

    /// Ends the run: delivers waiting reports with a request for the next iteration, of `next_global_batch`
    /// samples, and removes the workers from the job.
    pub fn close(mut self, next_global_batch: u64) {
        // No iteration waits for the request any more. Workers that do not leave would block the job until
        // their leases expire.
        self.registration.at_end_of_run();
        if self.is_connected() {
            let next = self.backlog.done();
            // One request is enough: the reports of a long outage were delivered at its end.
            self.request(next, next_global_batch, |_, _| Ok(None::<()>));
        }
        if !self.backlog.is_empty() {
            self.events.handle(&Event::ReportsUndelivered);
        }
        if self.is_connected()
            && let Err(error) = self.registration.leave()
        {
            self.events.handle(&Event::LeaveFailed(error));
        }
    }

    /// Returns the generation for requests, if the predictor is reachable.
    fn generation(&mut self) -> Option<u64> {
        if let State::Background(recovery) = &self.state {
            match recovery.outcome()? {
                Ok(generation) => self.set_reconnected(generation),
                Err(error) => self.give_up(error),
            }
        }
        match self.state {
            State::Connected { generation } => Some(generation),
            State::Background(_) | State::Caller { .. } | State::GivenUp => None,
        }
    }

    pub(crate) fn start_unreachable(&mut self, error: Error) {
        self.events.handle(&Event::Unreachable(error));
        self.disconnect();
    }

    pub(crate) fn set_connected(&mut self, generation: u64) {
        self.registered = true;
        self.state = State::Connected { generation };
    }

    fn set_reconnected(&mut self, generation: u64) {
        self.events.handle(&Event::Reconnected { generation });
        self.begun = true;
        self.set_connected(generation);
    }

    fn give_up(&mut self, error: Option<Error>) {
        if let Some(error) = error {
            self.events.handle(&Event::GivenUp(error));
        }
        self.state = State::GivenUp;
    }

    fn lose(&mut self, error: Error) {
        self.events.handle(&Event::Disconnected(error));
        self.disconnect();
    }

    pub(crate) fn disconnect(&mut self) {
        let recovery = Recovery {
            registration: self.registration.clone(),
            backlog: self.backlog.clone(),
            registered: self.registered,
            begun: self.begun,
            backoff: self.backoff,
            find_servers: self.find_servers.clone(),
        };
        self.state = match self.reconnect {
            Reconnect::Background => State::Background(BackgroundRecovery::start(recovery)),
            Reconnect::Caller => State::Caller {
                recovery: Box::new(recovery),
                due: self.registration.client().config().clock.now(),
            },
        };
    }
}
