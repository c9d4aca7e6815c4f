//! A child process: what it says is kept, and it ends with its owner.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::PATIENCE;

/// Standard output and standard error.
const STREAMS: usize = 2;

/// A running (or ended) process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    said: Arc<Said>,
}

/// What both streams said.
#[derive(Debug, Default)]
struct Said {
    heard: Mutex<Heard>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Heard {
    /// Lines in the order they came.
    lines: Vec<String>,
    /// Streams that have ended.
    ended: usize,
}

impl Said {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().expect("no panic while listening")
    }

    /// A little longer: until there is more, or not.
    fn listen<'a>(&self, heard: MutexGuard<'a, Heard>) -> MutexGuard<'a, Heard> {
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

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything that it said so far.
    pub fn said(&self) -> String {
        self.said.heard().lines.join("\n")
    }

    /// Waits for a line, also one said before, and returns what `found` makes of it.
    ///
    /// # Panics
    /// Where the process ends or the time is up without it.
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
            assert!(heard.ended < STREAMS, "{} ended and never said {what}:\n{}", self.name, all());
            assert!(Instant::now() < deadline, "{} never said {what}:\n{}", self.name, all());
            heard = self.said.listen(heard);
        }
    }

    /// Whether it has neither ended nor closed what it says.
    pub fn lives(&self) -> bool {
        self.said.heard().ended < STREAMS
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        send(self.id(), Signal::TERM);
    }

    /// SIGSTOP: it stands still, and the system says nothing of it to whoever is connected.
    pub fn stop(&self) {
        send(self.id(), Signal::STOP);
    }

    /// SIGCONT: it goes on as if nothing had been.
    pub fn go_on(&self) {
        send(self.id(), Signal::CONT);
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        // Fails only for a process that has ended already.
        let _ = self.child.kill();
        self.child.wait().expect("a child of ours");
    }

    /// Waits until it ends by itself and has said its last words.
    ///
    /// # Panics
    /// Where it does not.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        let mut heard = self.said.heard();
        while heard.ended < STREAMS {
            assert!(Instant::now() < deadline, "{} never ended:\n{}", self.name, heard.lines.join("\n"));
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

/// Sends a signal to a process that a test started, or that such a process started.
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
