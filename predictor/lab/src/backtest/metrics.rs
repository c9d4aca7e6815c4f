//! Errors of forecasts, and coverage of intervals.

/// Errors of forecasts `f` of `y`, over `n` rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Accuracy {
    /// `sqrt(sum (y - f)^2 / n)`.
    pub rmse: f64,
    /// `sum |y - f| / n`.
    pub mae: f64,
    /// `sum |y - f| / |y| / n`, a share; `None` if some `y` is 0 or too close to 0.
    pub mape: Option<f64>,
    /// `sqrt(sum (y - f)^2 / sum (y - mean y)^2)`: the root mean squared error divided by the error of the mean.
    /// `None` if `y` is constant.
    pub rrse: Option<f64>,
    /// Square of `rrse`: mean squared error divided by the variance.
    pub nmse: Option<f64>,
}

impl Accuracy {
    /// Computes the errors of pairs (actual, forecast). `None` if there are no pairs, a value is not finite,
    /// or the squares are not finite.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        if pairs.is_empty() || pairs.iter().any(|(y, f)| !(y.is_finite() && f.is_finite())) {
            return None;
        }
        let n = pairs.len() as f64;
        let mean = pairs.iter().map(|(y, _)| y).sum::<f64>() / n;
        let squares: f64 = pairs.iter().map(|(y, f)| (y - f).powi(2)).sum();
        let spread: f64 = pairs.iter().map(|(y, _)| (y - mean).powi(2)).sum();
        if !(squares.is_finite() && spread.is_finite()) {
            return None;
        }
        let nmse = (spread > 0.0).then(|| squares / spread);
        let mape: f64 = pairs.iter().map(|(y, f)| ((y - f) / y).abs()).sum();
        let has_zero = pairs.iter().any(|(y, _)| *y == 0.0);
        Some(Self {
            rmse: (squares / n).sqrt(),
            mae: pairs.iter().map(|(y, f)| (y - f).abs()).sum::<f64>() / n,
            mape: (!has_zero).then(|| mape / n).filter(|mape| mape.is_finite()),
            rrse: nmse.map(f64::sqrt),
            nmse,
        })
    }
}

/// Coverage and width of intervals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Share of rows whose value lies in its interval.
    pub coverage: f64,
    /// Mean ratio of the interval's width to the forecast.
    pub width: f64,
}

impl Calibration {
    /// Computes the calibration of (actual, forecast, lower, upper). `None` without rows.
    pub fn of(rows: &[(f64, f64, f64, f64)]) -> Option<Self> {
        let n = rows.len() as f64;
        let covered = rows.iter().filter(|(y, _, lower, upper)| (lower..=upper).contains(&y)).count();
        let width: f64 = rows.iter().map(|(_, f, lower, upper)| (upper - lower) / f).sum();
        (!rows.is_empty()).then(|| Self { coverage: covered as f64 / n, width: width / n })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By hand: errors -1, 0, 2. The mean of y is 4, so the squared deviations sum to 4 + 0 + 4.
    #[test]
    fn follows_the_formulas() {
        let ours = Accuracy::of(&[(2.0, 3.0), (4.0, 4.0), (6.0, 4.0)]).unwrap();
        assert_eq!(ours.rmse, (5.0f64 / 3.0).sqrt());
        assert_eq!(ours.mae, 1.0);
        assert_eq!(ours.mape, Some((0.5 + 2.0 / 6.0) / 3.0));
        assert_eq!(ours.nmse, Some(0.625));
        assert_eq!(ours.rrse, Some(0.625f64.sqrt()));
    }

    #[test]
    fn undefined_values_are_omitted() {
        assert_eq!(Accuracy::of(&[]), None);
        assert_eq!(Accuracy::of(&[(1.0, f64::NAN)]), None);
        assert_eq!(Accuracy::of(&[(1e300, 1.0), (1.0, 1.0)]), None);
        assert_eq!(Accuracy::of(&[(1e-320, 1.0), (1.0, 1.0)]).unwrap().mape, None);
        let zero = Accuracy::of(&[(0.0, 1.0), (1.0, 1.0)]).unwrap();
        assert_eq!((zero.mape, zero.nmse), (None, Some(2.0)));
        let constant = Accuracy::of(&[(3.0, 2.0), (3.0, 3.0)]).unwrap();
        assert_eq!((constant.rrse, constant.nmse), (None, None));
        assert_eq!(Calibration::of(&[]), None);
    }

    /// The interval includes its bounds.
    #[test]
    fn coverage_and_width() {
        let rows = [(1.0, 2.0, 1.0, 3.0), (3.0, 2.0, 1.0, 3.0), (3.1, 2.0, 1.0, 3.0), (4.0, 4.0, 3.0, 6.0)];
        assert_eq!(Calibration::of(&rows), Some(Calibration { coverage: 0.75, width: 3.75 / 4.0 }));
    }

    proptest! {
        /// Relative errors do not depend on the unit of the series; absolute errors scale with it.
        #[test]
        fn relative_errors_know_no_unit(
            pairs in prop::collection::vec((1.0f64..100.0, 1.0f64..100.0), 2..50), unit in 0.01f64..100.0
        ) {
            let ours = Accuracy::of(&pairs).unwrap();
            let scaled: Vec<(f64, f64)> = pairs.iter().map(|(y, f)| (y * unit, f * unit)).collect();
            let theirs = Accuracy::of(&scaled).unwrap();
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
            prop_assert!(near(ours.rmse * unit, theirs.rmse) && near(ours.mae * unit, theirs.mae));
            prop_assert!(near(ours.mape.unwrap(), theirs.mape.unwrap()));
            prop_assert!(near(ours.rrse.unwrap_or(0.0), theirs.rrse.unwrap_or(0.0)));
            prop_assert!(ours.mae <= ours.rmse * (1.0 + 1e-12));
        }
    }
}
