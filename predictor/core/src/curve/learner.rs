//! Learning the form of a curve from what a job runs.
//!
//! `t = s * curve(x)`, and s, the contention, is strongly autocorrelated. An allocator evens out times, so a worker's
//! batches are small exactly while it is slow: a regression of times on batches would find that time hardly depends
//! on the batch. So forms are judged by prediction error (Ljung, *System Identification*, 1999, chapter 13 on closed
//! loops): under each form of a grid the times seen imply a contention, a small model of its own forecasts that one
//! step ahead, and the form whose forecasts are best is believed. What a batch was chosen by lies in the past, or is
//! in the forecast that the allocator had, and both are known here too: the error does not depend on the choice, and
//! the loop does not bias the answer.
//!
//! Errors count by a Student t likelihood, so that outliers say little; weights are exponential in the sum of their
//! logarithms, over a prior that favours proportional; the answer is the posterior mean within the best family.

use serde::{Deserialize, Serialize};

use super::knowledge::Knowledge;
use super::posterior::Posterior;
use super::shape::{BadPoints, Curve};

/// The form of a worker's curve, learned while it runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CurveLearner {
    micro_batch: Option<u64>,
    profile: Option<Curve>,
    learned: Option<Posterior>,
}

impl CurveLearner {
    /// Knows nothing: time is proportional to the batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// A worker that accumulates gradients over micro-batches of this size (at least 1): every form is made a
    /// staircase.
    pub fn accumulating(micro_batch: u64) -> Self {
        Self { micro_batch: Some(micro_batch.max(1)), ..Self::default() }
    }

    /// Samples of a full micro-batch, where the worker accumulates.
    pub fn micro_batch(&self) -> Option<u64> {
        self.micro_batch
    }

    /// From now on the worker accumulates over micro-batches of this size (at least 1), or over none. Where a batch that was
    /// seen would have been cut otherwise, what was learned holds no more: it starts anew. Answers whether that loses a form
    /// that was believed: then [`work`](Self::work) has another scale.
    pub fn accumulate(&mut self, micro_batch: Option<u64>) -> bool {
        let micro_batch = micro_batch.map(|size| size.max(1));
        let before = std::mem::replace(&mut self.micro_batch, micro_batch);
        let is_uncut = [before, micro_batch].into_iter().flatten().all(|size| self.largest() <= size);
        if before == micro_batch || self.learned.is_none() {
            return false;
        }
        if is_uncut && let Some(learned) = &mut self.learned {
            learned.accumulate(micro_batch);
            return false;
        }
        let loses = self.belief().is_some();
        *self = Self { micro_batch, ..Self::default() };
        loses
    }

    /// Takes a short profile: times of several batches, one after the other, under the same contention. The curve
    /// through them competes with the other forms from now on, a little ahead of them; it replaces an earlier
    /// profile. Batches that took several micro-batches are left out.
    ///
    /// # Errors
    /// As [`Curve::through`].
    pub fn profile(&mut self, points: &[(u64, f64)]) -> Result<(), BadPoints> {
        let is_one = |batch: u64| self.micro_batch.is_none_or(|size| batch <= size);
        let points: Vec<(u64, f64)> = points.iter().copied().filter(|(batch, _)| is_one(*batch)).collect();
        let profile = Curve::through(&points)?;
        let profile = match self.micro_batch {
            Some(micro_batch) => profile.accumulating(micro_batch),
            None => profile,
        };
        if let Some(learned) = &mut self.learned {
            learned.add_profile(&profile);
        }
        self.profile = Some(profile);
        Ok(())
    }

    /// Takes what a batch took; a batch of 0, or a time that is not positive and finite, says nothing. The first
    /// iteration of a worker, and the first of each class of sizes, are left out: caches fill and kernels are tuned.
    ///
    /// Right where batches are chosen by what was seen before. Where a forecast read more than that, such as drivers at
    /// the boundary of the iteration, use [`measure`](Self::measure).
    pub fn observe(&mut self, batch: u64, compute_time_s: f64) {
        self.measure(batch, compute_time_s, None);
    }

    /// As [`observe`](Self::observe), with the speed in [`work`](Self::work) per second that the batch was chosen by; `None`
    /// before the first forecast. A forecast that foresees some of the contention makes small batches meet slow iterations once more, and time
    /// look as if it hardly depended on the batch; with what it foresaw taken off, it does not.
    pub fn measure(&mut self, batch: u64, compute_time_s: f64, forecast: Option<f64>) {
        let forecast = forecast.filter(|forecast| forecast.is_finite() && *forecast > 0.0);
        if batch == 0 || !compute_time_s.is_finite() || compute_time_s <= 0.0 {
            return;
        }
        let learned = self
            .learned
            .get_or_insert_with(|| Posterior::new(batch, self.micro_batch, self.profile.as_ref()));
        learned.observe(batch, compute_time_s.ln(), forecast);
    }

    /// Samples at the reference batch (the first one seen) that take as long as this batch: `batch` itself while time
    /// is taken as proportional, and always at the reference, so that what was measured there keeps its level when the
    /// form moves. `work(x) / t` is a speed that does not depend on the batch.
    pub fn work(&self, batch: u64) -> f64 {
        self.belief().map_or(batch as f64, |(_, curve)| curve.time(batch))
    }

    /// The curve of a worker that does `speed` units of [`work`](Self::work) per second; positive and finite.
    pub fn curve_at(&self, speed: f64) -> Curve {
        match self.belief() {
            Some((_, curve)) => curve.clone().scaled(1.0 / speed),
            None => Curve::at_speed(speed),
        }
    }

    /// The largest batch measured; 0 before the first.
    pub fn largest(&self) -> u64 {
        self.learned.as_ref().map_or(0, Posterior::largest)
    }

    /// What is known of the form.
    pub fn knowledge(&self) -> Knowledge {
        self.belief().map_or(Knowledge::Unproven, |(knowledge, _)| *knowledge)
    }

    fn belief(&self) -> Option<&(Knowledge, Curve)> {
        self.learned.as_ref()?.belief()
    }
}
