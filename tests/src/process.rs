//! A child process: its output is kept, and it ends with its owner.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::PATIENCE;

/// Number of output streams: standard output and standard error.
const STREAMS: usize = 2;

/// A running (or ended) process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    said: Arc<Said>,
}

/// Output of both streams.
#[derive(Debug, Default)]
struct Said {
    heard: Mutex<CapturedOutput>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct CapturedOutput {
    /// Lines in order of arrival.
    lines: Vec<String>,
    /// Number of streams that have ended.
    ended: usize,
}

impl Said {
    fn heard(&self) -> MutexGuard<'_, CapturedOutput> {
        self.heard.lock().expect("no panic while listening")
    }

    /// Waits a little longer for more output.
    fn listen<'a>(&self, heard: MutexGuard<'a, CapturedOutput>) -> MutexGuard<'a, CapturedOutput> {
        self.more.wait_timeout(heard, PATIENCE / 1000).expect("no panic while listening").0
    }
}

impl Process {
    /// Starts a command without standard input.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("starting {name}: {error}"));
        let said = Arc::new(Said::default());
        listen(child.stdout.take().expect("a pipe"), said.clone());
        listen(child.stderr.take().expect("a pipe"), said.clone());
        Self { child, name, said }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the output so far.
    pub fn output(&self) -> String {
        self.said.heard().lines.join("\n")
    }

    /// Waits for a line, including earlier ones, for which `found` returns a value. Returns that value.
    ///
    /// # Panics
    /// The process ends or the time limit passes without such a line.
    pub fn line<T>(&self, what: &str, found: impl Fn(&str) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = 0;
        let mut heard = self.said.heard();
        loop {
            if let Some(found) = heard.lines[seen..].iter().find_map(|line| found(line)) {
                return found;
            }
            seen = heard.lines.len();
            let all = || heard.lines.join("\n");
            assert!(heard.ended < STREAMS, "{} ended without printing {what}:\n{}", self.name, all());
            assert!(Instant::now() < deadline, "{} did not print {what} in time:\n{}", self.name, all());
            heard = self.said.listen(heard);
        }
    }

    /// Returns whether the process runs and has not closed its output.
    pub fn lives(&self) -> bool {
        self.said.heard().ended < STREAMS
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        send(self.id(), Signal::TERM);
    }

    /// Sends SIGSTOP: the process stops, and its connections stay open.
    pub fn stop(&self) {
        send(self.id(), Signal::STOP);
    }

    /// Sends SIGCONT: the process continues.
    pub fn go_on(&self) {
        send(self.id(), Signal::CONT);
    }

    /// Sends SIGKILL, and waits for the end of the process.
    pub fn kill(&mut self) {
        // Fails only for a process that has already ended.
        let _ = self.child.kill();
        self.child.wait().expect("a child of ours");
    }

    /// Waits until the process ends without a signal, and returns after its last output.
    ///
    /// # Panics
    /// The process does not end in time.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        let mut heard = self.said.heard();
        while heard.ended < STREAMS {
            assert!(
                Instant::now() < deadline,
                "{} did not end in time:\n{}",
                self.name,
                heard.lines.join("\n")
            );
            heard = self.said.listen(heard);
        }
        drop(heard);
        self.child.wait().expect("a child of ours")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process that a test, or a process of a test, started.
pub fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("the process lives");
}

fn listen(stream: impl Read + Send + 'static, said: Arc<Said>) {
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            said.heard().lines.push(line);
            said.more.notify_all();
        }
        said.heard().ended += 1;
        said.more.notify_all();
    });
}
