//! Forward selection of regressors by their error reduction ratio (FROLS; Billings, Chen and Korenberg, 1989).
//!
//! Each round selects the candidate with the largest error reduction ratio `(w'y)^2 / (w'w y'y)`. This is the
//! share of the target's squares that it explains after orthogonalization against the selected candidates.
//! The candidates are columns of a triangular factor instead of the table. The factor has the same lengths
//! and angles, so rows are read only once.

use super::triangle::Triangle;

/// A candidate is collinear if orthogonalization against the selected ones leaves less than this share of its
/// squares.
const COLLINEAR_SHARE: f64 = 1e-18;

/// The target is fully explained if less than this share of its squares remains. The rest is rounding error.
const ROUNDING_SHARE: f64 = 1e-24;

/// Information criterion, which balances the fit of a model against its number of terms; lower is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Criterion {
    /// Akaike criterion: `n ln(SSE / n) + 2 p`.
    Aic,
    /// Bayesian (Schwarz) criterion: `n ln(SSE / n) + p ln n`.
    Bic,
}

impl Criterion {
    fn value(self, rows: usize, terms: usize, squares: f64) -> f64 {
        let (rows, terms) = (rows as f64, terms as f64);
        let price = match self {
            Self::Aic => 2.0,
            Self::Bic => rows.ln(),
        };
        rows * (squares / rows).ln() + price * terms
    }
}

/// Selects columns from the factor of a table with `rows` rows, and returns them in the order of selection.
/// It selects `most` columns, or fewer if another one does not improve the criterion or the target is fully
/// explained.
pub(super) fn select(
    triangle: &Triangle,
    rows: usize,
    most: usize,
    criterion: Option<Criterion>,
) -> Vec<usize> {
    let width = triangle.width();
    let mut target: Vec<f64> = (0..width).map(|k| triangle.row(k)[width]).collect();
    let mut columns: Vec<Vec<f64>> =
        (0..width).map(|j| (0..width).map(|k| triangle.row(k)[j]).collect()).collect();
    let lengths: Vec<f64> = columns.iter().map(|column| dot(column, column)).collect();
    let total = dot(&target, &target) + triangle.residual();
    let mut picked = Vec::new();
    let mut best = f64::INFINITY;
    while picked.len() < most {
        let mut winner: Option<(usize, f64)> = None;
        for (at, column) in columns.iter().enumerate() {
            let squares = dot(column, column);
            if squares > COLLINEAR_SHARE * lengths[at] {
                let explained = dot(column, &target).powi(2) / squares;
                // Of equal candidates the earlier one wins, which has the lower degree.
                if winner.is_none_or(|(_, most)| explained > most) {
                    winner = Some((at, explained));
                }
            }
        }
        let Some((at, _)) = winner else { break };
        let column = std::mem::replace(&mut columns[at], vec![0.0; width]);
        remove(&mut target, &column);
        let squares = dot(&target, &target) + triangle.residual();
        if let Some(criterion) = criterion {
            let value = criterion.value(rows, picked.len() + 1, squares);
            if value >= best {
                break;
            }
            best = value;
        }
        picked.push(at);
        if squares <= ROUNDING_SHARE * total {
            break;
        }
        for other in &mut columns {
            remove(other, &column);
        }
    }
    picked
}

/// Removes the component of `vector` along `direction`.
fn remove(vector: &mut [f64], direction: &[f64]) {
    let share = dot(vector, direction) / dot(direction, direction);
    for (value, along) in vector.iter_mut().zip(direction) {
        *value -= share * along;
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of length 1, 2 and 3 along the axes, and targets (3, 2, 1). They reduce the error by 9, 4 and
    /// 1, whatever their lengths. The fourth column repeats the first.
    fn axes() -> Triangle {
        let mut triangle = Triangle::new(4, 0.0);
        for mut row in [[1.0, 0.0, 0.0, 1.0, 3.0], [0.0, 2.0, 0.0, 0.0, 2.0], [0.0, 0.0, 3.0, 0.0, 1.0]] {
            triangle.add_row(&mut row);
        }
        triangle
    }

    #[test]
    fn picks_by_error_reduction() {
        assert_eq!(select(&axes(), 3, 2, None), [0, 1]);
        assert_eq!(select(&axes(), 3, 9, None), [0, 1, 2]);
    }

    /// With 3 rows, AIC is 3 ln(5/3) + 2 = 3.53 after one term and 3 ln(1/3) + 4 = 0.70 after two; a third
    /// term fits exactly. BIC penalizes a term by only ln 3.
    #[test]
    fn stops_where_a_term_costs_more_than_it_explains() {
        assert_eq!(select(&axes(), 3, 9, Some(Criterion::Bic)), [0, 1, 2]);
        let mut noisy = axes();
        noisy.add_row(&mut [0.0, 0.0, 0.0, 0.0, 6.0]);
        // SSE is 41, 37, 36 with 4 rows: a gain of 4 ln(37/41) = -0.41 is less than the penalty of 2.
        assert_eq!(select(&noisy, 4, 9, Some(Criterion::Aic)), [0]);
    }
}
