//! What a model of speed is told: the state of a worker, laid out as inputs.
//!
//! All speeds are logarithms, relative to a base `m` (the log of an EMA of speed): a model whose coefficients are all 0
//! forecasts the base. With `y_k` the log speed of iteration k, the inputs of iteration k+1 are
//!
//! | group | inputs |
//! |---|---|
//! | lags | `y_k - m`, `y_{k-1} - m`, change of log batch |
//! | level | `m`, and how far the peak lies above it |
//! | repeats | how far a slow EMA and the EMA over distinct values lie from `m`; whether the latest value was a repeat, and what that changes |
//! | drivers | selected by role: readings at the boundary, the previous stall share, `y_k - ln(own CPU)` (speed per core: efficiency), `ln(wait / own CPU)` (how many compete), the log time the batch would take at the base |
//! | others | every other driver, and the change of every driver |

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::average::{Ema, Hold};
use crate::series::{DriverSet, Role};

/// A driver more than this many deviations from its mean counts as this many.
const DRIVER_DEVIATIONS_MAX: f64 = 5.0;
/// A speed may be far from all before it and still be true: a new regime.
const SPEED_DEVIATIONS_MAX: f64 = 50.0;
/// Shares of CPU time below this are as good as this: keeps logarithms finite.
const SHARE_MIN: f64 = 0.01;
/// Waits below this, in seconds, are as good as this.
const WAIT_MIN_S: f64 = 0.005;
/// Ridge of drivers whose use is not known, over that of the selected ones.
const RIDGE_OTHERS: f64 = 30.0;
/// Ridge of the change of a driver, over that of a selected one.
const RIDGE_CHANGES: f64 = 10.0;
/// Forecasts stay within the range of this many recent values, and [`RANGE_MARGIN`] of log speed beyond.
const RANGE_VALUES: usize = 20;
/// See [`RANGE_VALUES`]: about 5 %.
const RANGE_MARGIN: f64 = 0.05;
/// EMA of speed that targets deviate from, unless a model says otherwise.
pub const BASE_ALPHA: f64 = 0.3;
/// The EMA over distinct values, and the slow one.
const FRESH_ALPHA: f64 = 0.3;
const SLOW_ALPHA: f64 = 0.05;

/// Roles of the selected drivers, in the order of their inputs.
const SELECTED: [Role; 9] = [
    Role::CpuStall,
    Role::RunQueueWait,
    Role::OtherCpu,
    Role::OwnCpu,
    Role::VoluntarySwitches,
    Role::ProcsRunning,
    Role::ProcsBlocked,
    Role::SmClock,
    Role::BarrierWait,
];

/// Which groups of inputs a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum InputGroups {
    /// Lags alone.
    Lags,
    /// Lags and level.
    Level,
    /// Lags, level and the selected drivers.
    Selected,
    /// All groups.
    All,
}

/// The recent past of one worker: what its inputs are made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct History {
    recent: VecDeque<f64>,
    base: Ema,
    hold: Hold,
    slow: Ema,
    peak: f64,
    batch: f64,
    drivers: Vec<Option<f64>>,
    drivers_before: Vec<Option<f64>>,
}

impl History {
    /// Starts at the first iteration, of this log speed and batch.
    pub fn new(first: f64, batch: f64) -> Self {
        Self {
            recent: VecDeque::from([first]),
            base: Ema::new(BASE_ALPHA, first.exp()),
            hold: Hold::new(FRESH_ALPHA, first),
            slow: Ema::new(SLOW_ALPHA, first),
            peak: first,
            batch,
            drivers: Vec::new(),
            drivers_before: Vec::new(),
        }
    }

    /// Takes the next iteration.
    pub fn observe(&mut self, log_speed: f64, batch: f64) {
        if self.recent.len() == RANGE_VALUES {
            self.recent.pop_front();
        }
        self.recent.push_back(log_speed);
        self.base.update(log_speed.exp());
        self.hold.update(log_speed);
        self.slow.update(log_speed);
        self.peak = self.peak.max(log_speed);
        self.batch = batch;
    }

    /// Takes the drivers read before the coming iteration.
    pub fn boundary(&mut self, drivers: &[Option<f64>]) {
        self.drivers_before = std::mem::replace(&mut self.drivers, drivers.to_vec());
    }

    /// The log of the EMA of speed that targets usually deviate from.
    pub fn base(&self) -> f64 {
        self.base.level().ln()
    }

    /// The latest log speed.
    pub fn last(&self) -> f64 {
        self.recent.back().copied().unwrap_or_default()
    }

    /// The batch of the latest iteration.
    pub fn batch(&self) -> f64 {
        self.batch
    }

    /// Keeps a forecast of log speed within the recent range; what is not finite becomes `fallback`.
    pub fn guard(&self, forecast: f64, fallback: f64) -> f64 {
        let (low, high) =
            self.recent.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(*value), high.max(*value))
            });
        if forecast.is_finite() { forecast.clamp(low - RANGE_MARGIN, high + RANGE_MARGIN) } else { fallback }
    }
}

/// How one input is brought to scale.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Shape {
    pub deviations_max: f64,
    /// One over the root of its ridge, relative to the others.
    pub weight: f64,
}

