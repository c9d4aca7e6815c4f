//! Asking in the background, one iteration ahead of the boundary.

use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::link::{Answered, Link};

/// Answers that wait to be picked up; they are picked up every iteration.
const ANSWERS_MAX: usize = 4;

/// The iteration to ask for next, and its size: only the newest is worth asking for.
type Wanted = Arc<Mutex<Option<(u64, u64)>>>;

/// A thread that owns the line to the predictor.
#[derive(Debug)]
pub struct AheadAsker {
    wanted: Wanted,
    bell: SyncSender<()>,
    answers: Receiver<Answered>,
    thread: JoinHandle<Link>,
}

impl AheadAsker {
    /// Hands the line to a thread.
    pub fn new(mut link: Link) -> Self {
        let wanted = Wanted::default();
        let (bell, rung) = mpsc::sync_channel(1);
        let (answered, answers) = mpsc::sync_channel(ANSWERS_MAX);
        let waiting = Arc::clone(&wanted);
        let thread = thread::spawn(move || {
            for () in rung {
                if let Some((iteration, global_batch)) = slot(&waiting).take()
                    && let Some(answer) = link.ask(iteration, global_batch)
                    && answered.send(answer).is_err()
                {
                    break;
                }
            }
            link
        });
        Self { wanted, bell, answers, thread }
    }

    /// Wants an iteration, in the place of one that still waits for its turn: its answer would come too late.
    pub fn want(&self, iteration: u64, global_batch: u64) {
        *slot(&self.wanted) = Some((iteration, global_batch));
        // A bell that was rung and not heard yet will do.
        let _ = self.bell.try_send(());
    }

    /// The newest answer since the last call.
    pub fn newest(&self) -> Option<Answered> {
        self.answers.try_iter().last()
    }

    /// Ends the thread and returns the line.
    pub fn end(self) -> Option<Link> {
        drop((self.bell, self.answers));
        self.thread.join().ok()
    }
}

/// What stands there is whole, whoever was interrupted.
fn slot(wanted: &Wanted) -> MutexGuard<'_, Option<(u64, u64)>> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}
