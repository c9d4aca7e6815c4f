//! In-place Cholesky factorization of a symmetric positive definite matrix: the inner step of
//! Levenberg-Marquardt.
//!
//! Matrices are row-major upper triangles. Every inner loop runs along a row, so it vectorises.

/// Replaces the upper triangle of `matrix` (`size` by `size`) by `U` with `U'U = matrix`. Returns false if
/// the matrix is not positive definite; its content is then undefined.
pub(super) fn factor(matrix: &mut [f64], size: usize) -> bool {
    for k in 0..size {
        let (above, below) = matrix.split_at_mut((k + 1) * size);
        let row = &mut above[k * size + k..];
        let pivot = row[0].sqrt();
        // Written this way so that NaN also fails.
        if !(pivot > 0.0 && pivot.is_finite()) {
            return false;
        }
        row.iter_mut().for_each(|value| *value /= pivot);
        for i in k + 1..size {
            let share = row[i - k];
            let other = &mut below[(i - k - 1) * size + i..(i - k) * size];
            for (value, along) in other.iter_mut().zip(&row[i - k..]) {
                *value -= share * along;
            }
        }
    }
    true
}

/// Solves `U'U x = b` in place of `b`.
pub(super) fn solve(upper: &[f64], size: usize, b: &mut [f64]) {
    solve_transposed(upper, size, b);
    for k in (0..size).rev() {
        let row = &upper[k * size + k..(k + 1) * size];
        let known: f64 = row[1..].iter().zip(&b[k + 1..]).map(|(value, x)| value * x).sum();
        b[k] = (b[k] - known) / row[0];
    }
}

/// Solves `U' x = b` in place of `b`.
fn solve_transposed(upper: &[f64], size: usize, b: &mut [f64]) {
    for k in 0..size {
        let row = &upper[k * size + k..(k + 1) * size];
        let x = b[k] / row[0];
        b[k] = x;
        for (value, along) in b[k + 1..].iter_mut().zip(&row[1..]) {
            *value -= x * along;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [[4, 2], [2, 5]] = U'U with U = [[2, 1], [0, 2]].
    #[test]
    fn by_hand() {
        let mut matrix = [4.0, 2.0, f64::NAN, 5.0];
        assert!(factor(&mut matrix, 2));
        assert_eq!([matrix[0], matrix[1], matrix[3]], [2.0, 1.0, 2.0]);
        let mut b = [8.0, 16.0];
        solve(&matrix, 2, &mut b);
        assert_eq!(b, [0.5, 3.0]);
    }

    #[test]
    fn indefinite_matrices_are_refused() {
        assert!(!factor(&mut [1.0, 2.0, 2.0, 1.0], 2));
        assert!(!factor(&mut [f64::NAN], 1));
    }
}