const SPEED: Shape = Shape { deviations_max: SPEED_DEVIATIONS_MAX, weight: 1.0 };
const DRIVER: Shape = Shape { deviations_max: DRIVER_DEVIATIONS_MAX, weight: 1.0 };

/// The layout of a model's inputs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Layout {
    groups: InputGroups,
    repeats: bool,
    /// Position of each of [`SELECTED`] among the drivers.
    selected: Vec<Option<usize>>,
    drivers: usize,
    shapes: Vec<Shape>,
}

impl Layout {
    /// The inputs of these groups, for these drivers; with those on repeats, which take many rows to pay.
    pub fn new(groups: InputGroups, repeats: bool, drivers: &DriverSet) -> Self {
        let roles = drivers.roles();
        let selected = SELECTED.map(|role| roles.iter().position(|known| *known == Some(role))).to_vec();
        let mut layout = Self { groups, repeats, selected, drivers: drivers.len(), shapes: Vec::new() };
        layout.shapes = layout.shapes();
        layout
    }

    /// How many inputs there are.
    pub fn width(&self) -> usize {
        self.shapes.len()
    }

    /// How each input is brought to scale.
    pub(super) fn scales(&self) -> &[Shape] {
        &self.shapes
    }

    fn shapes(&self) -> Vec<Shape> {
        let mut shapes = vec![SPEED, SPEED, DRIVER];
        if self.groups >= InputGroups::Level {
            shapes.extend([DRIVER; 2]);
        }
        if self.repeats {
            shapes.extend([SPEED, SPEED, DRIVER, DRIVER, DRIVER, DRIVER]);
        }
        if self.groups >= InputGroups::Selected {
            shapes.extend([DRIVER; SELECTED.len() + 4]);
        }
        if self.groups == InputGroups::All {
            let ridge = |ridge: f64| Shape { weight: ridge.sqrt().recip(), ..DRIVER };
            let others = (0..self.drivers).filter(|at| !self.selected.contains(&Some(*at))).count();
            shapes.extend(std::iter::repeat_n(ridge(RIDGE_OTHERS), others));
            shapes.extend(std::iter::repeat_n(ridge(RIDGE_CHANGES), self.drivers));
        }
        shapes
    }

    /// The inputs of the coming iteration, of `batch` samples, relative to `base`; `None` where a reading is missing.
    pub fn raw(&self, history: &History, base: f64, batch: f64) -> Vec<Option<f64>> {
        let mut raw = Vec::with_capacity(self.width());
        let last = history.last() - base;
        let before = history.recent.iter().rev().nth(1).map_or(last, |before| before - base);
        raw.extend([Some(last), Some(before), Some((batch / history.batch).ln())]);
        if self.groups >= InputGroups::Level {
            raw.extend([Some(base), Some(history.peak - base)]);
        }
        if self.repeats {
            let (fresh, run) = (history.hold.fresh() - base, history.hold.run());
            let (once, often) = (f64::from(u8::from(run == 1)), f64::from(u8::from(run > 1)));
            let slow = history.slow.level() - base;
            raw.extend([slow, fresh, once, last * once, fresh * once, fresh * often].map(Some));
        }
        if self.groups >= InputGroups::Selected {
            let read = |at: usize, drivers: &[Option<f64>]| *drivers.get(self.selected[at]?)?;
            let now = |role: Role| read(SELECTED.iter().position(|known| *known == role)?, &history.drivers);
            // Waits are long or nearly none: their log says more.
            let scaled = |role: Role, reading: f64| match role {
                Role::BarrierWait => (reading.max(0.0) + WAIT_MIN_S).ln(),
                _ => reading,
            };
            let readings = SELECTED.iter().enumerate();
            raw.extend(readings.map(|(at, role)| Some(scaled(*role, read(at, &history.drivers)?))));
            let share = |role: Role| Some((now(role)?.max(0.0) + SHARE_MIN).ln());
            let own = share(Role::OwnCpu);
            raw.extend([
                read(0, &history.drivers_before),
                own.map(|own| history.last() - own),
                own.zip(share(Role::RunQueueWait)).map(|(own, wait)| wait - own),
                Some(batch.ln() - base),
            ]);
        }
        if self.groups == InputGroups::All {
            let reading = |drivers: &[Option<f64>], at: usize| drivers.get(at).copied().flatten();
            let others = (0..self.drivers).filter(|at| !self.selected.contains(&Some(*at)));
            raw.extend(others.map(|at| reading(&history.drivers, at)));
            raw.extend(
                (0..self.drivers)
                    .map(|at| Some(reading(&history.drivers, at)? - reading(&history.drivers_before, at)?)),
            );
        }
        raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_as_wide_as_what_it_lays_out() {
        let drivers = DriverSet::new(["own_cpu", "temperature", "psi_cpu_d", "self_wait"]);
        let mut history = History::new(1.0, 8.0);
        history.boundary(&[Some(0.5), Some(40.0), None, Some(0.1)]);
        for groups in [InputGroups::Lags, InputGroups::Level, InputGroups::Selected, InputGroups::All] {
            let layout = Layout::new(groups, true, &drivers);
            assert_eq!(layout.raw(&history, 0.5, 16.0).len(), layout.width(), "{groups:?}");
        }
    }
}
