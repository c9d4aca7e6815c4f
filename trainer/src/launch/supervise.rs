//! Supervision of the workers of an elastic run: restarts dead workers and notifies the others.

use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenstep_c10d::Store;
use rustix::process::Signal;

use super::processes::{LaunchOutcome, STOP_GRACE, describe, send};
use crate::elastic::{self, Ending};
use crate::progress::Output;

/// Interval between checks of the workers, and so the delay until the others learn of a death.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A worker that dies sooner than this after its start is restarted with an increasing pause.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// First pause before a restart after a short life. Each further one doubles it, up to the last.
const RESTART_FIRST: Duration = Duration::from_millis(100);
const RESTART_LAST: Duration = Duration::from_secs(5);

/// Limits of an elastic run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of worker restarts in the whole run.
    pub max_restarts: u32,
    /// Minimum number of workers; the run ends if it can no longer be reached.
    pub min_workers: usize,
}

/// Worker processes by slot, killed when this value is dropped.
pub struct Supervisor<'a> {
    slots: Vec<Slot>,
    /// Returns the command of a slot's next life.
    command: &'a dyn Fn(usize, u32) -> Result<Command>,
    /// The store with the prefix of elastic runs.
    store: Store,
    bounds: Bounds,
    restarts: u32,
    output: &'a Output,
}

#[derive(Debug)]
struct Slot {
    state: State,
    life: u32,
    short_lives: u32,
}

#[derive(Debug)]
enum State {
    Lives { child: Child, since: Instant },
    Waits { due: Instant },
    Over,
}

impl<'a> Supervisor<'a> {
    /// Starts a worker in each slot.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn start(
        workers: usize,
        command: &'a dyn Fn(usize, u32) -> Result<Command>,
        store: &Store,
        bounds: Bounds,
        output: &'a Output,
    ) -> Result<Self> {
        let store = store.prefix(elastic::PREFIX)?;
        let mut supervisor = Self { slots: Vec::new(), command, store, bounds, restarts: 0, output };
        for slot in 0..workers {
            supervisor.slots.push(Slot { state: State::Over, life: 0, short_lives: 0 });
            supervisor.begin_life(slot)?;
        }
        Ok(supervisor)
    }

    /// Watches until the run is over.
    ///
    /// # Errors
    /// The run failed, or too few workers are left.
    pub fn watch(&mut self, signals: &Receiver<i32>) -> Result<LaunchOutcome> {
        let mut deadline: Option<Instant> = None;
        let mut stopped = None;
        while self.slots.iter().any(|slot| !matches!(slot.state, State::Over)) {
            match signals.recv_timeout(LOOK_EVERY) {
                Ok(signal) if stopped.is_none() => {
                    stopped = Some(signal);
                    deadline = Some(Instant::now() + STOP_GRACE);
                    self.output.say(
                        "stopping: the workers finish their iteration; send the signal again to end them now",
                    );
                    self.stop_all();
                }
                Ok(_) => deadline = Some(Instant::now()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the signal thread has ended"),
            }
            let now = Instant::now();
            for slot in 0..self.slots.len() {
                self.look_at(slot, now, stopped.is_some(), &mut deadline)?;
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                break;
            }
        }
        self.kill();
        match (elastic::ending(&self.store)?, stopped) {
            (Some(Ending::Failed(why)), _) => bail!(why),
            (_, Some(signal)) => Ok(LaunchOutcome::Stopped(signal)),
            (Some(Ending::Finished | Ending::Stopped), None) => Ok(LaunchOutcome::Finished),
            (None, None) => bail!("all workers exited before the training was complete"),
        }
    }

    fn look_at(
        &mut self,
        slot: usize,
        now: Instant,
        stopping: bool,
        deadline: &mut Option<Instant>,
    ) -> Result<()> {
        let (status, lived, pid) = match &mut self.slots[slot].state {
            State::Over => return Ok(()),
            State::Waits { due } if now < *due => return Ok(()),
            State::Waits { .. } => return self.begin_life(slot),
            State::Lives { child, since } => {
                let ended = child.try_wait().with_context(|| format!("checking rank {slot}"))?;
                let Some(status) = ended else { return Ok(()) };
                (status, now.duration_since(*since), child.id())
            }
        };
        self.slots[slot].state = State::Over;
        elastic::announce_end_of_life(&self.store, slot, self.slots[slot].life)?;
        if !status.success() && !stopping && elastic::ending(&self.store)?.is_none() {
            self.lose(slot, status, pid, lived)?;
        }
        if elastic::ending(&self.store)?.is_some() {
            // The remaining workers only need to read the end of the run.
            deadline.get_or_insert(now + STOP_GRACE);
        }
        Ok(())
    }

    /// Handles the death of a worker: restarts it if a restart is left.
    fn lose(&mut self, slot: usize, status: ExitStatus, pid: u32, lived: Duration) -> Result<()> {
        let what = format!("rank {slot} (pid {pid}) {}", describe(status));
        if status.code().is_some() && !elastic::has_begun(&self.store)? {
            // The worker printed why it cannot join, and would fail again.
            elastic::end(&self.store, &Ending::Failed(format!("{what} before training began")))?;
            return Ok(());
        }
        if self.restarts < self.bounds.max_restarts {
            self.restarts += 1;
            let again = &mut self.slots[slot];
            again.short_lives = if lived < SHORT_LIFE { again.short_lives + 1 } else { 0 };
            let wait = match again.short_lives {
                0 => Duration::ZERO,
                lives => RESTART_FIRST.saturating_mul(1 << (lives - 1).min(16)).min(RESTART_LAST),
            };
            again.life += 1;
            again.state = State::Waits { due: Instant::now() + wait };
            let (count, most) = (self.restarts, self.bounds.max_restarts);
            self.output.say(&format!("{what}; restarting it ({count} of {most} restarts)"));
            return Ok(());
        }
        let left = self.slots.iter().filter(|slot| !matches!(slot.state, State::Over)).count();
        self.output.say(&format!("{what}, and no restart is left (--max-restarts); workers left: {left}"));
        if left < self.bounds.min_workers {
            let why =
                format!("workers left: {left}, and no restart; --min-workers is {}", self.bounds.min_workers);
            elastic::end(&self.store, &Ending::Failed(why))?;
        }
        Ok(())
    }

    fn begin_life(&mut self, slot: usize) -> Result<()> {
        let mut command = (self.command)(slot, self.slots[slot].life)?;
        let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        self.slots[slot].state = State::Lives { child, since: Instant::now() };
        Ok(())
    }

    /// Stops the run with SIGINT, because SIGTERM would only make single workers leave it. No worker is
    /// restarted any more.
    fn stop_all(&mut self) {
        for slot in &mut self.slots {
            match &slot.state {
                State::Lives { child, .. } => send(child, Signal::INT),
                State::Waits { .. } => slot.state = State::Over,
                State::Over => {}
            }
        }
    }

    fn kill(&mut self) {
        for slot in &mut self.slots {
            if let State::Lives { child, .. } = &mut slot.state {
                // Both fail only for a process that has ended already.
                let _ = child.kill();
                let _ = child.wait();
            }
            slot.state = State::Over;
        }
    }
}

impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}
