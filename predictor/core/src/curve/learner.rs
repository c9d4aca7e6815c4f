//! Learns the form of a curve while a job runs.
//!
//! In `t = s * curve(x)` the contention s is strongly autocorrelated. An allocator balances times, so a
//! worker's batches are small exactly while it is slow. A regression of times on batches would find that time
//! hardly depends on the batch.
//!
//! Therefore forms are evaluated by prediction error (Ljung, *System Identification*, 1999, chapter 13 on
//! closed loops). For each form of a grid:
//! - The observed times imply a contention.
//! - A small model forecasts this contention one step ahead.
//! - The form with the smallest forecast errors is used.
//!
//! A batch is chosen from past observations and from the allocator's forecast, and both are known here. So
//! the error does not depend on the choice of batch, and the closed loop does not bias the result.
//!
//! Errors have a Student t likelihood, so that outliers have little weight. A form's weight is exponential in
//! its summed log likelihood, with a prior that favours the proportional form. The result is the posterior
//! mean within the best family.

use serde::{Deserialize, Serialize};

use super::knowledge::{Kind, LearnedForm, Uncertain};
use super::posterior::Posterior;
use super::shape::Curve;
use crate::series::Observation;

/// Maximum of the logarithm of the unit of work in a stored learner.
const LOG_UNIT_MAX: f64 = 50.0;

/// Learner of the form of a worker's curve.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CurveLearner {
    micro_batch: Option<u64>,
    learned: Option<Posterior>,
    /// Log of the unit of [`work`](Self::work), in samples at the reference batch.
    log_unit: f64,
}

impl CurveLearner {
    /// Returns a learner without observations: time is proportional to the batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a stored learner is usable.
    pub(crate) fn is_valid(&self) -> bool {
        self.micro_batch != Some(0)
            && self.learned.as_ref().is_none_or(Posterior::is_valid)
            && self.log_unit.abs() <= LOG_UNIT_MAX
    }

    /// Returns a learner for a worker that accumulates gradients over micro-batches of this size (at least
    /// 1). Every form is then a staircase.
    pub fn accumulating(micro_batch: u64) -> Self {
        Self { micro_batch: Some(micro_batch.max(1)), ..Self::default() }
    }

    /// Returns the samples of a full micro-batch if the worker accumulates gradients.
    pub fn micro_batch(&self) -> Option<u64> {
        self.micro_batch
    }

    /// Sets the size of micro-batches (at least 1), or `None` for no gradient accumulation.
    ///
    /// If an earlier batch would have been divided differently, the learner restarts without observations.
    /// Returns whether a proven form was lost: [`work`](Self::work) then has another scale.
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
        *self = Self { micro_batch, log_unit: self.log_unit, ..Self::default() };
        loses
    }

    /// Records the compute time of a batch. A batch of 0, and a time that is not
    /// [learnable](crate::series::LEARNABLE), is ignored. The first iteration of a worker and the first of each class of sizes are also ignored,
    /// because caches fill and kernels are tuned then.
    ///
    /// Use this method if batches are chosen from past observations only. If forecasts also use other inputs,
    /// such as drivers at the iteration boundary, use [`measure`](Self::measure).
    pub fn observe(&mut self, batch: u64, compute_time_s: f64) {
        self.measure(batch, compute_time_s, None);
    }

    /// Records the compute time of a batch, together with the forecast by which the batch was chosen.
    ///
    /// `forecast` is a speed in [`work`](Self::work) per second; `None` before the first forecast. Batches
    /// and times are ignored under the same conditions as in [`observe`](Self::observe).
    ///
    /// A forecast that foresees some of the contention makes small batches coincide with slow iterations
    /// again. Time would then seem hardly to depend on the batch. To prevent this, the expected change is
    /// subtracted.
    pub fn measure(&mut self, batch: u64, compute_time_s: f64, forecast: Option<f64>) {
        let forecast = forecast.filter(|forecast| forecast.is_finite() && *forecast > 0.0);
        let forecast = forecast.map(|forecast| forecast / self.unit());
        if Observation::new(batch as f64, compute_time_s).is_none() {
            return;
        }
        let learned = self.learned.get_or_insert_with(|| Posterior::new(batch, self.micro_batch));
        learned.observe(batch, compute_time_s.ln(), forecast);
    }

    /// Returns the number of samples at the reference batch that take as long as this batch. The reference
    /// batch is the first batch observed.
    ///
    /// The result is `batch` itself while time is assumed to be proportional, and always at the reference, unless
    /// [`keep_unit`](Self::keep_unit) changed the unit. `work(x) / t` is a speed that does not depend on the batch.
    pub fn work(&self, batch: u64) -> f64 {
        self.unit() * self.belief().map_or(batch as f64, |(_, curve)| curve.time(batch))
    }

    /// Changes the unit of [`work`](Self::work) after a change of the form. `before` and `after` are the work of the
    /// same samples before and after that change; from now on it is `before` again. So speeds and forecasts in
    /// work per second that were computed before the change remain comparable.
    pub fn keep_unit(&mut self, before: f64, after: f64) {
        let change = (before / after).ln();
        if change.is_finite() {
            self.log_unit += change;
        }
    }

    fn unit(&self) -> f64 {
        self.log_unit.exp()
    }

    /// Returns the curve of a worker that does `speed` units of [`work`](Self::work) per second. `speed` must
    /// be positive and finite.
    pub fn curve_at(&self, speed: f64) -> Curve {
        match self.belief() {
            Some((_, curve)) => curve.clone().scaled(self.unit() / speed),
            None => Curve::at_speed(speed / self.unit()),
        }
    }

    /// Returns [`curve_at`](Self::curve_at) for micro-batches of another size, if that divides no measured batch
    /// differently. Otherwise the curve is the measured one.
    pub fn curve_with(&self, speed: f64, micro_batch: Option<u64>) -> Curve {
        let mut curve = self.curve_at(speed);
        let micro_batch = micro_batch.map(|size| size.max(1));
        let is_uncut =
            [self.micro_batch, micro_batch].into_iter().flatten().all(|size| self.largest() <= size);
        let is_cut_by_device = |(known, _): &(LearnedForm, Curve)| {
            matches!(known, LearnedForm::Identified { kind: Kind::Staircase, .. })
        };
        if is_uncut && self.belief().is_some_and(|belief| !is_cut_by_device(belief)) {
            curve.micro_batch = micro_batch;
        }
        curve
    }

    /// Returns the compute time of `to` samples over that of `from` samples (at least 1) under the same contention.
    ///
    /// It is the mean over all forms, weighed by their likelihoods, not only over those that are proven: sizes that were
    /// not measured are uncertain. Without observations it is proportional.
    pub fn ratio(&self, from: u64, to: u64) -> Uncertain {
        match &self.learned {
            Some(learned) if from != to => learned.ratio(from as f64, to as f64),
            _ => Uncertain { mean: to as f64 / from as f64, deviation: 0.0 },
        }
    }

    /// Returns the largest batch measured; 0 before the first.
    pub fn largest(&self) -> u64 {
        self.learned.as_ref().map_or(0, Posterior::largest)
    }

    /// Returns the learned form.
    pub fn knowledge(&self) -> LearnedForm {
        self.belief().map_or(LearnedForm::Unproven, |(knowledge, _)| *knowledge)
    }

    fn belief(&self) -> Option<&(LearnedForm, Curve)> {
        self.learned.as_ref()?.belief()
    }
}
