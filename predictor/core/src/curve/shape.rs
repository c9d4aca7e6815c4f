//! A curve: its shapes, the time of a batch, and the batch within a time.

use serde::{Deserialize, Serialize};

use super::inverse::largest;
use super::isotonic::isotonic;
use crate::series::LEARNABLE;

/// Maximum number of points of a measured curve.
pub const MAX_POINTS: usize = 64;

/// Compute time over batch: 0 for an empty batch, non-decreasing, finite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    shape: Shape,
    /// Samples of a full micro-batch under gradient accumulation.
    pub(super) micro_batch: Option<u64>,
}

/// Time of one forward and backward pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    /// `base_s + per_sample_s * max(0, x - saturation)`
    Ramp { base_s: f64, per_sample_s: f64, saturation: u64 },
    /// Straight lines between points of ascending size.
    Points(Vec<(u64, f64)>),
}

/// No curve can be drawn through the points.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PointsError {
    /// No points, or more than [`MAX_POINTS`].
    #[error("a curve of {0} points is not possible; give 1 to {MAX_POINTS}")]
    Count(usize),
    /// A size of 0, or a time that is not positive and finite.
    #[error(
        "point with batch {0} and time {1} s is invalid; the batch must be at least 1, and the time positive and finite"
    )]
    Value(u64, f64),
}

impl Curve {
    /// Returns the curve of a worker that computes `speed` samples per second at any batch; `speed` is
    /// positive and finite.
    pub fn at_speed(speed: f64) -> Self {
        Self::linear(0.0, 1.0 / speed)
    }

    /// Returns `fixed_s + per_sample_s * x`, in seconds. Both are finite; `fixed_s` is >= 0 and
    /// `per_sample_s` > 0.
    pub fn linear(fixed_s: f64, per_sample_s: f64) -> Self {
        Self::saturating(fixed_s, 0, per_sample_s)
    }

    /// Returns a curve that is `flat_s` up to `saturation` samples and grows by `per_sample_s` for each
    /// further sample, in seconds. Both are finite; `flat_s` is >= 0 and `per_sample_s` > 0.
    ///
    /// # Examples
    /// ```
    /// let gpu = evenstep_core::curve::Curve::saturating(0.010, 8, 0.001);
    /// assert_eq!(gpu.time(4), 0.010);
    /// assert_eq!(gpu.time(8), 0.010);
    /// assert!((gpu.time(16) - 0.018).abs() < 1e-12);
    /// ```
    pub fn saturating(flat_s: f64, saturation: u64, per_sample_s: f64) -> Self {
        debug_assert!(flat_s >= 0.0 && flat_s.is_finite(), "flat for {flat_s} s");
        debug_assert!(per_sample_s > 0.0 && per_sample_s.is_finite(), "{per_sample_s} s for a sample");
        Self { shape: Shape::Ramp { base_s: flat_s, per_sample_s, saturation }, micro_batch: None }
    }

    /// Returns straight lines through measured `(batch, seconds)` points, given in any order.
    ///
    /// Several times for one batch are averaged. Times that decrease as the batch grows are replaced by the
    /// nearest non-decreasing times (least squares).
    ///
    /// Beyond the largest size the last line continues. Below the smallest size the first line continues, but
    /// never below 0. A single point gives a proportional curve.
    ///
    /// # Errors
    /// - [`PointsError::Count`] without points, or with more than [`MAX_POINTS`].
    /// - [`PointsError::Value`] if a point has size 0, or a time that is not positive and finite.
    pub fn through(points: &[(u64, f64)]) -> Result<Self, PointsError> {
        if points.is_empty() || points.len() > MAX_POINTS {
            return Err(PointsError::Count(points.len()));
        }
        if let Some((batch, time_s)) = points.iter().find(|(x, t)| *x == 0 || !t.is_finite() || *t <= 0.0) {
            return Err(PointsError::Value(*batch, *time_s));
        }
        Ok(Self { shape: Shape::Points(isotonic(points)), micro_batch: None })
    }

