//! ARX by recursive least squares: log speed from its own lags and the drivers read at the boundary.
//!
//! `y(k+1) = m + theta . x + c`, with `m` the log of an EMA of speed and `x` the inputs of [`super::inputs`].
//! The target is the deviation from the EMA. A model without data (all coefficients 0) therefore forecasts
//! the EMA, which is a good forecast already.

use serde::{Deserialize, Serialize};

use super::average::Ema;
use super::inputs::{BASE_ALPHA, History, InputGroups, Layout};
pub use super::missing_readings::Prepared;
use super::missing_readings::Scaler;
use super::recursive_least_squares::RecursiveLeastSquares;
use crate::series::DriverSet;

/// Inputs and memory of an ARX model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ArxSettings {
    /// Groups of inputs.
    pub groups: InputGroups,
    /// Factor of the EMA that the target deviates from.
    pub base_alpha: f64,
    /// Forgetting factor per iteration. 0.9985 is a memory of about 670 iterations.
    pub forgetting: f64,
    /// Ridge: the amount of evidence needed to move a coefficient away from 0.
    pub ridge: f64,
}

impl ArxSettings {
    /// Returns the settings with the smallest error on recorded traces, for these inputs.
    pub fn of(groups: InputGroups) -> Self {
        Self { groups, base_alpha: BASE_ALPHA, forgetting: 0.9985, ridge: 10.0 }
    }
}

/// The inputs of the ARX models of one worker that deviate from the same EMA. A model with fewer groups of inputs uses the
/// first ones.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ArxInputs {
    layout: Layout,
    base: Ema,
    scaler: Scaler,
}

impl ArxInputs {
    /// Creates the inputs of a worker with one observed log speed.
    pub fn new(settings: &ArxSettings, drivers: &DriverSet, first: f64) -> Self {
        let layout = Layout::new(settings.groups, false, drivers);
        Self { base: Ema::new(settings.base_alpha, first.exp()), scaler: Scaler::new(&layout), layout }
    }

    /// Whether stored inputs for these drivers are usable.
    pub(super) fn is_valid(&self, drivers: &DriverSet) -> bool {
        self.layout.is_valid(drivers) && self.base.is_valid_speed() && self.scaler.is_valid(&self.layout)
    }

    /// Whether models with these settings use these inputs, or the first of them.
    pub(super) fn serves(&self, settings: &ArxSettings) -> bool {
        self.base.alpha() == settings.base_alpha && self.layout.groups() >= settings.groups
    }

    /// Computes the inputs of the next iteration of `batch` samples.
    pub fn prepare(&self, history: &History, batch: f64, prepared: &mut Prepared) {
        self.scaler.prepare(&self.layout, &self.layout.raw(history, self.base(), batch), prepared);
    }

    /// Changes the number of samples.
    pub(super) fn set_batch(&self, prepared: &mut Prepared, history: &History, batch: f64) {
        for (at, raw) in self.layout.of_batch(history, self.base(), batch).into_iter().flatten() {
            self.scaler.replace(&self.layout, prepared, at, raw);
        }
    }

    /// Learns from the iteration that the inputs were prepared for, after the models.
    pub fn learn(&mut self, prepared: &mut Prepared, log_speed: f64) {
        self.scaler.learn_prepared(prepared);
        self.follow(log_speed);
    }

    /// Follows an iteration that no model learns.
    pub(super) fn follow(&mut self, log_speed: f64) {
        self.base.update(log_speed.exp());
    }

    fn base(&self) -> f64 {
        self.base.level().ln()
    }

    /// Starts from the scales of an earlier worker.
    pub(super) fn warm_start(&mut self, earlier: &Self) {
        if self.base.alpha() == earlier.base.alpha() && self.layout.width() == earlier.layout.width() {
            self.scaler = earlier.scaler.clone();
        }
    }
}

/// An ARX model of one worker. It can forecast after the first value.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Arx {
    rls: RecursiveLeastSquares,
}

impl Arx {
    /// Creates a model without observations.
    pub fn new(settings: &ArxSettings, drivers: &DriverSet) -> Self {
        let width = Layout::new(settings.groups, false, drivers).width();
        Self { rls: RecursiveLeastSquares::new(width + 1, settings.ridge, settings.forgetting) }
    }

    /// Whether a stored model with these settings for these drivers is usable.
    pub(super) fn is_valid(&self, settings: &ArxSettings, drivers: &DriverSet) -> bool {
        self.rls.is_valid(Layout::new(settings.groups, false, drivers).width() + 1)
    }

    /// Returns the log speed of the iteration that the inputs were prepared for, clamped to the recent range.
    pub fn predict(&self, inputs: &ArxInputs, prepared: &Prepared, history: &History) -> f64 {
        let base = inputs.base();
        history.clamp_to_recent_range(base + self.rls.predict(self.first(prepared)), base)
    }

