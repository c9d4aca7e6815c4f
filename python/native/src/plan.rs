//! Plans and learning rates.

use evenstep_protocol::Ramp;
use evenstep_rules::{self as rules, ClaimPolicy, Claimant, Pool, SharedTail};
use pyo3::prelude::*;

use crate::claim::{Counter, LeaveRule, Peer};
use crate::errors::{DivergedError, invalid_setting};

/// Splits samples in proportion to weights into whole quanta.
#[pyfunction]
#[pyo3(signature = (size, weights, quantum = 1))]
#[expect(clippy::needless_pass_by_value, reason = "the values come from Python")]
pub fn apportion(size: u64, weights: Vec<u64>, quantum: u64) -> Vec<u64> {
    rules::apportion(size, &weights, quantum)
}

/// Samples `offset .. offset + local_batch` of an iteration.
#[pyclass(frozen, eq, get_all, from_py_object, module = "evenstep._native")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    offset: u64,
    local_batch: u64,
}

#[pymethods]
impl Share {
    #[new]
    fn new(offset: u64, local_batch: u64) -> Self {
        Self { offset, local_batch }
    }

    fn __repr__(&self) -> String {
        format!("Share(offset={}, local_batch={})", self.offset, self.local_batch)
    }
}

impl From<rules::Share> for Share {
    fn from(share: rules::Share) -> Self {
        Self { offset: share.offset, local_batch: share.local_batch }
    }
}

/// The last part of an iteration, whose chunks free ranks claim in order.
#[pyclass(frozen, eq, from_py_object, module = "evenstep._native")]
#[derive(Debug, Clone, PartialEq)]
pub struct Tail(rules::Tail);

#[pymethods]
impl Tail {
    #[new]
    fn new(
        offset: u64,
        chunks: Vec<u64>,
        pools: Vec<usize>,
        pool: Vec<Option<usize>>,
        speed: Vec<Option<f64>>,
    ) -> PyResult<Self> {
        if pool.len() != speed.len() {
            return Err(invalid_setting("a tail must have a pool and a speed for each rank"));
        }
        let claimant = |(pool, speed)| Claimant { pool, speed };
        let claimants = pool.into_iter().zip(speed).map(claimant).collect();
        rules::Tail::new(offset, chunks, pools, claimants).map(Self).map_err(invalid_setting)
    }

    #[getter]
    fn offset(&self) -> u64 {
        self.0.offset()
    }

    #[getter]
    fn chunks(&self) -> Vec<u64> {
        self.0.chunks().to_vec()
    }

    #[getter]
    fn pools(&self) -> Vec<usize> {
        self.0.chunks_by_pool().to_vec()
    }

    /// Returns the ranks that claim from a pool.
    fn members(&self, pool: usize) -> Vec<usize> {
        self.0.members(pool).map(|(rank, _)| rank).collect()
    }
}

/// A multiplier of the schedule's learning rate, and the current ramp, if any.
#[pyclass(frozen, eq, from_py_object, module = "evenstep._native")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate(rules::Rate);

#[pymethods]
impl Rate {
    #[new]
    #[pyo3(signature = (multiplier = 1.0, ramp = None))]
    fn new(multiplier: f64, ramp: Option<(f64, f64, u64, u64)>) -> Self {
        let ramp = ramp.map(|(from, to, start_iteration, iterations)| Ramp {
            from,
            to,
            start_iteration,
            iterations,
        });
        Self(rules::Rate::new(multiplier, ramp))
    }

    fn at(&self, iteration: u64) -> f64 {
        self.0.at(iteration)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// The shares of all ranks in an iteration, and the learning-rate multiplier.
#[pyclass(frozen, eq, skip_from_py_object, module = "evenstep._native")]
#[derive(Debug, Clone, PartialEq)]
pub struct Plan(pub rules::Plan);

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(signature = (shares, rate = None, tail = None))]
    fn new(shares: Vec<Share>, rate: Option<Rate>, tail: Option<Tail>) -> PyResult<Self> {
        if let Some(tail) = &tail
            && tail.0.claimants().len() != shares.len()
        {
            return Err(invalid_setting("a tail must have as many ranks as the plan"));
        }
        let share = |share: Share| rules::Share { local_batch: share.local_batch, offset: share.offset };
        let shares = shares.into_iter().map(share).collect();
        Ok(Self(rules::Plan::new(shares, rate_of(rate), tail.map(|tail| tail.0))))
    }

