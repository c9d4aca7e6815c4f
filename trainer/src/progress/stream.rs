//! The metrics stream from rank 0 to the launcher: a line of JSON for each iteration, on a socket that never blocks.
//!
//! The socket is the worker's standard input, which it has no other use for: so nobody but the launcher hears it, and nothing of it
//! has a name on the machine. What does not fit is dropped and counted.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use evenstep_protocol::JobId;
use serde::{Deserialize, Serialize};

use super::lines::IterationLine;
use crate::plan::Policy;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The policy.
    pub policy: Policy,
    /// Its job, where it asks the predictor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// Lines that could not be told since the one before.
    pub lost: u64,
    /// What it tells.
    pub event: Event,
}

/// What a line tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An iteration was done.
    Iteration(Done),
    /// The run went on with other workers.
    Regrouped,
}

/// An iteration that was done. Sums are over all workers; times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Which, from 0.
    pub iteration: u64,
    /// Its epoch, from 0.
    pub epoch: u64,
    /// Samples in it.
    pub samples: u64,
    /// Workers in it.
    pub workers: u64,
    /// From its begin to the end of the optimizer step.
    pub step_time_s: f64,
    /// What asking took of that.
    pub ask_s: f64,
    /// Of the request that brought its plan.
    pub round_trip_s: Option<f64>,
    /// The generation of its plan; none where it ran with an older one.
    pub generation: Option<u64>,
    /// Forward and backward.
    pub compute_s: f64,
    /// Waits for the slowest.
    pub barrier_wait_s: f64,
    /// Waits for data.
    pub loader_wait_s: f64,
    /// Inside the all-reduce, on rank 0.
    pub all_reduce_s: f64,
    /// Mean over the global batch.
    pub loss: f64,
    /// What the learning rate was multiplied by.
    pub lr_multiplier: f64,
}

impl From<&IterationLine> for Done {
    fn from(line: &IterationLine) -> Self {
        Self {
            iteration: line.iteration,
            epoch: line.epoch,
            samples: line.global_batch,
            workers: line.workers.len() as u64,
            step_time_s: line.step_time_s,
            ask_s: line.ask_s,
            round_trip_s: line.round_trip_s,
            generation: line.generation,
            compute_s: line.workers.iter().map(|worker| worker.compute_time_s).sum(),
            barrier_wait_s: line.workers.iter().map(|worker| worker.barrier_wait_s).sum(),
            loader_wait_s: line.workers.iter().map(|worker| worker.loader_wait_s).sum(),
            all_reduce_s: line.all_reduce_s,
            loss: line.loss,
            lr_multiplier: line.lr_multiplier.unwrap_or(1.0),
        }
    }
}

/// Rank 0's end of the socket.
#[derive(Debug)]
pub struct MetricsStream<W = UnixStream> {
    to: W,
    /// The rest of a line that did not fit whole.
    rest: Vec<u8>,
    lost: u64,
}

impl MetricsStream {
    /// The socket on standard input.
    ///
    /// # Errors
    /// There is none.
    pub fn open() -> io::Result<Self> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket.set_nonblocking(true)?;
        Ok(Self { to: socket, rest: Vec::new(), lost: 0 })
    }
}

impl<W: Write> MetricsStream<W> {
    /// Tells something, or counts that it could not.
    pub fn send(&mut self, policy: Policy, job_id: Option<&JobId>, event: Event) {
        let update = Update { policy, job_id: job_id.cloned(), lost: self.lost, event };
        let told = self.flush() && serde_json::to_writer(&mut self.rest, &update).is_ok();
        if !told {
            self.lost += 1;
            return;
        }
        self.lost = 0;
        self.rest.push(b'\n');
        self.flush();
    }

    /// Sends what is left of the last line; false where there is no room for all of it.
    fn flush(&mut self) -> bool {
        while !self.rest.is_empty() {
            match self.to.write(&self.rest) {
                Ok(0) => return false,
                Ok(count) => drop(self.rest.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Full; or the launcher is gone, and this worker soon too.
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes and then none.
    struct Narrow {
        took: Vec<u8>,
        room: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.room -= count;
            self.took.extend(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_does_not_fit_is_counted_and_no_line_is_torn() {
        let mut stream =
            MetricsStream { to: Narrow { took: Vec::new(), room: 70 }, rest: Vec::new(), lost: 0 };
        let send = |stream: &mut MetricsStream<Narrow>| stream.send(Policy::Even, None, Event::Regrouped);
        (0..5).for_each(|_| send(&mut stream));
        stream.to.room = 10_000;
        send(&mut stream);
        let text = String::from_utf8(stream.to.took).unwrap();
        let lost: Vec<u64> =
            text.lines().map(|line| serde_json::from_str::<Update>(line).unwrap().lost).collect();
        let lines = lost.len() as u64;
        assert!(lines >= 2 && lost.iter().sum::<u64>() + lines == 6, "{text}");
    }
}
