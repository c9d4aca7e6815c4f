//! A background job in a worker's process: it trains a small separate model in the idle gaps of the
//! foreground.
//!
//! The job runs in a separate thread of the process, so that pieces start within microseconds of a gap, and
//! end with the process. On a CPU the thread is in the idle scheduling class on the worker's core: all other
//! threads there have priority. On CUDA its stream has low priority, and the foreground's stream has high
//! priority ([`foreground_stream`]).
//!
//! - [`WorkGate`]: the state shared by the two threads: open or closed, and the budget
//! - [`Job`]: the training, divided into pieces
//! - [`GateController`]: opens and closes the door by the gate, for a foreground with many tasklets
//! - [`BackgroundArgs`]: the arguments

mod args;
mod gate_controller;
mod job;
mod work_gate;

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use evenstep_c10d::cuda::{self, Priority};
use evenstep_c10d::thread_priority;
use evenstep_trainer::model::enter;
use serde::{Deserialize, Serialize};
use tch::Device;

pub use args::BackgroundArgs;
pub use gate_controller::{BENCHMARK_ITERATIONS, GateController, Observer};
pub use job::{Job, Pieces, Settings};
pub use work_gate::{WorkDone, WorkGate};

/// The thread that trains in the background. Dropping this value ends it.
#[derive(Debug)]
pub struct Background {
    door: Arc<WorkGate>,
    thread: Option<JoinHandle<Result<BackgroundResult>>>,
    pieces: Pieces,
}

/// The result of a background job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BackgroundResult {
    /// Number of samples and pieces, and their time.
    pub spent: WorkDone,
    /// Number of optimizer steps.
    pub steps: u64,
    /// Mean loss on the first samples of the task, before and after.
    pub loss: (f64, f64),
}

impl BackgroundResult {
    /// Returns a summary for people.
    pub fn to_summary(&self) -> String {
        let Self { spent, steps, loss: (before, after) } = self;
        format!(
            "background job: {} samples in {} pieces, {steps} steps, loss {before:.4} before and {after:.4} after",
            spent.samples, spent.pieces
        )
    }
}

impl Background {
    /// Starts the job with a closed door, and waits until it has chosen its piece size on this device.
    ///
    /// The thread starts with the core and priority of the calling thread, and lowers its priority when
    /// it is ready.
    ///
    /// # Errors
    /// Fails if the system or the device does not allow a lower priority.
    pub fn start(settings: Settings, device: Device) -> Result<Self> {
        let door = Arc::new(WorkGate::default());
        let (ready, pieces) = mpsc::channel();
        let own = door.clone();
        let thread = thread::Builder::new()
            .name("background".to_owned())
            .spawn(move || train(settings, device, &own, &ready))
            .context("starting the background job's thread")?;
        door.set_waiting_thread(thread.thread().clone());
        let mut background =
            Self { door, thread: Some(thread), pieces: Pieces { samples: 0, alone_us: 0.0 } };
        match pieces.recv() {
            Ok(pieces) => background.pieces = pieces,
            // The thread ended before it was ready; its result has the cause.
            Err(_) => {
                return Err(background.join().map_or_else(
                    |error| error,
                    |_| anyhow!("the background job ended before it was ready"),
                ));
            }
        }
        Ok(background)
    }

    /// Returns the door that controls the job.
    pub fn door(&self) -> &Arc<WorkGate> {
        &self.door
    }

    /// Returns the pieces of the job.
    pub fn pieces(&self) -> Pieces {
        self.pieces
    }

    /// Ends the job after its current piece and returns its result.
    ///
    /// # Errors
    /// Returns the error that ended the job earlier, if any.
    pub fn end(mut self) -> Result<BackgroundResult> {
        self.join()
    }

    fn join(&mut self) -> Result<BackgroundResult> {
        self.door.end();
        let Some(thread) = self.thread.take() else { return Err(anyhow!("the background job has ended")) };
        thread.join().map_err(|_| anyhow!("the background job panicked"))?.context("the background job")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // The result is only for callers of `end`.
            let _ = self.join();
        }
    }
}

/// Gives the kernels of the calling thread on a CUDA device priority over those launched by background jobs.
/// On a CPU the scheduling class of the background thread has this effect.
///
/// # Errors
/// Fails if the device does not exist.
pub fn foreground_stream(device: Device) -> Result<()> {
    if let Device::Cuda(index) = device {
        cuda::own_stream(index, Priority::High)?;
    }
    Ok(())
}

fn train(
    settings: Settings,
    device: Device,
    door: &WorkGate,
    ready: &Sender<Pieces>,
) -> Result<BackgroundResult> {
    enter(device)?;
    if let Device::Cuda(index) = device {
        cuda::own_stream(index, Priority::Low)?;
    }
    let mut job = Job::new(settings, device);
    let before = job.loss();
    let pieces = job.fit()?;
    door.cut(pieces.alone_us);
    if device == Device::Cpu {
        thread_priority::idle_class()?;
    }
    // If the worker has ended in the meantime, sending fails and the door is already ended.
    let _ = ready.send(pieces);
    let mut in_flight = 0;
    while door.wait() {
        let begun = Instant::now();
        let samples = job.piece();
        in_flight += 1;
        if let Device::Cuda(index) = device
            && in_flight >= door.in_flight()
        {
            cuda::wait_for_stream(index)?;
            in_flight = 0;
        }
        door.record_piece(samples, begun.elapsed());
    }
    Ok(BackgroundResult { spent: door.spent(), steps: job.steps(), loss: (before, job.loss()) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings() -> Settings {
        Settings { hidden: vec![16], batch: 32, seed: 5 }
    }

    #[expect(clippy::disallowed_methods, reason = "polls without taking the processor from the load")]
    fn until(done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            // Other load on the machine delays a thread of the idle scheduling class by a multiple.
            assert!(begun.elapsed() < Duration::from_secs(300), "timeout");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn it_trains_while_the_gate_is_open_and_ends_on_request() {
        tch::set_num_threads(1);
        let background = Background::start(settings(), Device::Cpu).unwrap();
        assert!(background.pieces().samples > 0 && background.pieces().alone_us > 0.0);
        let door = background.door().clone();
        assert_eq!(door.spent().pieces, 0, "the door is closed initially");
        door.set(true, 4);
        until(|| door.spent().samples >= 32 * 300);
        door.set(false, 1);
        let ran = background.end().unwrap();
        assert!(ran.loss.1 < 0.9 * ran.loss.0, "{ran:?}");
        // The last optimizer step may be pending.
        assert!((ran.spent.samples / 32 - ran.steps) <= 1, "{ran:?}");
        assert!(ran.spent.busy_s > 0.0);
    }

    #[test]
    fn it_spends_its_budget_and_no_more() {
        tch::set_num_threads(1);
        let background = Background::start(settings(), Device::Cpu).unwrap();
        let door = background.door().clone();
        let piece_s = background.pieces().alone_us / 1e6;
        door.allow(0.02);
        until(|| door.left_s() < piece_s);
        let left_s = door.left_s();
        let ran = background.end().unwrap();
        assert!((ran.spent.busy_s + left_s - 0.02).abs() < 1e-6, "{ran:?}, {left_s} s left");
        assert!(ran.spent.pieces > 0);
    }

    #[test]
    fn dropping_the_handle_ends_the_load() {
        tch::set_num_threads(1);
        let background = Background::start(settings(), Device::Cpu).unwrap();
        let door = Arc::downgrade(background.door());
        background.door().set(true, 4);
        drop(background);
        assert_eq!(door.strong_count(), 0, "the thread must have ended");
    }
}
