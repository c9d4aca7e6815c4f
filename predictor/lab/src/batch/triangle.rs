//! Least squares by orthogonal rotations, row by row.
//!
//! Each row is rotated (Givens) into the triangular factor `R` of the table so far, `[X | y] = Q [R | q]`.
//! This avoids the normal equations, which square the condition number. Only the triangle is stored, whatever
//! the number of rows.

/// A column is a linear combination of the earlier columns if they leave less than this share of it.
const RANK_TOLERANCE: f64 = 1e-10;

/// Triangular factor of a table with targets.
#[derive(Debug, Clone)]
pub(super) struct Triangle {
    width: usize,
    /// `width` rows of `width + 1`: the upper triangle `R`, and `q` as the last column.
    rows: Vec<f64>,
}

impl Triangle {
    /// Creates the factor of an empty table. `ridge` adds `ridge * |coefficients|^2` to the objective.
    pub fn new(width: usize, ridge: f64) -> Self {
        let mut rows = vec![0.0; width * (width + 1)];
        rows.iter_mut().step_by(width + 2).for_each(|diagonal| *diagonal = ridge.sqrt());
        Self { width, rows }
    }

    /// Adds a row: its `width` values and then its target. The contents of `row` are undefined afterwards.
    pub fn add_row(&mut self, row: &mut [f64]) {
        let stride = self.width + 1;
        for k in 0..self.width {
            if row[k] == 0.0 {
                continue;
            }
            let pivot = &mut self.rows[k * stride + k..(k + 1) * stride];
            let length = pivot[0].hypot(row[k]);
            let (cos, sin) = (pivot[0] / length, row[k] / length);
            for (pivot, value) in pivot.iter_mut().zip(&mut row[k..]) {
                (*pivot, *value) = (cos * *pivot + sin * *value, cos * *value - sin * *pivot);
            }
        }
    }

    /// Returns the coefficients of least squares. A column that is a linear combination of earlier columns
    /// gets 0.
    pub fn solve(&self) -> Vec<f64> {
        let mut coefficients = vec![0.0; self.width];
        for k in (0..self.width).rev() {
            let row = self.row(k);
            let known: f64 = (k + 1..self.width).map(|j| row[j] * coefficients[j]).sum();
            if row[k].abs() > RANK_TOLERANCE * self.column_norm(k) {
                coefficients[k] = (row[self.width] - known) / row[k];
            }
        }
        coefficients
    }

    /// Returns row `k` of `[R | q]`; its first `k` values are 0.
    fn row(&self, k: usize) -> &[f64] {
        let stride = self.width + 1;
        &self.rows[k * stride..(k + 1) * stride]
    }

    fn column_norm(&self, k: usize) -> f64 {
        (0..=k).map(|i| self.row(i)[k].powi(2)).sum::<f64>().sqrt()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// At the solution the residuals are orthogonal to every column.
        #[test]
        fn residuals_are_orthogonal(table in prop::collection::vec(prop::array::uniform4(-1.0..1.0f64), 3..30)) {
            let mut triangle = Triangle::new(3, 0.0);
            for row in &table {
                triangle.add_row(&mut row.clone());
            }
            let beta = triangle.solve();
            let errors: Vec<f64> =
                table.iter().map(|row| row[3] - (0..3).map(|j| beta[j] * row[j]).sum::<f64>()).collect();
            let size: f64 = beta.iter().map(|value| value.abs()).sum::<f64>() + 1.0;
            for j in 0..3 {
                let product: f64 = table.iter().zip(&errors).map(|(row, error)| row[j] * error).sum();
                prop_assert!(product.abs() < 1e-9 * size, "column {j}: {product}");
            }
        }
    }

    /// y = 2 a, with the additional columns b = 3 a and c = 0.
    #[test]
    fn combinations_and_zeros_are_harmless() {
        let mut triangle = Triangle::new(3, 0.0);
        for k in 1..9 {
            let a = f64::from(k) / 7.0;
            triangle.add_row(&mut [a, 3.0 * a, 0.0, 2.0 * a]);
        }
        let beta = triangle.solve();
        assert!((beta[0] - 2.0).abs() < 1e-12 && beta[1..] == [0.0, 0.0], "{beta:?}");
    }

    /// One column: beta = x'y / (x'x + ridge) = 10 / (5 + 5).
    #[test]
    fn ridge_shrinks() {
        let mut triangle = Triangle::new(1, 5.0);
        triangle.add_row(&mut [1.0, 2.0]);
        triangle.add_row(&mut [2.0, 4.0]);
        assert!((triangle.solve()[0] - 1.0).abs() < 1e-12);
    }
}
