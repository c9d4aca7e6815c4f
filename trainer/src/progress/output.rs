//! Output for people: a progress bar on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Minimum time between progress lines without a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(2);

/// Prints lines on standard error, above the progress bar if one is shown.
#[derive(Debug, Clone)]
pub struct Output {
    speaker: String,
    bar: ProgressBar,
}

impl Output {
    /// Creates an output whose lines start with this speaker ("rank 0").
    pub fn new(speaker: impl Into<String>) -> Self {
        Self { speaker: speaker.into(), bar: ProgressBar::hidden() }
    }

    /// Prints a line.
    pub fn say(&self, words: &str) {
        // A single write keeps the lines of several workers on one terminal whole.
        let line = format!("{}: {words}\n", self.speaker);
        self.bar.suspend(|| {
            // A closed standard error cannot be reported.
            let _ = io::stderr().write_all(line.as_bytes());
        });
    }
}

/// Progress of a number of iterations.
#[derive(Debug)]
pub struct Progress {
    output: Output,
    total: u64,
    done: u64,
    last_line: Option<Instant>,
}

impl Progress {
    /// Creates the progress of `total` iterations. The returned output prints above the bar.
    pub fn new(speaker: &str, total: u64) -> (Self, Output) {
        let mut output = Output::new(speaker);
        if io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} [{elapsed} < {eta}] {msg}");
            output.bar =
                ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        }
        (Self { output: output.clone(), total, done: 0, last_line: None }, output)
    }

    /// Counts one finished iteration. `describe` is called only when it is shown.
    pub fn advance(&mut self, now: Instant, describe: impl FnOnce() -> String) {
        self.done += 1;
        if !self.output.bar.is_hidden() {
            self.output.bar.set_message(describe());
            self.output.bar.inc(1);
            return;
        }
        let due = self.last_line.is_none_or(|last| now.duration_since(last) >= PLAIN_EVERY);
        if due || self.done == self.total {
            self.last_line = Some(now);
            self.output.say(&format!("{}/{} {}", self.done, self.total, describe()));
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.output.bar.finish_and_clear();
    }
}