    /// Updates the model: the iteration that the inputs were prepared for had this log speed.
    pub fn update(&mut self, inputs: &ArxInputs, prepared: &Prepared, log_speed: f64) {
        let first = self.first(prepared);
        self.rls.update(first, log_speed - inputs.base());
    }

    /// Returns the inputs that the model uses.
    fn first<'a>(&self, prepared: &'a Prepared) -> &'a [f64] {
        prepared.inputs.get(..self.rls.width()).unwrap_or_default()
    }

    /// Starts from the coefficients of an earlier model with the same drivers; see
    /// [`RecursiveLeastSquares::warm_start`].
    pub fn warm_start(&mut self, earlier: &Self, trust: f64) {
        self.rls.warm_start(&earlier.rls, trust);
    }
}

/// One ARX model for all workers of a job, so that each worker benefits from the observations of all others.
///
/// Each worker has its own inputs and its own base. Targets are in units of the worker's deviation from its
/// base, so quiet and noisy workers can share coefficients.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PooledArx {
    settings: ArxSettings,
    layout: Layout,
    rls: RecursiveLeastSquares,
    /// Whether this model replaces the workers' separate ARX models: the rows of many workers suffice for it.
    is_alone: bool,
    /// Number of updates since the model was created or read.
    #[serde(skip)]
    updates: u64,
}

/// Inputs and target of one worker's iteration, for the pooled model.
#[derive(Debug)]
pub struct PooledRow {
    /// Inputs, scaled.
    pub inputs: Vec<f64>,
    /// Target, in deviations of the worker.
    pub target: f64,
}

/// State of the pooled model for one worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PooledWorker {
    base: Ema,
    scaler: Scaler,
    squares: f64,
    count: f64,
}

/// Assumed deviation of an unmeasured worker, in log speed.
const DEVIATION_COLD: f64 = 0.1;
/// Clipping of targets, in deviations.
const TARGET_MAX: f64 = 8.0;

impl PooledArx {
    /// Creates a model without observations.
    pub fn new(settings: ArxSettings, drivers: &DriverSet) -> Self {
        let layout = Layout::new(settings.groups, true, drivers);
        let rls = RecursiveLeastSquares::new(layout.width() + 1, settings.ridge, settings.forgetting);
        Self { settings, layout, rls, is_alone: false, updates: 0 }
    }

    /// Whether a stored model for these drivers is usable.
    pub(super) fn is_valid(&self, drivers: &DriverSet) -> bool {
        let is_factor = self.settings.base_alpha > 0.0 && self.settings.base_alpha <= 1.0;
        is_factor && self.layout.is_valid(drivers) && self.rls.is_valid(self.layout.width() + 1)
    }

    /// Whether the stored state of a worker for this model is usable.
    pub(super) fn is_valid_share(&self, share: &PooledWorker) -> bool {
        share.base.is_valid_speed()
            && share.scaler.is_valid(&self.layout)
            && share.squares >= 0.0
            && share.count >= 0.0
            && (share.squares + share.count).is_finite()
    }

    /// Returns the number of updates since the model was created or read. Equal numbers mean equal models.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Whether this model replaces the workers' separate ARX models.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Sets whether this model replaces the workers' separate ARX models.
    pub(super) fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
    }

    /// Creates the state of a worker with one observed log speed.
    pub fn share(&self, first: f64) -> PooledWorker {
        PooledWorker {
            base: Ema::new(self.settings.base_alpha, first.exp()),
            scaler: Scaler::new(&self.layout),
            squares: 0.0,
            count: 0.0,
        }
    }

    /// Computes the inputs of a worker's next iteration of `batch` samples.
    pub fn prepare(&self, share: &PooledWorker, history: &History, batch: f64, prepared: &mut Prepared) {
        let raw = self.layout.raw(history, share.base.level().ln(), batch);
        share.scaler.prepare(&self.layout, &raw, prepared);
    }

    /// Changes the number of samples.
    pub(super) fn set_batch(
        &self,
        share: &PooledWorker,
        prepared: &mut Prepared,
        history: &History,
        batch: f64,
    ) {
        let changed = self.layout.of_batch(history, share.base.level().ln(), batch);
        for (at, raw) in changed.into_iter().flatten() {
            share.scaler.replace(&self.layout, prepared, at, raw);
        }
    }

    /// Returns the log speed of the iteration that the inputs were prepared for.
    pub fn predict(&self, share: &PooledWorker, prepared: &Prepared, history: &History) -> f64 {
        let base = share.base.level().ln();
        history.clamp_to_recent_range(base + share.deviation() * self.rls.predict(&prepared.inputs), base)
    }

    /// Updates the state of a worker: the iteration that the inputs were prepared for had this log speed. Returns the target of
    /// the row for [`Self::update`].
    pub fn observe(&self, share: &mut PooledWorker, prepared: &mut Prepared, log_speed: f64) -> f64 {
        let base = share.base.level().ln();
        let target = ((log_speed - base) / share.deviation()).clamp(-TARGET_MAX, TARGET_MAX);
        share.scaler.learn_prepared(prepared);
        share.squares += (log_speed - base).powi(2);
        share.count += 1.0;
        share.base.update(log_speed.exp());
        target
    }

    /// Learns from the rows of all workers in one iteration. The memory in iterations does not depend on the number of
    /// workers.
    pub fn update(&mut self, rows: &[PooledRow]) {
        self.updates += 1;
        self.rls.update_together(rows.iter().map(|row| (&row.inputs[..], row.target)));
    }
}

