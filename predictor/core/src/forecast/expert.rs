//! The experts: all models of one worker's speed, with a common interface and their names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::arx::{Arx, ArxInputs, ArxSettings, PooledArx, PooledWorker};
use super::average::{Ema, Hold, MovingAverage};
use super::change::ChangePoint;
use super::inputs::{History, InputGroups};
use super::missing_readings::Prepared;
use super::nonlinear::FittedExpert;
use crate::series::DriverSet;

/// A kind of expert.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum ExpertKind {
    /// The last value.
    Last,
    /// The mean of the latest N values.
    MovingAverage(usize),
    /// Exponential moving average with this factor.
    Ema(f64),
    /// Predicts repeated values, on top of an EMA of distinct values with this factor.
    Hold(f64),
    /// A level that starts again when the speed jumps.
    ChangePoint,
    /// Autoregression on lags.
    Ar,
    /// Autoregression on lags and level.
    ArLevel,
    /// ARX on lags, level and the selected drivers.
    Arx,
    /// ARX with faster forgetting: a memory of about 200 iterations.
    ArxQuick,
    /// ARX on deviations from a faster EMA (factor 0.6).
    ArxNear,
    /// ARX on deviations from a slower EMA (factor 0.1).
    ArxFar,
    /// ARX on all drivers.
    ArxAll,
    /// One ARX model for all workers of the job.
    ArxPooled,
    /// A network on the inputs of ARX. It is added when it has been fitted.
    Narx,
}

/// Maximum number of values in a moving average.
const WINDOW_MAX: usize = 1000;
/// Prior weights relative to the simplest experts.
const PRIOR_POOLED: f64 = 8.0;
const PRIOR_ARX: f64 = 4.0;
/// The change point leads by another rule, see [`Lead`](super::change::Lead).
const PRIOR_CHANGE_POINT: f64 = 0.01;

/// Names of the experts without a parameter.
const NAMES_WITHOUT_PARAMETER: [(&str, ExpertKind); 11] = [
    ("last", ExpertKind::Last),
    ("change_point", ExpertKind::ChangePoint),
    ("ar", ExpertKind::Ar),
    ("ar_level", ExpertKind::ArLevel),
    ("arx", ExpertKind::Arx),
    ("arx_quick", ExpertKind::ArxQuick),
    ("arx_near", ExpertKind::ArxNear),
    ("arx_far", ExpertKind::ArxFar),
    ("arx_all", ExpertKind::ArxAll),
    ("arx_pooled", ExpertKind::ArxPooled),
    ("narx", ExpertKind::Narx),
];

impl ExpertKind {
    /// Returns the default experts of a forecast. Experts that need drivers are omitted if the job has no
    /// drivers.
    pub fn roster(drivers: &DriverSet) -> Vec<Self> {
        let mut roster = vec![
            Self::Last,
            Self::Ema(0.05),
            Self::Ema(0.1),
            Self::Ema(0.3),
            Self::Ema(0.6),
            Self::Ema(0.8),
            Self::Hold(0.1),
            Self::Hold(0.3),
            Self::ChangePoint,
            Self::Ar,
            Self::ArLevel,
            Self::ArxFar,
            Self::ArxPooled,
        ];
        if !drivers.is_empty() {
            roster.extend([Self::Arx, Self::ArxQuick, Self::ArxNear, Self::ArxAll]);
        }
        roster
    }

    /// Returns the relative weight before any record. Experts that did well on most recorded traces have
    /// larger weights.
    pub(super) fn prior(self) -> f64 {
        match self {
            Self::ArxPooled => PRIOR_POOLED,
            Self::Arx | Self::ArxNear | Self::ArxAll => PRIOR_ARX,
            Self::ChangePoint => PRIOR_CHANGE_POINT,
            _ => 1.0,
        }
    }

    /// Returns the settings of an ARX model of one worker; `None` for other experts.
    pub(super) fn own_arx(self) -> Option<ArxSettings> {
        match self {
            Self::Ar
            | Self::ArLevel
            | Self::Arx
            | Self::ArxQuick
            | Self::ArxNear
            | Self::ArxFar
            | Self::ArxAll => Some(self.settings()),
            _ => None,
        }
    }

