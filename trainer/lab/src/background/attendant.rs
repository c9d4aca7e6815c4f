//! Opens and closes the door for a foreground whose iteration has many tasklets.

use std::sync::Arc;
use std::time::Instant;

use evenstep_core::gate::{Benchmark, Gate, Kind, Limit, ROUNDS_MAX};

use super::Door;

/// Iterations of the foreground alone from which the gate takes its benchmark.
pub const BENCHMARK_ITERATIONS: usize = 20;

/// Who looks on while a foreground works. Tasklets do not overlap, and are the same in every iteration.
pub trait Observer {
    /// An iteration begins.
    fn iteration_begins(&mut self);
    /// A tasklet begins.
    fn begins(&mut self, kind: Kind);
    /// The tasklet that began last has ended.
    fn ends(&mut self);
}

/// Nobody looks on.
impl Observer for () {
    fn iteration_begins(&mut self) {}
    fn begins(&mut self, _: Kind) {}
    fn ends(&mut self) {}
}

/// Takes the benchmark first, then keeps the gate.
#[derive(Debug)]
pub struct Attendant {
    door: Arc<Door>,
    limit: Limit,
    watch: Watch,
    /// The place of the current tasklet in the iteration, what it is and when it began.
    place: usize,
    kind: Kind,
    begun: Instant,
}

#[derive(Debug)]
enum Watch {
    /// So many iterations have begun.
    Benchmark(usize, Benchmark),
    Gate(Gate),
}

impl Attendant {
    /// Keeps this door, closed until [`BENCHMARK_ITERATIONS`] iterations are over.
    pub fn new(door: Arc<Door>, limit: Limit) -> Self {
        const { assert!(BENCHMARK_ITERATIONS <= ROUNDS_MAX) };
        let watch = Watch::Benchmark(0, Benchmark::default());
        Self { door, limit, watch, place: 0, kind: Kind::Compute, begun: Instant::now() }
    }

    /// The foreground has ended, or rests.
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

impl Observer for Attendant {
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
