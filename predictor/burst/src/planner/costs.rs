//! Costs of each layer at each allowed GPU count, and of each change of the count.
//!
//! Times are integer femtoseconds from here on, so sums do not depend on the order of addition. Ties stay
//! exact, and the costs of the parts add up to the cost of the plan.

use super::error::{BurstError, Infeasible};
use super::problem::{AllReduce, Cost, Input, Layer, Limit, Network, Problem};
use super::shares::{Shares, at};

/// Gradients and activations are float32.
const VALUE_BYTES: f64 = 4.0;
/// Activations move forward, their gradients back.
const DIRECTIONS: f64 = 2.0;
/// Relative tolerance when comparing ratios of decimal numbers.
const TOLERANCE: f64 = 1e-9;
const FS_PER_US: f64 = 1e9;
/// Maximum of one time; longer than any run, and small enough that sums do not overflow.
const FS_MAX: f64 = 1e27;

/// A layer at one GPU count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    /// Compute time; includes the gradient sum if the cost is an explicit table.
    pub compute_fs: u128,
    /// Time of the gradient sum; `None` if a table includes it in the compute time.
    pub sync_fs: Option<u128>,
    /// Memory use on the fastest GPU.
    pub memory_bytes: u128,
}

impl Choice {
    pub fn time_fs(&self) -> u128 {
        self.compute_fs + self.sync_fs.unwrap_or(0)
    }
}

/// Costs of a validated problem.
pub(super) struct Costs<'a> {
    pub problem: &'a Problem,
    pub shares: Shares,
    /// Allowed GPU counts in ascending order. In the fields below, a count is an index into this list.
    pub counts: Vec<usize>,
    /// Costs by layer and count; `None` if the layer cannot have that count.
    pub choices: Vec<Vec<Option<Choice>>>,
    /// Time on one GPU by layer, whether or not that count is allowed.
    pub one_gpu_fs: Vec<Option<u128>>,
    /// Maximum number of samples that a GPU sends or receives, by (count, count).
    moved: Vec<u64>,
}

impl<'a> Costs<'a> {
    /// Computes the costs of a problem.
    ///
    /// # Errors
    /// A required cost is missing, or a layer has no possible count.
    pub fn new(problem: &'a Problem) -> Result<Self, BurstError> {
        let shares = Shares::new(&problem.speeds, problem.global_batch);
        let counts = problem.allowed();
        let pairs = counts.iter().flat_map(|from| counts.iter().map(move |to| (*from, *to)));
        let moved = pairs.map(|(from, to)| shares.moved(from, to)).collect();
        let mut costs = Self { problem, shares, counts, choices: Vec::new(), one_gpu_fs: Vec::new(), moved };
        for layer in &problem.layers {
            let choices: Result<Vec<_>, _> =
                costs.counts.iter().map(|count| costs.choice(layer, *count)).collect();
            let one_gpu = costs.choice(layer, 1)?;
            costs.one_gpu_fs.push(one_gpu.map(|choice| choice.time_fs()));
            costs.choices.push(choices?);
        }
        costs.complete()?;
        Ok(costs)
    }

    /// Checks that all costs that a plan may need are present.
    fn complete(&self) -> Result<(), BurstError> {
        for (at, layer) in self.problem.layers.iter().enumerate() {
            let name = || layer.name.clone();
            if self.choices[at].iter().all(Option::is_none) {
                let known = match &layer.cost {
                    Cost::Table(cost_us) => cost_us.keys().copied().collect(),
                    Cost::Profile(_) => self.counts.clone(),
                };
                let (allowed, global_batch) = (self.counts.clone(), self.problem.global_batch);
                return Err(Infeasible::NoCount { layer: name(), allowed, known, global_batch }.into());
            }
            if self.problem.limit.is_some() && self.one_gpu_fs[at].is_none() {
                return Err(BurstError::MissingOneGpu { layer: name() });
            }
            layer.inputs.iter().try_for_each(|input| self.complete_edge(at, input))?;
        }
        Ok(())
    }

    fn complete_edge(&self, reader: usize, input: &Input) -> Result<(), BurstError> {
        let name = |layer: usize| self.problem.layers[layer].name.clone();
        let Some(edge_us) = &input.edge_us else {
            if self.problem.layers[input.layer].outputs.is_none() {
                return Err(BurstError::MissingOutputs { layer: name(reader), input: name(input.layer) });
            }
            return match self.problem.network {
                Some(_) => Ok(()),
                None => Err(BurstError::MissingNetwork { layer: name(reader) }),
            };
        };
        for (from, _) in self.possible(input.layer) {
            let missing = |to: &usize| from != *to && !edge_us.contains_key(&(from, *to));
            if let Some(to) = self.possible(reader).map(|(to, _)| to).find(missing) {
                return Err(BurstError::MissingEdge {
                    layer: name(reader),
                    input: name(input.layer),
                    from,
                    to,
                });
            }
        }
        Ok(())
    }

