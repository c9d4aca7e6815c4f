//! The worker processes of one machine. All are ended when one fails.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::progress::Output;

/// Environment variable of processes that must end with their parent.
pub const TIED: &str = "EVENSTEP_TIED_TO_PARENT";
/// Interval between checks of the workers.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time for the other workers to print their errors after one has failed.
const ERROR_OUTPUT_GRACE: Duration = Duration::from_secs(3);
/// Time for the workers to finish their iteration after a stop signal.
pub const STOP_GRACE: Duration = Duration::from_secs(20);

/// How a launch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchOutcome {
    /// Every worker finished.
    Finished,
    /// A signal stopped the run.
    Stopped(i32),
}

/// Returns the receiver of stop signals to this process.
///
/// # Errors
/// The operating system rejects a signal handler.
pub fn signals() -> Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("installing the signal handlers")?;
    let (seen, received) = mpsc::channel();
    thread::spawn(move || signals.forever().try_for_each(|signal| seen.send(signal)));
    Ok(received)
}

/// Processes that are killed when this value is dropped.
#[derive(Debug, Default)]
pub struct WorkerProcesses(Vec<Member>);

#[derive(Debug)]
struct Member {
    child: Child,
    ended: Option<ExitStatus>,
}

impl WorkerProcesses {
    /// Starts another worker. Its rank is the number of workers so far.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(&mut self, mut command: Command) -> Result<()> {
        let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        self.0.push(Member { child, ended: None });
        Ok(())
    }

    /// Waits for all workers. When one fails, the others have a moment to print their errors.
    ///
    /// # Errors
    /// A worker failed.
    pub fn watch(&mut self, signals: &Receiver<i32>, output: &Output) -> Result<LaunchOutcome> {
        let mut failed: Option<(usize, ExitStatus)> = None;
        let mut deadline: Option<Instant> = None;
        let mut stopped: Option<i32> = None;
        loop {
            match signals.recv_timeout(POLL_INTERVAL) {
                Ok(signal) if stopped.is_none() => {
                    stopped = Some(signal);
                    deadline = Some(Instant::now() + STOP_GRACE);
                    output.say(
                        "stopping: the workers finish their iteration; send the signal again to end them now",
                    );
                    self.signal(Signal::TERM);
                }
                Ok(_) => deadline = Some(Instant::now()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the signal thread has ended"),
            }
            for (rank, member) in self.0.iter_mut().enumerate().filter(|(_, member)| member.ended.is_none()) {
                member.ended = member.child.try_wait().with_context(|| format!("checking rank {rank}"))?;
                if let Some(status) = member.ended.filter(|status| !status.success())
                    && failed.is_none()
                {
                    failed = Some((rank, status));
                    deadline = Some(Instant::now() + ERROR_OUTPUT_GRACE);
                    let pid = member.child.id();
                    output.say(&format!("rank {rank} (pid {pid}) {}; ending the others", describe(status)));
                }
            }
            let running = self.0.iter().any(|member| member.ended.is_none());
            if !running || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
        }
        self.kill();
        match (failed, stopped) {
            (Some((rank, status)), None) => bail!("rank {rank} {}", describe(status)),
            (_, Some(signal)) => Ok(LaunchOutcome::Stopped(signal)),
            (None, None) => Ok(LaunchOutcome::Finished),
        }
    }

    fn signal(&self, signal: Signal) {
        for member in self.0.iter().filter(|member| member.ended.is_none()) {
            send(&member.child, signal);
        }
    }

    fn kill(&mut self) {
        for member in self.0.iter_mut().filter(|member| member.ended.is_none()) {
            // Both calls fail only for a process that has already ended.
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

/// Sends a signal to a child that has not been reaped.
pub fn send(child: &Child, signal: Signal) {
    // Not reaped yet, so the pid is still valid; a process that has just ended needs no signal.
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Describes how a process ended.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("failed with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended without exit code or signal".to_owned(),
    }
}
