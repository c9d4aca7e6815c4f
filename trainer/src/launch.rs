//! Starting the workers of one machine, and ending all of them when one fails.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};
use evenstep_c10d::Store;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::board::{Board, Processes, Shown};
use crate::cli::{Cli, LaunchArgs};
use crate::contend::clock_s;
use crate::load::Load;
use crate::output::Output;
use crate::pin;
use crate::supervise::{Bounds, Supervisor};

/// The store waits this long for its own port.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);
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

/// Starts the workers and waits for them. `matches` are the raw arguments of `launch`.
///
/// # Errors
/// Values that do not go together, or a worker that failed.
pub fn run(args: &LaunchArgs, matches: &ArgMatches) -> Result<Ended> {
    let workers = args.workers as usize;
    args.train.check(workers)?;
    let cores = placement(args, &pin::cores()?)?;
    let output = Output::new("launch");
    let signals = signals()?;
    // Hosted here and not in a worker, so that it outlives whichever worker is lost.
    let store = Store::host("127.0.0.1", 0, STORE_TIMEOUT)?;
    let mut load = Crew::default();
    let mut loaded = Vec::new();
    let since_s = clock_s();
    if args.contend.is_some() || args.train.sway.is_some() {
        loaded.push(format!("--loaded-since={since_s}"));
    }
    if let Some(kind) = args.contend {
        for (rank, &core) in cores.iter().flatten().enumerate() {
            load.start(contender(core, Load::beside(rank, kind, args.train.seed), since_s)?)?;
        }
        loaded.push(format!("--contended={kind}"));
        output.say(&format!(
            "a competing load of our own ({kind}) runs on the cores {:?}",
            cores.as_deref().unwrap_or(&[])
        ));
    }
    let shown = Shown::start(args, &output)?;
    let board = shown.as_ref().map(|shown| shown.board.clone()).unwrap_or_default();
    let passed = passed_on(matches);
    let worker = |rank: usize, life: Option<u32>| -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["join".into(), format!("--rank={rank}"), format!("--world-size={workers}")]);
        command.arg(format!("--store=127.0.0.1:{}", store.port()));
        command.args(cores.as_ref().map(|cores| format!("--core={}", cores[rank])));
        command.args(life.map(|life| format!("--life={life}")));
        command.args(&loaded);
        command.args(&passed).env(TIED, "1");
        match &shown {
            Some(shown) => command.arg("--tells").stdin(shown.voice()?),
            None => command.stdin(Stdio::null()),
        };
        if std::env::var_os("TORCH_CPP_LOG_LEVEL").is_none() {
            // c10d's own log repeats, with C++ frames, what our errors say.
            command.env("TORCH_CPP_LOG_LEVEL", "FATAL");
        }
        Ok(command)
    };
    if args.train.elastic {
        let bounds = Bounds { max_restarts: args.max_restarts, min_workers: args.train.min_workers as usize };
        let next = |slot, life| worker(slot, Some(life));
        return Supervisor::start(workers, &next, &store, bounds, &output, &board)?.watch(&signals);
    }
    let mut crew = Crew::default();
    for rank in 0..workers {
        crew.start(worker(rank, None)?)?;
    }
    crew.watch(&signals, &output, &board)
}

/// Set for processes that must not outlive the one that started them.
pub const TIED: &str = "EVENSTEP_TIED_TO_PARENT";

/// The core of each worker, where workers are pinned.
fn placement(args: &LaunchArgs, allowed: &[usize]) -> Result<Option<Vec<usize>>> {
    let workers = args.workers as usize;
    if let Some(cores) = &args.pin {
        ensure!(cores.len() == workers, "--pin names {} cores, but there are {workers} workers", cores.len());
        let foreign = cores.iter().find(|core| !allowed.contains(core));
        if let Some(core) = foreign {
            bail!("--pin {core}: this process may run on the cores {allowed:?}");
        }
        return Ok(Some(cores.clone()));
    }
    if args.contend.is_none() {
        return Ok(None);
    }
    ensure!(
        workers <= allowed.len(),
        "--contend with {workers} workers on {} cores: workers that share a core slow each other down alike and hide \
         the load; take at most {} workers",
        allowed.len(),
        allowed.len()
    );
    Ok(Some(allowed[..workers].to_vec()))
}

