//! Scaling of columns to a common scale and back, so that fits do not depend on units of measurement.

use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};

/// Relative deviation below which a column counts as constant: smaller deviations are rounding errors.
const CONSTANT_SHARE: f64 = 1e-12;

/// Clipping of scaled values, in units: their powers and products stay finite.
const UNITS_MAX: f64 = 1e6;

/// Center and unit of a column.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    center: f64,
    /// One unit of the scaled column; 0 for a constant column.
    unit: f64,
}

impl Scale {
    /// Returns the scale that gives the column mean 0 and standard deviation 1.
    pub fn standard<'a>(values: impl Iterator<Item = &'a f64> + Clone) -> Self {
        // Shares of the largest value, so that squares neither overflow nor underflow.
        let largest = largest(values.clone());
        let shares = values.map(|value| value / largest);
        let count = shares.clone().count() as f64;
        let mean = shares.clone().sum::<f64>() / count;
        let deviation = (shares.map(|share| (share - mean).powi(2)).sum::<f64>() / count).sqrt();
        if deviation > CONSTANT_SHARE {
            Self { center: mean * largest, unit: deviation * largest }
        } else {
            Self { center: if mean.is_finite() { mean * largest } else { 0.0 }, unit: 0.0 }
        }
    }

    /// Returns the value in units.
    pub fn scaled(&self, value: f64) -> f64 {
        let units = (value - self.center) / self.unit;
        // 0 / 0 and x / 0: a constant column carries no information, whatever its later values.
        if self.unit == 0.0 { 0.0 } else { units.clamp(-UNITS_MAX, UNITS_MAX) }
    }

    /// Returns the value of a number of units.
    pub fn unscaled(&self, units: f64) -> f64 {
        (self.center + self.unit * units).clamp(f64::MIN, f64::MAX)
    }
}

/// A linear map: a factor, then a shift.
pub(super) type Linear = (f64, f64);

impl Scale {
    /// Returns the map from units of another scale to units of this one.
    pub(super) fn units_from(&self, other: &Self) -> Linear {
        if self.unit == 0.0 {
            (0.0, 0.0)
        } else {
            (other.unit / self.unit, (other.center - self.center) / self.unit)
        }
    }
}

fn largest<'a>(values: impl Iterator<Item = &'a f64>) -> f64 {
    values.fold(0.0, |largest: f64, value| largest.max(value.abs()))
}

/// The scales of a fit: one per regressor, and one for the target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// Scales of the regressors.
    pub columns: Vec<Scale>,
    /// Scale of the target.
    pub target: Scale,
}

impl Scaling {
    /// Scales all columns to mean 0 and standard deviation 1.
    pub fn standard(regressors: &Array2<f64>, targets: &Array1<f64>) -> Self {
        Self {
            columns: regressors.columns().into_iter().map(|column| Scale::standard(column.iter())).collect(),
            target: Scale::standard(targets.iter()),
        }
    }

    /// Returns one row of regressors in units.
    pub fn row<'a>(&'a self, regressors: impl IntoIterator<Item = &'a f64>) -> impl Iterator<Item = f64> {
        self.columns.iter().zip(regressors).map(|(scale, value)| scale.scaled(*value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_column() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(
            prop_oneof![-1e3..1e3f64, Just(0.0), Just(f64::MAX), Just(f64::MIN), Just(f64::MIN_POSITIVE)],
            1..20,
        )
    }

    proptest! {
        /// Finite inputs give finite outputs, for any column and any later value.
        #[test]
        fn never_not_finite(column in any_column(), later in any::<f64>().prop_filter("finite", |x| x.is_finite())) {
            let scale = Scale::standard(column.iter());
            for value in column.iter().copied().chain([later]) {
                let units = scale.scaled(value);
                prop_assert!(units.is_finite() && scale.unscaled(units).is_finite(), "{scale:?} {value}");
            }
        }

        /// Scaling and unscaling return the original value.
        #[test]
        fn inverts(column in prop::collection::vec(-1e3..1e3f64, 2..20)) {
            let scale = Scale::standard(column.iter());
            for value in &column {
                let back = scale.unscaled(scale.scaled(*value));
                prop_assert!(scale.unit == 0.0 || (back - value).abs() < 1e-9, "{value} came back as {back}");
            }
        }
    }

    #[test]
    fn standard_is_mean_and_deviation() {
        let scale = Scale::standard([1.0, 3.0].iter());
        assert_eq!((scale.scaled(1.0), scale.scaled(3.0), scale.scaled(2.0)), (-1.0, 1.0, 0.0));
        assert_eq!(Scale::standard([0.1; 7].iter()).scaled(99.0), 0.0);
    }
}
