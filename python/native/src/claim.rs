//! Claims on a shared tail.

use evenstep_rules::{self as rules, ClaimPolicy};
use pyo3::prelude::*;

/// Returns chunk sizes by factoring.
#[pyfunction]
#[pyo3(signature = (tail, parts, smallest, quantum = 1))]
pub fn chunks(tail: u64, parts: usize, smallest: u64, quantum: u64) -> Vec<u64> {
    rules::chunks(tail, parts.max(1), smallest.max(1), quantum.max(1))
}

/// A pool's counter in one iteration, as a member reads it.
#[pyclass(frozen, module = "evenstep._native")]
pub struct Counter(pub rules::Counter);

#[pymethods]
impl Counter {
    #[new]
    fn new(began_at: i64, chunks: usize, members: usize) -> Self {
        Self(rules::Counter::new(began_at, chunks, members))
    }

    fn claimed(&self, total: i64) -> Option<usize> {
        self.0.claimed(total)
    }

    fn may_leave(&self, total: i64) -> bool {
        self.0.may_leave(total)
    }

    #[staticmethod]
    fn settle(began_at: i64, claims: u64, leaves: u64) -> i64 {
        rules::Counter::settle(began_at, claims, leaves)
    }
}

/// Expected progress of another member.
#[pyclass(frozen, eq, get_all, from_py_object, module = "evenstep._native")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peer {
    base_end_s: f64,
    speed: f64,
}

#[pymethods]
impl Peer {
    #[new]
    fn new(base_end_s: f64, speed: f64) -> Self {
        Self { base_end_s, speed }
    }

    fn __repr__(&self) -> String {
        format!("Peer(base_end_s={}, speed={})", self.base_end_s, self.speed)
    }
}

impl Peer {
    pub fn forecast(&self) -> rules::Peer {
        rules::Peer { base_end_s: self.base_end_s, speed: self.speed }
    }
}

impl From<rules::Peer> for Peer {
    fn from(peer: rules::Peer) -> Self {
        Self { base_end_s: peer.base_end_s, speed: peer.speed }
    }
}

/// Decides whether the other members would finish sooner without this member.
#[pyclass(module = "evenstep._native")]
pub struct LeaveRule(pub ClaimPolicy<'static>);

#[pymethods]
impl LeaveRule {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "the values come from Python")]
    fn new(chunks: Vec<u64>, others: Vec<Peer>) -> Self {
        Self(ClaimPolicy::new(chunks, others.iter().map(Peer::forecast).collect::<Vec<_>>()))
    }

    #[getter]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn record_claim(&mut self, chunk: usize, at_s: f64) {
        self.0.record_claim(chunk, at_s);
    }

    fn should_leave(&self, now_s: f64, pace_s: f64, claim_s: f64) -> bool {
        self.0.should_leave(now_s, pace_s, claim_s)
    }
}