    /// Whether a stored curve is usable: non-decreasing and finite.
    pub(super) fn is_valid(&self) -> bool {
        let is_time = |time_s: &f64| LEARNABLE.contains(time_s);
        let is_shape = match &self.shape {
            Shape::Ramp { base_s, per_sample_s, .. } => {
                (0.0..=*LEARNABLE.end()).contains(base_s) && is_time(per_sample_s)
            }
            Shape::Points(points) => {
                (1..=MAX_POINTS).contains(&points.len())
                    && points.iter().all(|(batch, time_s)| *batch > 0 && is_time(time_s))
                    && points.is_sorted_by(|before, after| before.0 < after.0 && before.1 <= after.1)
            }
        };
        is_shape && self.micro_batch != Some(0)
    }

    /// Returns the curve under gradient accumulation: full micro-batches of `micro_batch` samples (at least
    /// 1) one after the other, then one with the remaining samples.
    #[must_use]
    pub fn accumulating(self, micro_batch: u64) -> Self {
        debug_assert!(micro_batch > 0);
        Self { micro_batch: Some(micro_batch.max(1)), ..self }
    }

    /// Returns the curve with all times multiplied by `factor`; the factor is positive and finite.
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

    /// Returns base time, time per sample and saturation point, if the curve is one ramp.
    pub(super) fn as_ramp(&self) -> Option<[f64; 3]> {
        match self.shape {
            Shape::Ramp { base_s, per_sample_s, saturation } if self.micro_batch.is_none() => {
                Some([base_s, per_sample_s, saturation as f64])
            }
            _ => None,
        }
    }

    /// Returns the time in seconds of a batch of `samples`.
    pub fn time(&self, samples: u64) -> f64 {
        self.time_of(samples as f64)
    }

    /// Returns the time in seconds of a real-valued amount of work, for example of samples that cost more or
    /// less than one.
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
        // Rounding of the sum must not exceed the next full micro-batch, because the curve never decreases.
        (full * full_s + self.shape.time(rest)).min((full + 1.0) * full_s)
    }

    /// Returns the largest batch, at most `most`, that is done within `time_s`.
    pub fn batch_within(&self, time_s: f64, most: u64) -> u64 {
        largest(self.amount_within(time_s), most, |batch| self.time(batch) <= time_s)
    }

    /// Returns the work that is done within `time_s`, up to rounding; infinite if the curve stays flat
    /// without end.
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

/// Rounds down, to at least 0. A cast avoids the library call that `floor` becomes if the baseline processor
/// has no instruction for it.
fn whole(value: f64) -> f64 {
    value as u64 as f64
}

/// Returns the time of an empty batch if the first line were extended to it; never below 0.
fn fixed_s(points: &[(u64, f64)]) -> f64 {
    match points {
        [(x0, t0), (x1, t1), ..] => (t0 - (t1 - t0) * (*x0 as f64 / (x1 - x0) as f64)).max(0.0),
        _ => 0.0,
    }
}

/// Returns the ends of the line that contains the first point for which `beyond` is true, and whether a point
/// bounds the line above.
fn line(points: &[(u64, f64)], beyond: impl Fn(&(u64, f64)) -> bool) -> ([(f64, f64); 2], bool) {
    let real = |point: &(u64, f64)| (point.0 as f64, point.1);
    // Counting has no branches to mispredict: it is several times faster than a binary search on so few
    // points.
    let at = points.iter().filter(|point| !beyond(point)).count();
    let before = |i: usize| if i == 0 { (0.0, fixed_s(points)) } else { real(&points[i - 1]) };
    match points.get(at) {
        Some(point) => ([before(at), real(point)], true),
        None => ([before(at - 1), real(&points[at - 1])], false),
    }
}

fn time_on_lines(points: &[(u64, f64)], amount: f64) -> f64 {
    let ([(x0, t0), (x1, t1)], bounded) = line(points, |(batch, _)| *batch as f64 >= amount);
    // Computed from the bounding end, so that rounding never makes the curve decrease from one line to the
    // next.
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