    /// Returns the possible GPU counts of a layer, with their costs.
    pub fn possible(&self, layer: usize) -> impl Iterator<Item = (usize, Choice)> {
        let pairs = self.counts.iter().zip(&self.choices[layer]);
        pairs.filter_map(|(count, choice)| Some((*count, (*choice)?)))
    }

    fn choice(&self, layer: &Layer, count: usize) -> Result<Option<Choice>, BurstError> {
        let batch = self.shares.batches(count).next().unwrap_or(0);
        let per_parameter = self.problem.memory.map_or(0.0, |memory| memory.bytes_per_parameter);
        let memory = at(&layer.activation_bytes, batch) + layer.parameters * per_parameter;
        let memory_bytes = memory.min(FS_MAX).ceil() as u128;
        Ok(match &layer.cost {
            Cost::Table(cost_us) => cost_us.get(&count).map(|us| {
                let compute_fs = fs(us * count as f64 / self.shares.speed(count));
                Choice { compute_fs, sync_fs: None, memory_bytes }
            }),
            Cost::Profile(points) => {
                if count as u64 > self.problem.global_batch {
                    return Ok(None);
                }
                let compute_fs = fs(self.shares.compute_us(count, |batch| at(points, batch)));
                let sync_fs = Some(fs(self.sync_us(layer, count)?));
                Some(Choice { compute_fs, sync_fs, memory_bytes })
            }
        })
    }

    /// Returns the time of the gradient sum over n GPUs, with b bytes of parameters:
    /// - ring: `2 (n - 1) / n * b / bandwidth + 2 (n - 1) * latency` (Thakur, Rabenseifner and Gropp 2005)
    /// - two trees, each for half of the bytes: `2 * b / bandwidth + 2 ceil(log2 n) * latency` (Sanders,
    ///   Speck and Traff 2009)
    fn sync_us(&self, layer: &Layer, count: usize) -> Result<f64, BurstError> {
        if count == 1 || layer.parameters == 0.0 {
            return Ok(0.0);
        }
        let Some(network) = self.problem.network else {
            return Err(BurstError::MissingNetwork { layer: layer.name.clone() });
        };
        let bytes_us = us(network, VALUE_BYTES * layer.parameters);
        let (share, messages) = match network.all_reduce {
            AllReduce::Ring => ((count - 1) as f64 / count as f64, (count - 1) as f64),
            AllReduce::Tree => (1.0, f64::from(count.next_power_of_two().ilog2())),
        };
        Ok(2.0 * (share * bytes_us + messages * network.latency_us))
    }

    /// Returns the transfer time over an edge when the count changes from `from` to `to`.
    pub fn transfer_fs(&self, input: &Input, from: usize, to: usize) -> u128 {
        if let Some(edge_us) = &input.edge_us {
            // Only unchanged and impossible counts can be missing.
            return edge_us.get(&(self.counts[from], self.counts[to])).map_or(0, |us| fs(*us));
        }
        let moved = self.moved[from * self.counts.len() + to];
        let (Some(network), Some(outputs)) = (self.problem.network, self.problem.layers[input.layer].outputs)
        else {
            return 0;
        };
        let bytes = VALUE_BYTES * moved as f64 * outputs;
        if bytes > 0.0 { fs(DIRECTIONS * (us(network, bytes) + network.latency_us)) } else { 0 }
    }

    /// Returns the maximum time of the transfers into a layer at this count under the limit. `u128::MAX`
    /// means that the limit does not apply; `None` means that the limit forbids this count.
    pub fn transfer_max_fs(&self, layer: usize, count: usize, limit: Option<Limit>) -> Option<u128> {
        let time_fs = self.choices[layer][count]?.time_fs();
        let gpus = self.counts[count];
        match (limit, self.one_gpu_fs[layer]) {
            (Some(limit), Some(one_fs)) if !exempt(limit, one_fs, gpus) => {
                let most = limit.amplification * (1.0 + TOLERANCE) * one_fs as f64 / gpus as f64;
                if most.is_finite() { (most as u128).checked_sub(time_fs) } else { Some(u128::MAX) }
            }
            _ => Some(u128::MAX),
        }
    }
}

/// Returns whether a layer is exempt from the limit: it has one GPU, or takes less than `exempt_below_us` on
/// one GPU.
pub(super) fn exempt(limit: Limit, one_gpu_fs: u128, gpus: usize) -> bool {
    gpus == 1 || in_us(one_gpu_fs) < limit.exempt_below_us
}

/// Returns the largest limit that forbids this amplification.
pub(super) fn just_below(amplification: f64) -> f64 {
    amplification * (1.0 - 2.0 * TOLERANCE)
}

/// Returns the time to send the bytes, in microseconds, without latency.
fn us(network: Network, bytes: f64) -> f64 {
    bytes / network.bandwidth_bytes_per_s * 1e6
}

fn fs(us: f64) -> u128 {
    (us * FS_PER_US).round().min(FS_MAX) as u128
}

pub(super) fn in_us(fs: u128) -> f64 {
    fs as f64 / FS_PER_US
}
