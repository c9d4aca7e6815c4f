//! The penalty on the weights (weight decay).

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
}

impl Decay {
    /// Returns the penalty of one restart, counted from 0.
    pub(super) fn of(self, restart: usize) -> f64 {
        match self {
            Self::Fixed(penalty) => penalty,
            Self::Geometric { first, factor } => first * factor.powf(restart as f64),
        }
    }
}

/// Returns the sum of squared weights that the penalty multiplies.
pub(super) fn sum_of_squares(weights: &[f64]) -> f64 {
    weights.iter().map(|weight| weight * weight).sum()
}