    #[staticmethod]
    #[pyo3(signature = (batches, rate = None))]
    #[expect(clippy::needless_pass_by_value, reason = "the values come from Python")]
    fn of(batches: Vec<u64>, rate: Option<Rate>) -> Self {
        Self(rules::Plan::in_rank_order(&batches, rate_of(rate)))
    }

    #[staticmethod]
    #[pyo3(signature = (size, world_size, quantum = 1))]
    fn even(size: u64, world_size: usize, quantum: u64) -> Self {
        Self(rules::Plan::even(size, world_size, quantum))
    }

    #[getter]
    fn shares(&self) -> Vec<Share> {
        self.0.shares().iter().copied().map(Share::from).collect()
    }

    #[getter]
    fn rate(&self) -> Rate {
        Rate(self.0.rate())
    }

    #[getter]
    fn tail(&self) -> Option<Tail> {
        self.0.tail().cloned().map(Tail)
    }

    #[getter]
    fn batches(&self) -> Vec<u64> {
        self.0.shares().iter().map(|share| share.local_batch).collect()
    }

    #[getter]
    fn size(&self) -> u64 {
        self.0.global_batch()
    }

    #[expect(clippy::needless_pass_by_value, reason = "the values come from Python")]
    fn in_samples(&self, sizes: Vec<u64>, samples_per_unit: f64) -> PyResult<Self> {
        self.0.in_samples(&sizes, samples_per_unit).map(Self).map_err(invalid_setting)
    }

    fn resized(plan: PyRef<'_, Self>, size: u64, quantum: u64) -> PyResult<Py<Self>> {
        if plan.0.global_batch() == size && plan.0.tail().is_none() {
            return Ok(plan.into());
        }
        let without_tail = plan.0.without_tail(size, quantum);
        Py::new(plan.py(), Self(without_tail))
    }

    /// Returns the plan with a shared tail for all ranks.
    fn with_tail(&self, share: f64, min_chunk: u64, quantum: u64) -> Self {
        Self(self.0.clone().with_tail(SharedTail { share, min_chunk: min_chunk.max(1) }, quantum.max(1)))
    }

    fn checked(plan: PyRef<'_, Self>, size: u64) -> PyResult<Py<Self>> {
        if plan.0.covers(size) {
            return Ok(plan.into());
        }
        Err(DivergedError::new_err(format!(
            "a plan must cover each of the {size} samples of the iteration exactly once: {}",
            plan.__repr__()
        )))
    }

    /// Returns a rank's membership in a pool of the tail.
    fn pool(&self, rank: usize) -> Option<PoolMembership> {
        self.0.pool(rank).map(|pool| PoolMembership::new(&pool))
    }

    fn to_json(&self) -> String {
        self.0.to_json()
    }

    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        rules::Plan::from_json(text).map(Self).map_err(invalid_setting)
    }

    fn __repr__(&self) -> String {
        format!("Plan({})", self.0.to_json())
    }
}

fn rate_of(rate: Option<Rate>) -> rules::Rate {
    rate.map_or(1.0.into(), |rate| rate.0)
}

/// A rank's membership in a pool of a tail.
#[pyclass(frozen, get_all, module = "evenstep._native")]
pub struct PoolMembership {
    pool: usize,
    offset: u64,
    chunks: Vec<u64>,
    members: usize,
    peers: Vec<Peer>,
    speed: Option<f64>,
}

impl PoolMembership {
    fn new(pool: &Pool<'_>) -> Self {
        Self {
            pool: pool.number,
            offset: pool.offset,
            chunks: pool.chunks.to_vec(),
            members: pool.members,
            peers: pool.peers.iter().copied().map(Peer::from).collect(),
            speed: pool.speed,
        }
    }
}

#[pymethods]
impl PoolMembership {
    /// Returns a chunk as a share of the iteration.
    fn share(&self, chunk: usize) -> PyResult<Share> {
        let (Some(&local_batch), Some(before)) = (self.chunks.get(chunk), self.chunks.get(..chunk)) else {
            return Err(invalid_setting(format!("chunk {chunk} must be below {}", self.chunks.len())));
        };
        Ok(Share { offset: self.offset + before.iter().sum::<u64>(), local_batch })
    }

    /// Returns the pool's counter in an iteration that starts at this value.
    fn counter(&self, began_at: i64) -> Counter {
        Counter(rules::Counter::new(began_at, self.chunks.len(), self.members))
    }

    /// Returns the decision whether to leave the remaining chunks to the others.
    fn leave_rule(&self) -> LeaveRule {
        let peers: Vec<_> = self.peers.iter().map(Peer::forecast).collect();
        LeaveRule(ClaimPolicy::new(self.chunks.clone(), peers))
    }
}