/// The arguments of `launch` that `join` knows too, as they were given; what came from the environment or is a default
/// reaches the workers by itself.
fn passed_on(matches: &ArgMatches) -> Vec<OsString> {
    let command = Cli::command();
    let known = command.find_subcommand("join").into_iter().flat_map(clap::Command::get_arguments);
    let mut passed = Vec::new();
    for argument in known {
        let (id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        let here = matches.try_contains_id(id).is_ok();
        if !here || matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let values: Vec<_> = matches.get_raw(id).into_iter().flatten().collect();
        let mut flag = OsString::from(format!("--{long}"));
        if argument.get_action().takes_values() && !values.is_empty() {
            flag.push("=");
            flag.push(values.join(&OsString::from(",")));
        }
        passed.push(flag);
    }
    passed
}

fn contender(core: usize, load: Load, since_s: f64) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["contend", "--until-stdin-closes", &format!("--core={core}")]);
    command.args([format!("--load={}", load.kind), format!("--seed={}", load.seed)]);
    command.arg(format!("--since={since_s}"));
    command.stdin(Stdio::piped()).env(TIED, "1");
    Ok(command)
}

/// The signals that end a run, as they come.
pub(crate) fn signals() -> Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listening for signals")?;
    let (seen, received) = mpsc::channel();
    thread::spawn(move || signals.forever().try_for_each(|signal| seen.send(signal)));
    Ok(received)
}

/// Processes that are killed when this goes out of scope.
#[derive(Debug, Default)]
pub(crate) struct Crew(Vec<Member>);

#[derive(Debug)]
struct Member {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Crew {
    pub(crate) fn start(&mut self, mut command: Command) -> Result<()> {
        let child = command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
        self.0.push(Member { child, ended: None });
        Ok(())
    }

    /// Waits for all; when one fails the others get a moment for their last words.
    pub(crate) fn watch(&mut self, signals: &Receiver<i32>, output: &Output, board: &Board) -> Result<Ended> {
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
            board.set_processes(Processes { running, waiting: 0, ended: self.0.len() - running });
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

impl Drop for Crew {
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

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn launch(extra: &[&str]) -> (LaunchArgs, ArgMatches) {
        let arguments = ["evenstep-trainer", "launch", "--workers=2"].iter().chain(extra);
        let matches = Cli::command().try_get_matches_from(arguments).unwrap();
        let launch = matches.subcommand_matches("launch").unwrap().clone();
        (LaunchArgs::from_arg_matches(&launch).unwrap(), launch)
    }

    #[test]
    fn what_was_given_reaches_the_workers_and_nothing_else() {
        let (_, matches) = launch(&[
            "--pin=0,1",
            "--contend",
            "--pace",
            "1,2",
            "--lr=0.1",
            "--verify-gradient",
            "--hidden",
            "8,4",
        ]);
        let passed = passed_on(&matches);
        let expected = ["--hidden=8,4", "--lr=0.1", "--pace=1,2", "--verify-gradient=50"];
        let mut passed: Vec<_> = passed.iter().map(|flag| flag.to_str().unwrap()).collect();
        passed.sort_unstable();
        assert_eq!(passed, expected);
    }

    #[test]
    fn a_load_needs_a_core_for_each_worker() {
        assert_eq!(placement(&launch(&[]).0, &[0, 1]).unwrap(), None);
        assert_eq!(placement(&launch(&["--contend"]).0, &[2, 3, 4]).unwrap(), Some(vec![2, 3]));
        assert!(placement(&launch(&["--contend"]).0, &[0]).is_err());
        assert_eq!(placement(&launch(&["--pin=1,1"]).0, &[0, 1]).unwrap(), Some(vec![1, 1]));
        assert!(placement(&launch(&["--pin=1,2"]).0, &[0, 1]).is_err());
        assert!(placement(&launch(&["--pin=1"]).0, &[0, 1]).is_err());
    }
}
