//! The worker processes of one machine: all are ended when one fails.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::metrics::{Processes, RunMetrics};
use crate::progress::Output;

/// Set for processes that must not outlive the one that started them.
pub const TIED: &str = "EVENSTEP_TIED_TO_PARENT";
/// How often the workers are looked at.
const WATCH_EVERY: Duration = Duration::from_millis(20);
/// Time that the others get to say what they saw when one failed.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// Time that workers get to finish their iteration when told to stop.
pub const STOP_GRACE: Duration = Duration::from_secs(20);

/// How a launch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every worker finished.
    Finished,
    /// A signal stopped it.
    Stopped(i32),
}

/// What this process is told by signals to stop.
///
/// # Errors
/// The system refuses.
pub fn signals() -> Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listening for signals")?;
    let (seen, received) = mpsc::channel();
    thread::spawn(move || signals.forever().try_for_each(|signal| seen.send(signal)));
    Ok(received)
}

/// Processes that are killed when this goes out of scope.
#[derive(Debug, Default)]
pub struct WorkerProcesses(Vec<Member>);

#[derive(Debug)]
struct Member {
    child: Child,
    ended: Option<ExitStatus>,
}

impl WorkerProcesses {
    /// Starts another worker: its rank is their number so far.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(&mut self, mut command: Command) -> Result<()> {
        let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        self.0.push(Member { child, ended: None });
        Ok(())
    }

    /// Waits for all; when one fails the others get a moment for their last words.
    ///
    /// # Errors
    /// A worker failed.
    pub fn watch(&mut self, signals: &Receiver<i32>, output: &Output, metrics: &RunMetrics) -> Result<Ended> {
        let mut failed: Option<(usize, ExitStatus)> = None;
        let mut deadline: Option<Instant> = None;
        let mut stopped: Option<i32> = None;
        loop {
            match signals.recv_timeout(WATCH_EVERY) {
                Ok(signal) if stopped.is_none() => {
                    stopped = Some(signal);
                    deadline = Some(Instant::now() + STOP_GRACE);
                    output
                        .say("told to stop: the workers finish their iteration; once more ends them at once");
                    self.signal(Signal::TERM);
                }
                Ok(_) => deadline = Some(Instant::now()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the thread that listens for signals ended"),
            }
            for (rank, member) in self.0.iter_mut().enumerate().filter(|(_, member)| member.ended.is_none()) {
                member.ended = member.child.try_wait().with_context(|| format!("watching rank {rank}"))?;
                if let Some(status) = member.ended.filter(|status| !status.success())
                    && failed.is_none()
                {
                    failed = Some((rank, status));
                    deadline = Some(Instant::now() + LAST_WORDS);
                    let pid = member.child.id();
                    output.say(&format!("rank {rank} (pid {pid}) {}; ending the others", describe(status)));
                }
            }
            let running = self.0.iter().filter(|member| member.ended.is_none()).count();
            metrics.set_processes(Processes { running, waiting: 0, ended: self.0.len() - running });
            if running == 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
        }
        self.kill();
        match (failed, stopped) {
            (Some((rank, status)), None) => bail!("rank {rank} {}", describe(status)),
            (_, Some(signal)) => Ok(Ended::Stopped(signal)),
            (None, None) => Ok(Ended::Finished),
        }
    }

    fn signal(&self, signal: Signal) {
        for member in self.0.iter().filter(|member| member.ended.is_none()) {
            send(&member.child, signal);
        }
    }

    fn kill(&mut self) {
        for member in self.0.iter_mut().filter(|member| member.ended.is_none()) {
            // Both fail only for a process that has ended already.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

impl Drop for WorkerProcesses {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a child that was not waited for.
pub fn send(child: &Child, signal: Signal) {
    // Not reaped yet, so the number is still its own; one that just ended needs no signal.
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// How a process ended, in words.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("failed with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}
