//! The metrics stream from rank 0 to the launcher: one line of JSON per iteration, on a socket that never
//! blocks.
//!
//! The socket is the worker's standard input, which is otherwise unused. Only the launcher can read it, and
//! it has no name on the machine. Lines that do not fit are dropped and counted.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use evenstep_protocol::JobId;
use serde::{Deserialize, Serialize};

use super::lines::IterationLine;
use crate::plan::Policy;

/// One line of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// The policy.
    pub policy: Policy,
    /// The policy's job, if the policy queries the predictor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// Number of lines dropped since the previous line.
    pub lost: u64,
    /// The event.
    pub event: Event,
}

/// Events of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An iteration is done.
    Iteration(Done),
    /// The run continued with other workers.
    Regrouped,
}

/// A finished iteration. Sums are over all workers; times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The iteration, from 0.
    pub iteration: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// Samples in the iteration.
    pub samples: u64,
    /// Workers in the iteration.
    pub workers: u64,
    /// Time from the start to the end of the optimizer step.
    pub step_time_s: f64,
    /// Time of the request, part of the step time.
    pub request_s: f64,
    /// Round trip of the request for the plan.
    pub round_trip_s: Option<f64>,
    /// Generation of the plan; absent if the plan was made for an earlier iteration.
    pub generation: Option<u64>,
    /// Time of forward and backward passes.
    pub compute_s: f64,
    /// Wait for the slowest worker.
    pub barrier_wait_s: f64,
    /// Wait for data.
    pub loader_wait_s: f64,
    /// Time inside the all-reduce, on rank 0.
    pub all_reduce_s: f64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Multiplier of the learning rate.
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
            request_s: line.request_s,
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
    /// Remainder of a line that was not sent completely.
    rest: Vec<u8>,
    lost: u64,
}

impl MetricsStream {
    /// Opens the socket on standard input.
    ///
    /// # Errors
    /// Standard input is not a socket.
    pub fn open() -> io::Result<Self> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket.set_nonblocking(true)?;
        Ok(Self { to: socket, rest: Vec::new(), lost: 0 })
    }
}

impl<W: Write> MetricsStream<W> {
    /// Sends an event, or counts it as dropped.
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

    /// Sends the remainder of the last line. Returns false if the socket has no room for all of it.
    fn flush(&mut self) -> bool {
        while !self.rest.is_empty() {
            match self.to.write(&self.rest) {
                Ok(0) => return false,
                Ok(count) => drop(self.rest.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The socket is full, or the launcher has ended and will end this worker too.
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts this number of bytes and then no more.
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
    fn overflow_is_counted_and_no_line_is_split() {
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
