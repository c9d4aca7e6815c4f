//! A world from a description: groups of workers, with random noise and slow-downs.

use evenstep_core::series::LEARNABLE;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::error::{CELLS_MAX, SimulateError};
use super::world::{Form, Worker, World};

/// Description of a cluster.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Groups of equal workers.
    #[serde(rename = "group")]
    pub groups: Vec<Group>,
}

/// A group of equal workers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Name of the group. Workers are named by it and a number.
    pub name: String,
    /// Number of workers; at least 1.
    pub count: usize,
    /// Samples per second, without the fixed time and above the saturation; positive.
    pub speed: f64,
    /// Seconds per batch of any size; not negative. Default 0.
    #[serde(default)]
    pub fixed_s: f64,
    /// Batch in samples below which a smaller batch takes no less time. Default 0.
    #[serde(default)]
    pub saturation: u64,
    /// Standard deviation of the logarithm of the speed, drawn independently for each iteration; 0 to 2.
    /// Default 0.
    #[serde(default)]
    pub noise: f64,
    /// Periods of lower speed, independent for each worker.
    #[serde(default)]
    pub slow_downs: Option<SlowDowns>,
    /// First iteration as members. Default 0.
    #[serde(default)]
    pub joins: usize,
    /// First iteration after they leave. Default: they stay.
    #[serde(default)]
    pub leaves: Option<usize>,
}

/// Random slow-downs.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowDowns {
    /// Share of iterations in which a worker is slow; 0 to 1.
    pub share: f64,
    /// Factor on the time of its batches while it is slow; positive.
    pub factor: f64,
    /// Mean duration of a slow-down in iterations; at least 1.
    pub mean_iterations: f64,
}

/// Maximum standard deviation of the logarithm of the speed.
const NOISE_MAX: f64 = 2.0;

impl ClusterSpec {
    /// Draws the world. Each worker has its own random stream, so other workers do not change it.
    ///
    /// # Errors
    /// [`SimulateError::Range`] if a number is out of its range. [`SimulateError::TooLarge`] if there are too
    /// many workers and iterations.
    pub fn world(&self, iterations: usize, seed: u64) -> Result<World, SimulateError> {
        self.groups.iter().try_for_each(Group::check)?;
        let count = self.groups.iter().fold(0usize, |sum, group| sum.saturating_add(group.count));
        if count.saturating_mul(iterations) > CELLS_MAX {
            return Err(SimulateError::TooLarge { workers: count, iterations });
        }
        let members = self.groups.iter().flat_map(|group| (0..group.count).map(move |at| (group, at)));
        let worker = |(rank, (group, at)): (usize, (&Group, usize))| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(rank as u64);
            Worker {
                id: format!("{}/{at}", group.name),
                form: Form {
                    fixed_s: group.fixed_s,
                    per_sample_s: 1.0 / group.speed,
                    saturation: group.saturation,
                },
                slowdown: group.slowdowns(iterations, &mut rng),
                drivers: Vec::new(),
                present: group.joins.min(iterations)..group.leaves.unwrap_or(iterations).min(iterations),
            }
        };
        Ok(World { drivers: Vec::new(), workers: members.enumerate().map(worker).collect(), iterations })
    }
}

impl Group {
    fn check(&self) -> Result<(), SimulateError> {
        let rule = |what: &str, value: f64, holds: bool, range| {
            let what = format!("{}: {what}", self.name);
            if holds { Ok(()) } else { Err(SimulateError::Range { what, value, range }) }
        };
        // Products of times, factors and batches stay finite.
        let positive = |value: f64| LEARNABLE.contains(&value);
        rule("count", self.count as f64, self.count > 0, "at least 1")?;
        rule("speed", self.speed, positive(self.speed), "1e-30 to 1e30")?;
        rule("fixed_s", self.fixed_s, (0.0..=*LEARNABLE.end()).contains(&self.fixed_s), "0 to 1e30")?;
        rule("noise", self.noise, (0.0..=NOISE_MAX).contains(&self.noise), "0 to 2")?;
        if let Some(leaves) = self.leaves {
            rule("leaves", leaves as f64, leaves > self.joins, "greater than joins")?;
        }
        let Some(slow) = self.slow_downs else { return Ok(()) };
        rule("slow_downs.share", slow.share, (0.0..=1.0).contains(&slow.share), "0 to 1")?;
        rule("slow_downs.factor", slow.factor, positive(slow.factor), "1e-30 to 1e30")?;
        let mean = slow.mean_iterations;
        rule("slow_downs.mean_iterations", mean, mean >= 1.0 && mean.is_finite(), "at least 1")?;
        let rest = slow.rest_iterations();
        rule(
            "slow_downs.mean_iterations",
            mean,
            rest >= 1.0,
            "long enough that the time between slow-downs is at least 1 iteration",
        )
    }

    fn slowdowns(&self, iterations: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let mut slow = self.slow_downs.map(|slow| (slow, rng.random::<f64>() < slow.share));
        let mut one = || {
            let mut slowdown = (self.noise * normal(rng)).exp();
            if let Some((law, is_slow)) = &mut slow {
                if *is_slow {
                    slowdown *= law.factor;
                }
                let lasts = if *is_slow { law.mean_iterations } else { law.rest_iterations() };
                let always = law.share <= 0.0 || law.share >= 1.0;
                *is_slow ^= !always && rng.random::<f64>() * lasts < 1.0;
            }
            slowdown
        };
        (0..iterations).map(|_| one()).collect()
    }
}

impl SlowDowns {
    /// Mean number of iterations between two slow-downs.
    fn rest_iterations(&self) -> f64 {
        if self.share > 0.0 { self.mean_iterations * (1.0 / self.share - 1.0) } else { f64::INFINITY }
    }
}

/// Draws a standard normal number (Box and Muller 1958).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (radius, angle): (f64, f64) = (rng.random(), rng.random());
    (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}
