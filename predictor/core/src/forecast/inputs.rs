//! Inputs of the speed models: the state of a worker as a vector.
//!
//! All speeds are logarithms relative to a base `m`, the log of an EMA of speed. A model whose coefficients
//! are all 0 therefore forecasts the base. With `y_k` the log speed of iteration k, the inputs of iteration
//! k+1 are:
//!
//! | group | inputs |
//! |---|---|
//! | lags | `y_k - m`, `y_{k-1} - m`, change of log batch |
//! | level | `m`, and the distance of the peak above it |
//! | repeats | distances of a slow EMA and of the EMA over distinct values from `m`; indicators of a repeated latest value, and their products with the inputs above |
//! | drivers | selected by role: readings at the boundary, the previous stall share, `y_k - ln(own CPU)` (speed per core: efficiency), `ln(wait / own CPU)` (contention), the log time of the batch at the base speed |
//! | others | every other driver, and the change of every driver |

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::average::{Ema, Hold};
use crate::series::{DRIVERS_MAX, DriverSet, LEARNABLE, LOG_SPEED_MAX, READING_MAX, Role};

/// Clipping of scaled drivers, in deviations from their mean.
const DRIVER_DEVIATIONS_MAX: f64 = 5.0;
/// Clipping of scaled speeds, in deviations from their mean. It is wide, since a new regime can be far from
/// all earlier speeds.
const SPEED_DEVIATIONS_MAX: f64 = 50.0;
/// Added to shares of CPU time to keep their logarithms finite.
const SHARE_MIN: f64 = 0.01;
/// Added to waits, in seconds, to keep their logarithms finite.
const WAIT_MIN_S: f64 = 0.005;
/// Ridge of drivers without a known role, relative to selected drivers.
const RIDGE_OTHERS: f64 = 30.0;
/// Ridge of the change of a driver, relative to selected drivers.
const RIDGE_CHANGES: f64 = 10.0;
/// Number of recent values whose range bounds forecasts, with a margin of [`RANGE_MARGIN`].
const RANGE_VALUES: usize = 20;
/// Margin around the range of recent values, in log speed: about 5 %.
const RANGE_MARGIN: f64 = 0.05;
/// Default factor of the EMA of speed that targets deviate from.
pub const BASE_ALPHA: f64 = 0.3;
/// Factor of the EMA over distinct values.
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

/// Groups of inputs that a model uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum InputGroups {
    /// Lags only.
    Lags,
    /// Lags and level.
    Level,
    /// Lags, level and the selected drivers.
    Selected,
    /// All groups.
    All,
}

/// The recent past of one worker, from which its inputs are computed.
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
    /// Starts with the log speed and batch of the first iteration.
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

    /// Whether a stored history is usable.
    pub(super) fn is_valid(&self) -> bool {
        let is_reading = |reading: &Option<f64>| reading.is_none_or(|reading| reading.abs() <= READING_MAX);
        let is_log_speed = |value: &f64| value.abs() <= LOG_SPEED_MAX;
        (1..=RANGE_VALUES).contains(&self.recent.len())
            && self.recent.iter().chain([&self.peak]).all(is_log_speed)
            && self.base.is_valid_speed()
            && self.slow.is_valid_log_speed()
            && self.hold.is_valid()
            && LEARNABLE.contains(&self.batch)
            && [&self.drivers, &self.drivers_before]
                .iter()
                .all(|readings| readings.len() <= DRIVERS_MAX && readings.iter().all(is_reading))
    }

    /// Adds the next iteration.
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

    /// Sets the drivers read before the next iteration.
    pub fn boundary(&mut self, drivers: &[Option<f64>]) {
        std::mem::swap(&mut self.drivers_before, &mut self.drivers);
        self.drivers.clear();
        self.drivers.extend_from_slice(drivers);
    }

    /// Returns the log of the EMA of speed that targets usually deviate from.
    pub fn base(&self) -> f64 {
        self.base.level().ln()
    }

    /// Returns the latest log speed.
    pub fn last(&self) -> f64 {
        self.recent.back().copied().unwrap_or_default()
    }

    /// Returns the batch of the latest iteration.
    pub fn batch(&self) -> f64 {
        self.batch
    }

    /// Clamps a forecast of log speed to the recent range. Returns `fallback` if the forecast is not finite.
    pub fn clamp_to_recent_range(&self, forecast: f64, fallback: f64) -> f64 {
        let (low, high) =
            self.recent.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(*value), high.max(*value))
            });
        if forecast.is_finite() { forecast.clamp(low - RANGE_MARGIN, high + RANGE_MARGIN) } else { fallback }
    }
}

/// Scaling of one input.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Shape {
    pub deviations_max: f64,
    /// 1 / sqrt(ridge of the input), relative to the other inputs.
    pub weight: f64,
}

