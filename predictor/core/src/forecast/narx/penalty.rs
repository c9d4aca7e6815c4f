//! The penalty on the weights.

use super::cholesky;

/// Range of the penalty, per squared weight against one squared error, where the data decide on it.
const PENALTIES: (f64, f64) = (1e-10, 1e2);

/// Where it then starts.
const PENALTY_START: f64 = 1e-2;

/// What weighs the weights against the errors: the penalty in `sum e^2 + penalty sum w^2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// This one (0 and up) throughout.
    Fixed(f64),
    /// The first restart has the first penalty (0 and up), each one after it so many times that of the one before: the
    /// rows that are held out also choose how stiff the network is.
    Ladder {
        /// Penalty of the first restart.
        first: f64,
        /// From one restart to the next; above 0.
        factor: f64,
    },
    /// The one under which the data are most probable, found on the way (MacKay's evidence, as in Foresee and Hagan's
    /// Bayesian regularisation).
    Evidence,
}

impl Decay {
    /// What holds for one restart, counted from 0.
    pub(super) fn of(self, restart: usize) -> Self {
        match self {
            Self::Ladder { first, factor } => Self::Fixed(first * factor.powf(restart as f64)),
            same => same,
        }
    }

    /// The penalty at the start of a training.
    pub(super) fn start(self) -> f64 {
        match self {
            Self::Fixed(penalty) | Self::Ladder { first: penalty, .. } => penalty,
            Self::Evidence => PENALTY_START,
        }
    }
}

/// The next estimate of the most probable penalty, from `J'J` and the squared errors of so many rows: `gamma` weights are
/// determined by the data, and share their squares as the degrees of freedom that are left share the squared errors.
/// `factor` and `scratch` are room to work in.
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

/// What the penalty weighs.
pub(super) fn sum_of_squares(weights: &[f64]) -> f64 {
    weights.iter().map(|weight| weight * weight).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One weight of 2 with curvature 9 at a penalty of 1: gamma = 1 - 1 / 10 = .9, and with squared errors of 12 over 4
    /// rows the next penalty is .9 * 12 / (3.1 * 4).
    #[test]
    fn by_hand() {
        let next = most_probable(1.0, (&[9.0], 12.0, 4), &[2.0], &mut [0.0], &mut [0.0]);
        assert!((next - 0.9 * 12.0 / (3.1 * 4.0)).abs() < 1e-12, "{next}");
    }

    /// Weights of 0 would ask for an endless penalty, errors of 0 for none.
    #[test]
    fn stays_in_range() {
        let next =
            |squares, weight| most_probable(1.0, (&[9.0], squares, 4), &[weight], &mut [0.0], &mut [0.0]);
        assert_eq!((next(0.0, 1.0), next(1e9, 1e-9), next(1.0, 0.0)), (1e-10, 1e2, 1.0));
    }
}
