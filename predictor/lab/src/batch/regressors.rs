//! Lagged regressors of a system, and predictions of a fitted model one step ahead and in free run.

use std::ops::Range;

use evenstep_core::forecast::fit::Regression;
use ndarray::{Array1, Array2};

/// Past values that are regressors of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lags {
    /// Number of lags of the output: `y[k-1] .. y[k-y]`.
    pub y: usize,
    /// Number of lags of each input: `u[k-1] .. u[k-u]`.
    pub u: usize,
    /// Whether the inputs of row `k` itself are known when `y[k]` is predicted.
    pub current: bool,
    /// Rows between consecutive lags; 1 unless the sampling is much faster than the dynamics of the system.
    pub stride: usize,
    /// Forecast horizon in rows: `y[k]` is predicted from values up to row `k - horizon`; 1 is one step
    /// ahead.
    pub horizon: usize,
}

/// Output and inputs of a system, row by row.
#[derive(Debug, Clone, Copy)]
pub struct System<'a> {
    /// The output by row.
    pub y: &'a [f64],
    /// Inputs by row, in as many rows as `y` and all of the same length (0 without inputs).
    pub u: &'a [Vec<f64>],
}

impl Lags {
    /// Number of rows before the first row with all its lags.
    pub fn reach(&self) -> usize {
        let lag = |count: usize| if count == 0 { 0 } else { self.horizon + (count - 1) * self.stride };
        lag(self.y).max(lag(self.u))
    }

    /// Number of regressors per row, with `inputs` inputs.
    pub fn width(&self, inputs: usize) -> usize {
        self.y + inputs * (self.u + usize::from(self.current))
    }

    /// Returns the regressors of row `k`, which must be at least [`Lags::reach`]: first the lags of the
    /// output, the most recent first. Then follow, for each input, its current value (if `current`) and its
    /// lags. `y` may be shorter than the inputs and contains the known outputs.
    pub fn row(&self, y: &[f64], u: &[Vec<f64>], k: usize) -> Vec<f64> {
        let inputs = u.first().map_or(0, Vec::len);
        let at = |k: usize, input: usize| u[k][input];
        let mut row = Vec::with_capacity(self.width(inputs));
        let back = |lag: usize| k - self.horizon - lag * self.stride;
        row.extend((0..self.y).map(|lag| y[back(lag)]));
        for input in 0..inputs {
            if self.current {
                row.push(at(k, input));
            }
            row.extend((0..self.u).map(|lag| at(back(lag), input)));
        }
        row
    }

    /// Returns regressors and targets of the rows in `range` that have all their lags.
    pub fn table(&self, system: System<'_>, range: Range<usize>) -> (Array2<f64>, Array1<f64>) {
        let rows = range.start.max(self.reach())..range.end.min(system.y.len());
        let width = self.width(system.u.first().map_or(0, Vec::len));
        let count = rows.len();
        let values: Vec<f64> = rows.clone().flat_map(|k| self.row(system.y, system.u, k)).collect();
        let table =
            Array2::from_shape_vec((count, width), values).unwrap_or_else(|_| Array2::zeros((0, width)));
        (table, rows.map(|k| system.y[k]).collect())
    }

    /// Predicts the rows in `range`, each from measured values.
    pub fn one_step(&self, model: &dyn Regression, system: System<'_>, range: Range<usize>) -> Vec<f64> {
        range.map(|k| model.predict_row(&self.row(system.y, system.u, k))).collect()
    }

    /// Predicts the rows in `range`, each from the model's own earlier predictions. Values before the range
    /// are measured.
    pub fn free_run(&self, model: &dyn Regression, system: System<'_>, range: Range<usize>) -> Vec<f64> {
        let mut y = system.y[..range.start].to_vec();
        for k in range.clone() {
            let next = model.predict_row(&self.row(&y, system.u, k));
            y.push(next);
        }
        y.split_off(range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_what_was_known() {
        let y: Vec<f64> = (0..6).map(f64::from).collect();
        let u: Vec<Vec<f64>> = (0..6).map(|k| vec![10.0 + f64::from(k), 20.0 + f64::from(k)]).collect();
        let lags = Lags { y: 2, u: 1, current: true, stride: 1, horizon: 1 };
        assert_eq!((lags.reach(), lags.width(2)), (2, 6));
        assert_eq!(lags.row(&y, &u, 4), [3.0, 2.0, 14.0, 13.0, 24.0, 23.0]);
        let far = Lags { y: 2, u: 0, current: false, stride: 2, horizon: 3 };
        assert_eq!((far.reach(), far.row(&y, &[], 5)), (5, vec![2.0, 0.0]));
        let (table, targets) = lags.table(System { y: &y, u: &u }, 0..6);
        assert_eq!((table.shape(), targets.to_vec()), ([4, 6].as_slice(), vec![2.0, 3.0, 4.0, 5.0]));
    }

    /// The sum of the two previous values: the Fibonacci sequence.
    #[derive(Debug)]
    struct Sum;

    impl Regression for Sum {
        fn predict_row(&self, regressors: &[f64]) -> f64 {
            regressors.iter().sum()
        }
    }

    #[test]
    fn free_run_feeds_on_itself() {
        let y = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0];
        let lags = Lags { y: 2, u: 0, current: false, stride: 1, horizon: 1 };
        let system = System { y: &y, u: &[] };
        assert_eq!(lags.free_run(&Sum, system, 2..6), [2.0, 3.0, 5.0, 8.0]);
        assert_eq!(lags.one_step(&Sum, system, 2..6), [2.0, 1.0, 0.0, 0.0]);
    }
}
