//! The penalty on the weights (weight decay).

use super::cholesky;

/// Range of the penalty if it is estimated from the data, per squared weight relative to one squared error.
const PENALTIES: (f64, f64) = (1e-10, 1e2);

/// Initial penalty if it is estimated from the data.
const PENALTY_START: f64 = 1e-2;

/// The penalty in `sum e^2 + penalty sum w^2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// A constant penalty, at least 0.
    Fixed(f64),
    /// A geometric sequence over the restarts. The held-out rows then also select the stiffness of the
    /// network.
    Geometric {
        /// Penalty of the first restart, at least 0.
        first: f64,
        /// Factor from one restart to the next; above 0.
        factor: f64,
    },
    /// The penalty with the highest probability given the data, estimated during training (MacKay's evidence,
    /// as in Foresee and Hagan's Bayesian regularisation).
    Evidence,
}

impl Decay {
    /// Returns the penalty of one restart, counted from 0.
    pub(super) fn of(self, restart: usize) -> Self {
        match self {
            Self::Geometric { first, factor } => Self::Fixed(first * factor.powf(restart as f64)),
            same => same,
        }
    }

    /// Returns the penalty at the start of training.
    pub(super) fn start(self) -> f64 {
        match self {
            Self::Fixed(penalty) | Self::Geometric { first: penalty, .. } => penalty,
            Self::Evidence => PENALTY_START,
        }
    }
}

/// Returns the next estimate of the most probable penalty, from `J'J` and the squared errors of the rows.
/// `gamma` is the number of weights that are determined by the data. The estimate is the mean squared error
/// per remaining degree of freedom over the mean squared weight per determined weight. `factor` and `scratch`
/// are buffers.
pub(super) fn most_probable(
    penalty: f64,
    (curvature, squares, rows): (&[f64], f64, usize),
    weights: &[f64],
    factor: &mut [f64],
    scratch: &mut [f64],
) -> f64 {
    let size = weights.len();
    factor.copy_from_slice(curvature);
    factor.iter_mut().step_by(size + 1).for_each(|value| *value += penalty);
    if !cholesky::factor(factor, size) {
        return penalty;
    }
    let gamma = size as f64 - penalty * cholesky::inverse_trace(factor, size, scratch);
    let free = (rows as f64 - gamma).max(1.0);
    let next = gamma * squares / (free * sum_of_squares(weights));
    if next.is_finite() { next.clamp(PENALTIES.0, PENALTIES.1) } else { penalty }
}

/// Returns the sum of squared weights that the penalty multiplies.
pub(super) fn sum_of_squares(weights: &[f64]) -> f64 {
    weights.iter().map(|weight| weight * weight).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One weight of 2 with curvature 9 at a penalty of 1: gamma = 1 - 1 / 10 = 0.9. With squared errors of
    /// 12 over 4 rows, the next penalty is 0.9 * 12 / (3.1 * 4).
    #[test]
    fn by_hand() {
        let next = most_probable(1.0, (&[9.0], 12.0, 4), &[2.0], &mut [0.0], &mut [0.0]);
        assert!((next - 0.9 * 12.0 / (3.1 * 4.0)).abs() < 1e-12, "{next}");
    }

    /// Weights of 0 would give an infinite penalty, and errors of 0 a penalty of 0.
    #[test]
    fn stays_in_range() {
        let next =
            |squares, weight| most_probable(1.0, (&[9.0], squares, 4), &[weight], &mut [0.0], &mut [0.0]);
        assert_eq!((next(0.0, 1.0), next(1e9, 1e-9), next(1.0, 0.0)), (1e-10, 1e2, 1.0));
    }
}