    fn settings(self) -> ArxSettings {
        match self {
            Self::Ar => ArxSettings::of(InputGroups::Lags),
            Self::ArLevel => ArxSettings::of(InputGroups::Level),
            Self::ArxQuick => ArxSettings { forgetting: 0.995, ..ArxSettings::of(InputGroups::Selected) },
            Self::ArxNear => ArxSettings { base_alpha: 0.6, ..ArxSettings::of(InputGroups::Selected) },
            Self::ArxFar => ArxSettings { base_alpha: 0.1, ..ArxSettings::of(InputGroups::Selected) },
            Self::ArxAll => ArxSettings::of(InputGroups::All),
            _ => ArxSettings::of(InputGroups::Selected),
        }
    }

    /// Whether the parameter of a stored kind is in its range.
    pub(super) fn is_valid(self) -> bool {
        match self {
            Self::MovingAverage(window) => (1..=WINDOW_MAX).contains(&window),
            Self::Ema(alpha) | Self::Hold(alpha) => alpha > 0.0 && alpha <= 1.0,
            _ => true,
        }
    }

    /// Creates the pooled model of a job. Its memory is about 1000 iterations.
    pub(super) fn pool(drivers: &DriverSet) -> PooledArx {
        PooledArx::new(ArxSettings { forgetting: 0.999, ..Self::ArxPooled.settings() }, drivers)
    }
}

impl fmt::Display for ExpertKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MovingAverage(window) => write!(f, "ma_{window}"),
            Self::Ema(alpha) => write!(f, "ema_{alpha}"),
            Self::Hold(alpha) => write!(f, "hold_{alpha}"),
            plain => {
                let name = NAMES_WITHOUT_PARAMETER
                    .iter()
                    .find(|(_, kind)| kind == plain)
                    .map_or("", |(name, _)| *name);
                f.write_str(name)
            }
        }
    }
}

/// The names of all experts, for help and error messages.
pub const EXPERT_NAMES: &str = "last, ma_N (mean of N values, 1 to 1000), ema_A and hold_A (0 < A <= 1), change_point, ar, ar_level, arx, arx_quick, arx_near, arx_far, arx_all, arx_pooled";

/// The name of an expert that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown expert {0:?}; known experts: {EXPERT_NAMES}")]
pub struct UnknownExpert(pub String);

impl FromStr for ExpertKind {
    type Err = UnknownExpert;

    fn from_str(name: &str) -> Result<Self, UnknownExpert> {
        let unknown = || UnknownExpert(name.into());
        if let Some((_, kind)) = NAMES_WITHOUT_PARAMETER.iter().find(|(known, _)| *known == name) {
            return Ok(*kind);
        }
        let (kind, parameter) = name.split_once('_').ok_or_else(unknown)?;
        let factor = || parameter.parse().ok().filter(|alpha| (f64::MIN_POSITIVE..=1.0).contains(alpha));
        let window = || parameter.parse().ok().filter(|window| (1..=WINDOW_MAX).contains(window));
        match kind {
            "ma" => window().map(Self::MovingAverage),
            "ema" => factor().map(Self::Ema),
            "hold" => factor().map(Self::Hold),
            _ => None,
        }
        .ok_or_else(unknown)
    }
}

/// Inputs of an ARX model, if the expert is one.
pub(super) type Inputs<'a> = Option<(&'a ArxInputs, &'a Prepared)>;

/// The inputs of all experts for the next iteration.
#[derive(Debug, Clone, Default)]
pub(super) struct Next {
    /// Number of samples.
    pub batch: f64,
    /// Inputs of the worker's own ARX models.
    pub own: Vec<Prepared>,
    /// Whether these models forecast and learn; otherwise the pooled model replaces them.
    pub has_own: bool,
    /// Inputs of the pooled model, if it is one of the experts.
    pub pooled: Option<Prepared>,
    /// Forecast of the pooled model, in log speed.
    pub pooled_forecast: f64,
}

/// One model of one worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Expert {
    Last,
    MovingAverage(MovingAverage),
    Ema(Ema),
    Hold(Hold),
    ChangePoint(ChangePoint),
    Arx(Box<Arx>),
    Pooled(Box<PooledWorker>),
    Narx(Box<FittedExpert>),
}

