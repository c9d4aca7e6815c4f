//! `evenstep-predictor top` with a real predictor: as text, and in a pseudo-terminal.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use evenstep_protocol::JobSpec;
use evenstep_tests::binaries::skip;
use evenstep_tests::predictor::without_settings;
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Gate};

use crate::support::{BINARY, Service, allocate_request_with_reports, join_all};

const SPEEDS: [f64; 2] = [100.0, 150.0];

/// A job of two workers with some iterations.
fn service() -> Service {
    let service = Service::start();
    service.client.put_job("night-run", &JobSpec::new(128));
    let generation = join_all(&service.client, "night-run", 2);
    (0..10).for_each(|iteration| step(&service.client, generation, iteration));
    service
}

fn step(client: &Client, generation: u64, iteration: u64) {
    assert_eq!(
        client.allocate(&allocate_request_with_reports("night-run", generation, iteration, &SPEEDS)).status,
        200
    );
}

fn top(server: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    without_settings(&mut command).arg("top").arg(format!("--server={server}")).args(arguments);
    command.env("COLUMNS", "140");
    command
}

fn once(server: &str, arguments: &[&str]) -> Output {
    top(server, arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_pipe_gets_one_frame_as_text() {
    let service = service();
    let text_of = |arguments: &[&str]| text(&once(&service.predictor.url, arguments));
    let all = text_of(&[]);
    for said in ["1 job", "night-run", "641 ms", &service.predictor.url] {
        assert!(all.contains(said), "{said:?} in\n{all}");
    }
    let job = text_of(&["--once", "--job=night-run"]);
    for said in ["iteration 8", "node/0", "node/1", "64", "100.0", "150.0", "node/1 joined"] {
        assert!(job.contains(said), "{said:?} in\n{job}");
    }
    assert!(!all.contains('\x1b') && !job.contains('\x1b'));
    let idle = Service::start();
    assert!(text(&once(&idle.predictor.url, &[])).contains("There are no jobs yet"));
}

#[test]
fn unreadable_reports_are_explained() {
    let service = service();
    let refused = |server: &str, arguments: &[&str], named: &[&str]| {
        let output = once(server, arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        assert!(named.iter().all(|named| said.contains(named)), "{named:?} in {said}");
    };
    refused(&service.predictor.url, &["--job=none"], &["unknown job none"]);
    refused(&service.predictor.url, &["--job=a b"], &["a b"]);
    refused("ftp://host", &[], &["ftp://host", "http://host:port"]);
    let nobody = Gate::shut();
    refused(&nobody.url(), &[], &["no predictor responds", &nobody.url()]);
}

/// A terminal of 140 by 40 cells that runs the program, by `script` of util-linux.
struct Terminal {
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(server: &str) -> Option<Self> {
        let command = format!("stty cols 140 rows 40; exec {BINARY} top --server={server}");
        let mut script = Command::new("script");
        without_settings(&mut script).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        script.args(["-qefc", &command, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().ok()?;
        let mut from = child.stdout.take().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let all = shown.clone();
        thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut part) {
                all.lock().unwrap().extend(&part[..count]);
            }
        });
        Some(Self { child, shown })
    }

    fn press(&mut self, keys: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(keys.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until this text is written. The program only writes cells that change: the text must differ in
    /// each letter from the previous one.
    fn shows(&self, what: &str) {
        self.shows_after(0, what);
    }

    /// Waits until this text is written after the first `begin` bytes.
    fn shows_after(&self, begin: usize, what: &str) {
        until(what, || self.shown().get(begin..)?.contains(what).then_some(()));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn in_a_terminal_it_follows_keys_and_steps_and_survives_an_outage() {
    let service = service();
    let gate = Gate::to(&service.predictor.url);
    let Some(mut terminal) = Terminal::start(&gate.url()) else {
        skip("top::in_a_terminal_it_follows_keys_and_steps", "script is not installed (Debian: bsdutils)");
        return;
    };
    terminal.shows("night-run");
    terminal.press("\r");
    terminal.shows(" log ");
    terminal.shows("node/1 joined");
    gate.cut();
    terminal.shows("! lost");
    gate.open(&service.predictor.url);
    service.client.join("night-run", "node/late");
    terminal.shows("late joined");
    let before = terminal.shown().len();
    terminal.press("?");
    terminal.shows_after(before, "help");
    // The first closes the help.
    terminal.press("qq");
    until("the program ends", || terminal.child.try_wait().unwrap().map(|status| assert!(status.success())));
    assert!(terminal.shown().contains("\x1b[?1049l"), "the terminal is restored");
}

#[test]
fn it_ends_with_its_terminal() {
    let service = service();
    let Some(mut terminal) = Terminal::start(&service.predictor.url) else {
        skip("top::it_ends_with_its_terminal", "script is not installed (Debian: bsdutils)");
        return;
    };
    terminal.shows("night-run");
    let script = terminal.child.id();
    let children = fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap();
    let top: u32 = children.trim().parse().unwrap();
    terminal.child.kill().unwrap();
    // A process that has ended and waits for its parent has no command line.
    let ended = || fs::read(format!("/proc/{top}/cmdline")).map_or(true, |line| line.is_empty());
    until("the program ends", || ended().then_some(()));
}
