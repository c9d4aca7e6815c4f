//! A curve: its forms, its time at a batch, and the batch within a time.

use serde::{Deserialize, Serialize};

use super::inverse::largest;
use super::isotonic::isotonic;

/// The most points that a free form is drawn through.
pub const MAX_POINTS: usize = 64;

/// Time against batch: 0 for an empty batch, never falling, finite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    shape: Shape,
    /// Samples of a full micro-batch under gradient accumulation.
    pub(super) micro_batch: Option<u64>,
}

/// The time of one forward and backward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    /// `base_s + per_sample_s * max(0, x - saturation)`
    Ramp { base_s: f64, per_sample_s: f64, saturation: u64 },
    /// Straight lines between points of rising size.
    Points(Vec<(u64, f64)>),
}

/// No curve can be drawn through these points.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum BadPoints {
    /// Too few or too many.
    #[error("{0} points: a curve takes 1 to {MAX_POINTS}")]
    Count(usize),
    /// A size or a time that nothing can be drawn through.
    #[error("a batch of {0} in {1} s: sizes are at least 1, times positive and finite")]
    Value(u64, f64),
}

impl Curve {
    /// A worker that computes `speed` samples per second at any batch; `speed` is positive and finite.
    pub fn at_speed(speed: f64) -> Self {
        Self::linear(0.0, 1.0 / speed)
    }

    /// `fixed_s + per_sample_s * x`: both finite, the first >= 0, the second > 0.
    pub fn linear(fixed_s: f64, per_sample_s: f64) -> Self {
        Self::saturating(fixed_s, 0, per_sample_s)
    }

    /// `flat_s` up to `saturation` samples, and `per_sample_s` for each sample more: both finite, the first >= 0, the
    /// second > 0.
    pub fn saturating(flat_s: f64, saturation: u64, per_sample_s: f64) -> Self {
        debug_assert!(flat_s >= 0.0 && flat_s.is_finite(), "flat for {flat_s} s");
        debug_assert!(per_sample_s > 0.0 && per_sample_s.is_finite(), "{per_sample_s} s for a sample");
        Self { shape: Shape::Ramp { base_s: flat_s, per_sample_s, saturation }, micro_batch: None }
    }

    /// Straight lines through measured `(batch, seconds)`, in any order. Several times of one batch count as their
    /// mean; times that fall as the batch grows are pooled to the nearest that do not (least squares).
    ///
    /// Beyond the largest size the last line goes on; below the smallest one the first does, but never below 0, so that
    /// a single point is a worker that is proportional.
    ///
    /// # Errors
    /// [`BadPoints`] where there are none, too many, or one with size 0 or without a positive time.
    pub fn through(points: &[(u64, f64)]) -> Result<Self, BadPoints> {
        if points.is_empty() || points.len() > MAX_POINTS {
            return Err(BadPoints::Count(points.len()));
        }
        if let Some((batch, time_s)) = points.iter().find(|(x, t)| *x == 0 || !t.is_finite() || *t <= 0.0) {
            return Err(BadPoints::Value(*batch, *time_s));
        }
        Ok(Self { shape: Shape::Points(isotonic(points)), micro_batch: None })
    }

    /// The same worker under gradient accumulation: full micro-batches of `micro_batch` samples (at least 1) one after
    /// the other, then one with the rest.
    #[must_use]
    pub fn accumulating(self, micro_batch: u64) -> Self {
        debug_assert!(micro_batch > 0);
        Self { micro_batch: Some(micro_batch.max(1)), ..self }
    }