impl Expert {
    /// Creates an expert with one observed log speed. `None` for an expert that must be fitted first.
    pub fn new(kind: ExpertKind, drivers: &DriverSet, pool: &PooledArx, first: f64) -> Option<Self> {
        Some(match kind {
            ExpertKind::Last => Self::Last,
            ExpertKind::MovingAverage(window) => Self::MovingAverage(MovingAverage::new(window, first)),
            ExpertKind::Ema(alpha) => Self::Ema(Ema::new(alpha, first)),
            ExpertKind::Hold(alpha) => Self::Hold(Hold::new(alpha, first)),
            ExpertKind::ChangePoint => Self::ChangePoint(ChangePoint::new(first)),
            ExpertKind::ArxPooled => Self::Pooled(Box::new(pool.share(first))),
            ExpertKind::Narx => return None,
            arx => Self::Arx(Box::new(Arx::new(&arx.settings(), drivers))),
        })
    }

    /// Whether a stored expert of this kind is usable with this pooled model. `None` stands for a model of a device, whose
    /// pooled expert is not used.
    pub fn is_valid(&self, kind: ExpertKind, drivers: &DriverSet, pool: Option<&PooledArx>) -> bool {
        match self {
            Self::Last => true,
            Self::MovingAverage(average) => average.is_valid(),
            Self::Ema(ema) => ema.is_valid_log_speed(),
            Self::Hold(hold) => hold.is_valid(),
            Self::ChangePoint(level) => level.is_valid(),
            Self::Arx(arx) => kind.own_arx().is_some_and(|settings| arx.is_valid(&settings, drivers)),
            Self::Pooled(share) => pool.is_none_or(|pool| pool.is_valid_share(share)),
            Self::Narx(network) => network.is_valid(drivers),
        }
    }

    /// Returns the log speed of the next iteration. `own` are the inputs of an ARX model.
    pub fn predict(&self, history: &History, own: Inputs<'_>, next: &Next) -> f64 {
        match self {
            Self::Last => history.last(),
            Self::MovingAverage(average) => average.level(),
            Self::Ema(ema) => ema.level(),
            Self::Hold(hold) => hold.level(),
            Self::ChangePoint(level) => level.level(),
            Self::Arx(arx) => match own {
                Some((inputs, prepared)) => arx.predict(inputs, prepared, history),
                None => next.pooled_forecast,
            },
            Self::Pooled(_) => next.pooled_forecast,
            Self::Narx(network) => network.predict(history, next.batch),
        }
    }

    /// Updates the expert: the iteration that its inputs were prepared for had this log speed. Has no effect on a change point,
    /// which learns first, and on a pooled expert, which learns last.
    pub fn update(&mut self, own: Inputs<'_>, log_speed: f64) {
        match self {
            Self::Last | Self::ChangePoint(_) | Self::Narx(_) | Self::Pooled(_) => {}
            Self::MovingAverage(average) => average.update(log_speed),
            Self::Ema(ema) => ema.update(log_speed),
            Self::Hold(hold) => hold.update(log_speed),
            Self::Arx(arx) => {
                if let Some((inputs, prepared)) = own {
                    arx.update(inputs, prepared, log_speed);
                }
            }
        }
    }

    /// Starts from an earlier worker's model of the same kind.
    pub fn warm_start(&mut self, earlier: &Self, trust: f64) {
        if let (Self::Arx(arx), Self::Arx(earlier)) = (self, earlier) {
            arx.warm_start(earlier, trust);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for kind in ExpertKind::roster(&DriverSet::new(["own_cpu"])) {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        // All experts that can be selected by name are in the list for users.
        let listed: Vec<&str> = EXPERT_NAMES.split(", ").collect();
        for (name, kind) in NAMES_WITHOUT_PARAMETER {
            assert_eq!(listed.contains(&name), kind != ExpertKind::Narx, "{name}");
        }
        for unknown in ["", "ema", "ema_0", "ema_1.5", "ema_NaN", "ma_0", "ma_x", "oracle"] {
            assert_eq!(unknown.parse::<ExpertKind>(), Err(UnknownExpert(unknown.into())));
        }
    }
}