impl PooledWorker {
    fn deviation(&self) -> f64 {
        let deviation = (self.squares / self.count).sqrt();
        if deviation.is_finite() && deviation > 1e-6 { deviation } else { DEVIATION_COLD }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn no_drivers() -> DriverSet {
        DriverSet::default()
    }

    /// A model with its own inputs.
    struct Alone(ArxInputs, Arx);

    impl Alone {
        fn new(groups: InputGroups, drivers: &DriverSet, first: f64) -> Self {
            let settings = ArxSettings::of(groups);
            Self(ArxInputs::new(&settings, drivers, first), Arx::new(&settings, drivers))
        }

        fn predict(&self, history: &History, batch: f64) -> f64 {
            self.1.predict(&self.0, &self.prepared(history, batch), history)
        }

        fn update(&mut self, history: &History, batch: f64, log_speed: f64) {
            let mut prepared = self.prepared(history, batch);
            self.1.update(&self.0, &prepared, log_speed);
            self.0.learn(&mut prepared, log_speed);
        }

        fn prepared(&self, history: &History, batch: f64) -> Prepared {
            let mut prepared = Prepared::default();
            self.0.prepare(history, batch, &mut prepared);
            prepared
        }
    }

    /// Learns an AR(1) process around a mean: the forecast error is close to the innovation.
    #[test]
    fn learns_an_autoregression() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(5);
        let mut value = 0.0f64;
        let mut model = Alone::new(InputGroups::Lags, &no_drivers(), value);
        let mut history = History::new(value, 1.0);
        let (mut ours, mut innovation) = (0.0, 0.0);
        for k in 0..2000 {
            let noise = 0.1 * (rng.random::<f64>() - 0.5);
            let next = 0.9 * value + noise;
            if k >= 500 {
                ours += (model.predict(&history, 1.0) - next).powi(2);
                innovation += noise * noise;
            }
            model.update(&history, 1.0, next);
            history.observe(next, 1.0);
            value = next;
        }
        assert!(ours < 1.1 * innovation, "{ours} against {innovation}");
    }

    /// If larger batches are slower, the batch alone predicts the speed.
    #[test]
    fn the_coming_batch_is_an_input() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(8);
        let mut model = Alone::new(InputGroups::Lags, &no_drivers(), 5.0);
        let mut history = History::new(5.0, 64.0);
        for _ in 0..400 {
            let batch = if rng.random::<bool>() { 64.0 } else { 128.0 };
            let speed = if batch > 100.0 { 4.5 } else { 5.0 };
            model.update(&history, batch, speed);
            history.observe(speed, batch);
        }
        assert!((model.predict(&history, 64.0) - 5.0).abs() < 0.1);
        assert!((model.predict(&history, 128.0) - 4.5).abs() < 0.1);
    }

    /// The pooled model applies observations of one worker to another worker.
    #[test]
    fn a_pool_learns_from_each_of_its_workers() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(6);
        let drivers = DriverSet::new(["load"]);
        let mut pooled = PooledArx::new(ArxSettings::of(InputGroups::All), &drivers);
        let mut alone = Alone::new(InputGroups::All, &drivers, 0.0);
        let mut shares = [pooled.share(0.0), pooled.share(0.0)];
        let mut histories = [History::new(0.0, 1.0), History::new(0.0, 1.0)];
        let (mut by_pool, mut by_itself) = (0.0, 0.0);
        // The second worker joins late and is scored on its first 60 iterations.
        for k in 0..460 {
            let mut rows = Vec::new();
            for i in 0..if k < 400 { 1 } else { 2 } {
                let load = f64::from(u8::from(rng.random::<f64>() < 0.4));
                histories[i].boundary(&[Some(load)]);
                let actual = -0.5 * load + 0.02 * (rng.random::<f64>() - 0.5);
                let mut prepared = Prepared::default();
                pooled.prepare(&shares[i], &histories[i], 1.0, &mut prepared);
                if i == 1 {
                    by_pool += (pooled.predict(&shares[1], &prepared, &histories[1]) - actual).powi(2);
                    by_itself += (alone.predict(&histories[1], 1.0) - actual).powi(2);
                    alone.update(&histories[1], 1.0, actual);
                }
                let target = pooled.observe(&mut shares[i], &mut prepared, actual);
                rows.push(PooledRow { inputs: prepared.inputs.clone(), target });
                histories[i].observe(actual, 1.0);
            }
            pooled.update(&rows);
        }
        assert!(by_pool < 0.7 * by_itself, "{by_pool} against {by_itself}");
    }
}