    /// The same form, `factor` times as slow; the factor is positive and finite.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        debug_assert!(factor > 0.0 && factor.is_finite(), "slowed by {factor}");
        let shape = match self.shape {
            Shape::Ramp { base_s, per_sample_s, saturation } => {
                Shape::Ramp { base_s: base_s * factor, per_sample_s: per_sample_s * factor, saturation }
            }
            Shape::Points(points) => {
                Shape::Points(points.into_iter().map(|(batch, time_s)| (batch, time_s * factor)).collect())
            }
        };
        Self { shape, ..self }
    }

    /// Seconds for a batch of `samples`.
    pub fn time(&self, samples: u64) -> f64 {
        self.time_of(samples as f64)
    }

    /// Seconds for an amount of work that need not be whole: samples that cost more or less than one.
    pub fn time_of(&self, amount: f64) -> f64 {
        if amount <= 0.0 {
            return 0.0;
        }
        let Some(micro_batch) = self.micro_batch else { return self.shape.time(amount) };
        let micro_batch = micro_batch as f64;
        let full = whole(amount / micro_batch);
        let full_s = self.shape.time(micro_batch);
        let rest = amount - full * micro_batch;
        if rest <= 0.0 {
            return full * full_s;
        }
        // Rounding of the sum must not pass the next full micro-batch: the curve never falls.
        (full * full_s + self.shape.time(rest)).min((full + 1.0) * full_s)
    }

    /// The largest batch, at most `most`, that is done within `time_s`.
    pub fn batch_within(&self, time_s: f64, most: u64) -> u64 {
        largest(self.amount_within(time_s), most, |batch| self.time(batch) <= time_s)
    }

    /// The work that is done within `time_s`, to rounding; infinite where the curve stays flat for ever.
    pub fn amount_within(&self, time_s: f64) -> f64 {
        let Some(micro_batch) = self.micro_batch else { return self.shape.amount_within(time_s) };
        let full_s = self.shape.time(micro_batch as f64);
        if full_s <= 0.0 {
            return f64::INFINITY;
        }
        let full = whole(time_s / full_s);
        let rest = self.shape.amount_within(time_s - full * full_s).min((micro_batch - 1) as f64);
        full * micro_batch as f64 + rest
    }
}

impl Shape {
    /// `amount` is positive.
    fn time(&self, amount: f64) -> f64 {
        match self {
            Self::Ramp { base_s, per_sample_s, saturation } => {
                base_s + per_sample_s * (amount - *saturation as f64).max(0.0)
            }
            Self::Points(points) => time_on_lines(points, amount),
        }
    }

    fn amount_within(&self, time_s: f64) -> f64 {
        match self {
            Self::Ramp { base_s, per_sample_s, saturation } => {
                if time_s < *base_s {
                    0.0
                } else {
                    *saturation as f64 + (time_s - base_s) / per_sample_s
                }
            }
            Self::Points(points) => amount_on_lines(points, time_s),
        }
    }
}

/// Rounded down, at least 0; without the call that `floor` is where the processor's baseline has no instruction for it.
fn whole(value: f64) -> f64 {
    value as u64 as f64
}

/// What an empty batch would take, were the first line to go on to it; never below 0.
fn fixed_s(points: &[(u64, f64)]) -> f64 {
    match points {
        [(x0, t0), (x1, t1), ..] => (t0 - (t1 - t0) * (*x0 as f64 / (x1 - x0) as f64)).max(0.0),
        _ => 0.0,
    }
}

/// The ends of the line that holds the first point after which `beyond` is true, and whether a point bounds it above.
fn line(points: &[(u64, f64)], beyond: impl Fn(&(u64, f64)) -> bool) -> ([(f64, f64); 2], bool) {
    let real = |point: &(u64, f64)| (point.0 as f64, point.1);
    // A count is a search without branches to mispredict: several times as fast on these few points.
    let at = points.iter().filter(|point| !beyond(point)).count();
    let before = |i: usize| if i == 0 { (0.0, fixed_s(points)) } else { real(&points[i - 1]) };
    match points.get(at) {
        Some(point) => ([before(at), real(point)], true),
        None => ([before(at - 1), real(&points[at - 1])], false),
    }
}

fn time_on_lines(points: &[(u64, f64)], amount: f64) -> f64 {
    let ([(x0, t0), (x1, t1)], bounded) = line(points, |(batch, _)| *batch as f64 >= amount);
    // Drawn from the end that bounds it, so that rounding never makes the curve fall from one line to the next.
    if bounded {
        (t0 + (t1 - t0) * ((amount - x0) / (x1 - x0))).min(t1)
    } else {
        t1 + (t1 - t0) / (x1 - x0) * (amount - x1)
    }
}

fn amount_on_lines(points: &[(u64, f64)], time_s: f64) -> f64 {
    let ([(x0, t0), (x1, t1)], _) = line(points, |(_, t)| *t > time_s);
    if time_s < t0 {
        0.0
    } else if t1 > t0 {
        x0 + (x1 - x0) * ((time_s - t0) / (t1 - t0))
    } else {
        f64::INFINITY
    }
}
