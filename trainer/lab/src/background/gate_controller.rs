//! Opens and closes the door for a foreground whose iteration consists of many tasklets.

use std::sync::Arc;
use std::time::Instant;

use evenstep_rules::gate::{Benchmark, Gate, Kind, Limit, ROUNDS_MAX};

use super::WorkGate;

/// Number of iterations without background work that the benchmark of the gate uses.
pub const BENCHMARK_ITERATIONS: usize = 20;

/// Receives the events of a foreground. Tasklets do not overlap, and are the same in every iteration.
pub trait Observer {
    /// Called when an iteration begins.
    fn iteration_begins(&mut self);
    /// Called when a tasklet begins.
    fn begins(&mut self, kind: Kind);
    /// Called when the current tasklet ends.
    fn ends(&mut self);
}

/// Ignores all events.
impl Observer for () {
    fn iteration_begins(&mut self) {}
    fn begins(&mut self, _: Kind) {}
    fn ends(&mut self) {}
}

/// Runs the benchmark first, then opens and closes the door by the decisions of the gate.
#[derive(Debug)]
pub struct GateController {
    door: Arc<WorkGate>,
    limit: Limit,
    watch: Watch,
    /// Position of the current tasklet in the iteration, followed by its kind and start time.
    place: usize,
    kind: Kind,
    begun: Instant,
}

#[derive(Debug)]
enum Watch {
    /// The benchmark runs; the number counts the iterations that have begun.
    Benchmark(usize, Benchmark),
    Gate(Gate),
}

impl GateController {
    /// Creates an attendant for this door, which stays closed for the first [`BENCHMARK_ITERATIONS`]
    /// iterations.
    pub fn new(door: Arc<WorkGate>, limit: Limit) -> Self {
        const { assert!(BENCHMARK_ITERATIONS <= ROUNDS_MAX) };
        let watch = Watch::Benchmark(0, Benchmark::default());
        Self { door, limit, watch, place: 0, kind: Kind::Compute, begun: Instant::now() }
    }

    /// Reports that the foreground has ended or is idle.
    pub fn leaves(&mut self) {
        if let Watch::Gate(gate) = &mut self.watch {
            gate.leaves();
        }
        self.turn();
    }

    fn turn(&self) {
        if let Watch::Gate(gate) = &self.watch {
            let verdict = gate.verdict();
            self.door.set(verdict.open, verdict.in_flight);
        }
    }
}

impl Observer for GateController {
    fn iteration_begins(&mut self) {
        self.place = 0;
        if let Watch::Benchmark(begun, benchmark) = &mut self.watch {
            if *begun == BENCHMARK_ITERATIONS {
                self.watch = Watch::Gate(std::mem::take(benchmark).gate(self.limit));
            } else {
                *begun += 1;
            }
        }
    }

    fn begins(&mut self, kind: Kind) {
        self.kind = kind;
        self.begun = Instant::now();
        if let Watch::Gate(gate) = &mut self.watch {
            gate.begins(self.place);
        }
        self.turn();
    }

    fn ends(&mut self) {
        let took_us = self.begun.elapsed().as_secs_f64() * 1e6;
        match &mut self.watch {
            Watch::Benchmark(_, benchmark) => benchmark.observe(self.place, self.kind, took_us),
            Watch::Gate(gate) => gate.ends(took_us),
        }
        self.place += 1;
        self.turn();
    }
}
