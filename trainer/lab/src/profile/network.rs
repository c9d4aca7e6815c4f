//! Measures the network between the ranks: latency and bandwidth for the planner's formulas of transfer and
//! sum times.
//!
//! ```text
//! round trip         2 (b / bandwidth + latency)
//! sum, ring          2 (n - 1) / n * b / bandwidth + 2 (n - 1) latency
//! sum, tree          2 b / bandwidth + 2 ceil(log2 n) latency
//! ```
//! Latency and bandwidth minimize the sum of squared relative errors over all measurements, at the sizes that
//! the model sends and sums. The result names the formula that fits better, ring or tree.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Result;
use evenstep_c10d::Group;
use evenstep_protocol::{BurstAllReduce, BurstLayer, BurstNetwork};
use tch::{Device, Kind, Tensor};

use super::bench::{Bench, REPEATS};
use crate::burst::measured::median;
use crate::burst::training_loop::WARM_UP;
use crate::burst::{Layout, cross, sum};

const VALUE_BYTES: u64 = 4;

/// Least time per byte: a petabyte per second, beyond any network. If the measured times do not depend on the bytes, the
/// bandwidth is this, because plans need a finite one.
const US_PER_BYTE_MIN: f64 = 1e-9;

/// A measured time. By the formula, it is the sum of `messages` latencies and the transfer time of `bytes`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    bytes: f64,
    messages: f64,
    took_us: f64,
}

/// Measures latency and bandwidth between ranks.
///
/// # Errors
/// Fails if a worker is lost.
pub fn measure(bench: &Bench<'_>, layers: &[BurstLayer], batches: &[u64]) -> Result<BurstNetwork> {
    let device = bench.process.device;
    let sent = layers.iter().flat_map(|layer| batches.iter().map(|batch| layer.outputs.unwrap_or(0) * batch));
    let mut transfers = Vec::new();
    for values in sizes(sent) {
        transfers.extend(transfer(bench, values, device)?);
    }
    let summed = || sizes(layers.iter().map(|layer| layer.parameters.unwrap_or(0)));
    let mut sums = Vec::new();
    let mut count = 2;
    while count <= bench.process.world_size {
        if bench.process.rank < count {
            let group = bench.process.group(&format!("sums-{count}"), count)?;
            for values in summed() {
                sums.push((count as f64, (values * VALUE_BYTES) as f64, sum_us(&group, values, device)?));
            }
        }
        count *= 2;
    }
    let ring = |&(n, bytes, took_us): &(f64, f64, f64)| Sample {
        bytes: 2.0 * (n - 1.0) / n * bytes,
        messages: 2.0 * (n - 1.0),
        took_us,
    };
    let tree = |&(n, bytes, took_us): &(f64, f64, f64)| Sample {
        bytes: 2.0 * bytes,
        messages: 2.0 * n.log2().ceil(),
        took_us,
    };
    let fitted = |sums: Vec<Sample>| fit(&[&transfers[..], &sums[..]].concat());
    let (ring, tree) = (fitted(sums.iter().map(ring).collect()), fitted(sums.iter().map(tree).collect()));
    let (all_reduce, fitted) =
        if ring.error <= tree.error { (BurstAllReduce::Ring, ring) } else { (BurstAllReduce::Tree, tree) };
    bench.say(&format!(
        "network: {:.2} GB/s, {:.0} us ({all_reduce:?}); relative error of the fitted formulas {:.0} % (root mean square)",
        1e-9 * fitted.bandwidth_bytes_per_s(),
        fitted.latency_us,
        fitted.error * 100.0
    ));
    Ok(BurstNetwork {
        bandwidth_bytes_per_s: Some(fitted.bandwidth_bytes_per_s()),
        latency_us: Some(fitted.latency_us),
        all_reduce: Some(all_reduce),
    })
}

/// Rounds the numbers of values up to powers of two, without duplicates.
fn sizes(values: impl Iterator<Item = u64>) -> BTreeSet<u64> {
    values.filter(|&values| values > 0).map(u64::next_power_of_two).collect()
}

/// Measures a round trip: rank 0 sends half of a tensor's rows to rank 1 and receives them back.
fn transfer(bench: &Bench<'_>, values: u64, device: Device) -> Result<Option<Sample>> {
    let (world, rank) = (&bench.world, bench.process.rank);
    let before = Layout::first(&[2], bench.process.world_size);
    let (_, into) = before.next(&[1, 1]);
    let held = Tensor::zeros([before.of(rank).len() as i64, values as i64], (Kind::Float, device));
    let took_us = repeat(|| cross(world, &into.back(), &cross(world, &into, &held)?))?;
    let bytes = (2 * values * VALUE_BYTES) as f64;
    Ok((rank == 0).then_some(Sample { bytes, messages: 2.0, took_us }))
}

