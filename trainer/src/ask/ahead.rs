//! Asking in the background, one iteration ahead of the boundary.

use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};

use super::link::{Answered, Link};

/// Answers that wait to be picked up; they are picked up every iteration.
const ANSWERS_MAX: usize = 4;

/// A thread that owns the line to the predictor.
#[derive(Debug)]
pub struct AheadAsker {
    wanted: SyncSender<(u64, u64)>,
    answers: Receiver<Answered>,
    thread: JoinHandle<Link>,
}

impl AheadAsker {
    /// Hands the line to a thread.
    pub fn new(mut link: Link) -> Self {
        let (wanted, requests) = mpsc::sync_channel::<(u64, u64)>(1);
        let (answered, answers) = mpsc::sync_channel(ANSWERS_MAX);
        let thread = thread::spawn(move || {
            for (iteration, global_batch) in requests {
                if let Some(answer) = link.ask(iteration, global_batch)
                    && answered.send(answer).is_err()
                {
                    break;
                }
            }
            link
        });
        Self { wanted, answers, thread }
    }

    /// Wants an iteration; while the thread is still busy with earlier ones this one is skipped.
    pub fn want(&self, iteration: u64, global_batch: u64) {
        let _ = self.wanted.try_send((iteration, global_batch));
    }

    /// The newest answer since the last call.
    pub fn newest(&self) -> Option<Answered> {
        self.answers.try_iter().last()
    }

    /// Ends the thread and returns the line.
    pub fn end(self) -> Option<Link> {
        drop((self.wanted, self.answers));
        self.thread.join().ok()
    }
}
