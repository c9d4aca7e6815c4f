//! Settings of a NARX fit, and the values that the service uses.

use super::penalty::Decay;
use crate::forecast::fit::{FitError, setting};

/// Settings of a NARX fit. [`Narx::new`](super::Narx::new) checks them.
///
/// | setting | refit | range |
/// |---|---|---|
/// | `hidden` | 8 | 1 to 64 |
/// | `weights` | 130 | 10 to 10 000 |
/// | `restarts` | 2 | 1 to 100 |
/// | `committee` | 1 | 1 to `restarts` |
/// | `iterations` | 12 | 1 to 10 000 |
/// | `decay` | 1 and 10 | 0 and up |
/// | `holdout` | 0.2 | 0 to 0.5 |
/// | `rows` | 2000 | 10 to 1 000 000 |
/// | `seed` | 1 | any |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Maximum number of hidden units.
    pub hidden: usize,
    /// Maximum number of weights of a network. With more regressors it has fewer units, but at least one.
    pub weights: usize,
    /// Number of networks to train, each from its own random weights.
    pub restarts: usize,
    /// Number of networks, the best ones, in the model. The model's output is the mean of the middle half of
    /// their outputs. If no rows are held out, use all networks: on noisy chaos (the Santa Fe laser), the
    /// networks with the smallest training error forecast worse than all together.
    pub committee: usize,
    /// Maximum number of Levenberg-Marquardt iterations per network.
    pub iterations: usize,
    /// The penalty on the weights.
    pub decay: Decay,
    /// Share of the rows, at the end, that are held out. Training stops when their error is smallest, and
    /// they select the best networks. With 0, the fitted rows select them.
    pub holdout: f64,
    /// Maximum number of rows. A longer history is sampled at regular intervals.
    pub rows: usize,
    /// Seed of the random weights.
    pub seed: u64,
}

impl Settings {
    /// Fast settings for refits by a running service: about 15 ms for 600 rows of 12 regressors.
    pub const REFIT: Self = Self {
        hidden: 8,
        weights: 130,
        restarts: 2,
        committee: 1,
        iterations: 12,
        decay: Decay::Geometric { first: 1.0, factor: 10.0 },
        holdout: 0.2,
        rows: 2000,
        seed: 1,
    };

    pub(super) fn check(&self) -> Result<(), FitError> {
        let counts: [(_, _, _, std::ops::RangeInclusive<usize>); 6] = [
            ("hidden", self.hidden, "from 1 to 64", 1..=64),
            ("weights", self.weights, "from 10 to 10000", 10..=10_000),
            ("restarts", self.restarts, "from 1 to 100", 1..=100),
            ("committee", self.committee, "from 1 to restarts", 1..=self.restarts),
            ("iterations", self.iterations, "from 1 to 10000", 1..=10_000),
            ("rows", self.rows, "from 10 to 1000000", 10..=1_000_000),
        ];
        for (name, value, rule, range) in counts {
            setting(name, value as f64, rule, range.contains(&value))?;
        }
        setting("holdout", self.holdout, "from 0 to 0.5", (0.0..=0.5).contains(&self.holdout))?;
        let penalty = self.decay.of(0);
        setting("decay", penalty, "0 or more, and finite", penalty >= 0.0 && penalty.is_finite())?;
        if let Decay::Geometric { factor, .. } = self.decay {
            setting("decay factor", factor, "above 0, and finite", factor > 0.0 && factor.is_finite())?;
        }
        Ok(())
    }
}