fn sum_us(group: &Group, values: u64, device: Device) -> Result<f64> {
    let held = Tensor::zeros([values as i64], (Kind::Float, device));
    repeat(|| sum(group, &held))
}

/// Returns the median time of a collective operation, in microseconds.
fn repeat(mut once: impl FnMut() -> evenstep_c10d::Result<Tensor>) -> Result<f64> {
    let mut times_us = Vec::new();
    for _ in 0..WARM_UP + REPEATS {
        let begun = Instant::now();
        // Reading a value waits for the GPU to finish.
        once()?.sum(Kind::Float).double_value(&[]);
        times_us.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times_us.get(WARM_UP..).unwrap_or(&[])))
}

/// The fitted times per byte and per message.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fitted {
    us_per_byte: f64,
    latency_us: f64,
    /// Root mean square of the relative errors.
    error: f64,
}

impl Fitted {
    fn bandwidth_bytes_per_s(&self) -> f64 {
        1e6 / self.us_per_byte
    }
}

/// Fits the times per byte and per message, both non-negative, by least squares of the relative errors.
///
/// Solves the normal equations of `bytes x + messages y = took`, each row divided by `took`.
fn fit(samples: &[Sample]) -> Fitted {
    let lines = samples.iter().filter(|sample| sample.took_us > 0.0);
    let lines: Vec<[f64; 2]> =
        lines.map(|sample| [sample.bytes / sample.took_us, sample.messages / sample.took_us]).collect();
    let sum = |of: &dyn Fn(&[f64; 2]) -> f64| lines.iter().map(of).sum::<f64>();
    let (aa, ab, bb) = (sum(&|[a, _]| a * a), sum(&|[a, b]| a * b), sum(&|[_, b]| b * b));
    let (a, b) = (sum(&|[a, _]| *a), sum(&|[_, b]| *b));
    let error = |x: f64, y: f64| {
        let squares = sum(&|[a, b]| (a * x + b * y - 1.0).powi(2));
        (squares / lines.len().max(1) as f64).sqrt()
    };
    let determinant = aa * bb - ab * ab;
    let inner = [(a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant];
    // If one value would be negative, the constrained optimum has one value of zero.
    let candidates = [inner, [a / aa, 0.0], [0.0, b / bb]];
    let legal = candidates.into_iter().filter(|[x, y]| *x >= 0.0 && *y >= 0.0);
    let best = legal.min_by(|p, q| error(p[0], p[1]).total_cmp(&error(q[0], q[1])));
    let [x, y] = best.unwrap_or_default();
    Fitted { us_per_byte: x.max(US_PER_BYTE_MIN), latency_us: y, error: error(x, y) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(us_per_byte: f64, latency_us: f64) -> Vec<Sample> {
        let of = |(bytes, messages)| Sample {
            bytes,
            messages,
            took_us: us_per_byte * bytes + latency_us * messages,
        };
        [(1e3, 2.0), (1e6, 2.0), (4e5, 6.0), (2e6, 1.0)].map(of).to_vec()
    }

    #[test]
    fn known_coefficients_are_recovered() {
        let near = |one: f64, other: f64| (one - other).abs() < 1e-9 * other.max(1e-3);
        for (us_per_byte, latency_us) in [(4e-4, 40.0), (4e-4, 0.0), (1e-6, 7.0)] {
            let found = fit(&samples(us_per_byte, latency_us));
            assert!(near(found.us_per_byte, us_per_byte) && near(found.latency_us, latency_us), "{found:?}");
            assert!(found.error < 1e-9, "{found:?}");
        }
    }

    #[test]
    fn no_statistic_is_negative_or_infinite() {
        // First, times that fall with more bytes; then times so steep that a fitted line has a
        // negative latency.
        let took = |bytes, took_us| Sample { bytes, messages: 2.0, took_us };
        let found = fit(&[took(1e3, 50.0), took(1e6, 40.0)]);
        assert!(found.us_per_byte > 0.0 && found.latency_us > 0.0, "{found:?}");
        assert!(found.bandwidth_bytes_per_s().is_finite(), "{found:?}");
        let steep = fit(&[took(1e3, 1.0), took(1e6, 2e3)]);
        assert!(steep.latency_us >= 0.0 && steep.us_per_byte > 0.0, "{steep:?}");
    }
}