const SPEED: Shape = Shape { deviations_max: SPEED_DEVIATIONS_MAX, weight: 1.0 };
const DRIVER: Shape = Shape { deviations_max: DRIVER_DEVIATIONS_MAX, weight: 1.0 };

/// The layout of a model's inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    groups: InputGroups,
    repeats: bool,
    /// Position of each role in [`SELECTED`] among the drivers.
    selected: Vec<Option<usize>>,
    drivers: usize,
    /// Positions of the drivers that are not selected.
    others: Vec<usize>,
    shapes: Vec<Shape>,
}

impl Layout {
    /// Creates a layout of these groups for these drivers. `repeats` adds the inputs on repeated values,
    /// which help only with many rows.
    pub fn new(groups: InputGroups, repeats: bool, drivers: &DriverSet) -> Self {
        let roles = drivers.roles();
        let selected = SELECTED.map(|role| roles.iter().position(|known| *known == Some(role))).to_vec();
        let others = (0..drivers.len()).filter(|at| !selected.contains(&Some(*at))).collect();
        let mut layout =
            Self { groups, repeats, selected, drivers: drivers.len(), others, shapes: Vec::new() };
        layout.shapes = layout.shapes();
        layout
    }

    /// Whether a stored layout equals the layout of its groups for these drivers.
    pub(super) fn is_valid(&self, drivers: &DriverSet) -> bool {
        *self == Self::new(self.groups, self.repeats, drivers)
    }

    /// Returns the groups of its inputs.
    pub(super) fn groups(&self) -> InputGroups {
        self.groups
    }

    /// Returns the number of inputs.
    pub fn width(&self) -> usize {
        self.shapes.len()
    }

    /// Returns the scaling of each input.
    pub(super) fn scales(&self) -> &[Shape] {
        &self.shapes
    }

    /// Returns the positions of the inputs that contain a level of speed: all others are relative to the base.
    pub(super) fn absolute(&self) -> Vec<usize> {
        let mut absolute = Vec::new();
        if self.groups >= InputGroups::Level {
            absolute.extend([3, 4]);
        }
        if self.groups >= InputGroups::Selected {
            let rest = if self.repeats { 11 } else { 5 } + SELECTED.len();
            absolute.extend([rest + 1, rest + 3]);
        }
        absolute
    }

    /// Returns the inputs that depend on the batch: their positions and raw values.
    pub(super) fn of_batch(&self, history: &History, base: f64, batch: f64) -> [Option<(usize, f64)>; 2] {
        let rest = if self.repeats { 11 } else { 5 } + SELECTED.len();
        let time = (self.groups >= InputGroups::Selected).then(|| (rest + 3, batch.ln() - base));
        [Some((2, (batch / history.batch).ln())), time]
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
            shapes.extend(std::iter::repeat_n(ridge(RIDGE_OTHERS), self.others.len()));
            shapes.extend(std::iter::repeat_n(ridge(RIDGE_CHANGES), self.drivers));
        }
        shapes
    }

    /// Returns the inputs of the next iteration of `batch` samples, relative to `base`. `None` if a reading
    /// is missing.
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
            // Waits vary by orders of magnitude, so their logarithm is more informative.
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
            raw.extend(self.others.iter().map(|at| reading(&history.drivers, *at)));
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
            let raw = layout.raw(&history, 0.5, 16.0);
            assert_eq!(raw.len(), layout.width(), "{groups:?}");
            // With another batch only these inputs change.
            let mut replaced = layout.raw(&history, 0.5, 5.0);
            for (at, value) in layout.of_batch(&history, 0.5, 16.0).into_iter().flatten() {
                assert_ne!(replaced[at], Some(value));
                replaced[at] = Some(value);
            }
            assert_eq!(replaced, raw, "{groups:?}");
        }
    }

    /// A worker at another level has other inputs at these positions only, except the peak, which can differ alone.
    #[test]
    fn absolute_inputs_contain_the_level() {
        let drivers = DriverSet::new(["own_cpu", "self_wait", "psi_cpu_some"]);
        for (groups, repeats) in
            [(InputGroups::Level, true), (InputGroups::Selected, false), (InputGroups::Selected, true)]
        {
            let layout = Layout::new(groups, repeats, &drivers);
            let raw = |level: f64| {
                let mut history = History::new(level, 8.0);
                history.boundary(&[Some(0.5), Some(0.1), Some(0.2)]);
                history.boundary(&[Some(0.4), Some(0.2), Some(0.1)]);
                layout.raw(&history, level, 8.0)
            };
            let (low, high) = (raw(1.0), raw(3.0));
            let absolute = (0..layout.width()).filter(|at| *at == 4 || low[*at] != high[*at]);
            assert_eq!(absolute.collect::<Vec<_>>(), layout.absolute(), "{groups:?}");
        }
    }
}
