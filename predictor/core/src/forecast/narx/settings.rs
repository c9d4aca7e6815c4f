//! What a NARX fit may be told, and the two sets of settings that are used.

use super::penalty::Decay;
use crate::forecast::fit::{FitError, setting};

/// Settings of a NARX fit; [`Narx::new`](super::Narx::new) checks them.
///
/// | setting | refit | identification | range |
/// |---|---|---|---|
/// | `hidden` | 8 | 16 | 1 to 64 |
/// | `weights` | 130 | 160 | 10 to 10 000 |
/// | `restarts` | 2 | 16 | 1 to 100 |
/// | `committee` | 1 | 16 | 1 to `restarts` |
/// | `iterations` | 12 | 280 | 1 to 10 000 |
/// | `decay` | 1 and 10 | evidence | 0 and up |
/// | `holdout` | .2 | 0 | 0 to .5 |
/// | `rows` | 2000 | 4000 | 10 to 1 000 000 |
/// | `seed` | 1 | 1 | any |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Hidden units at most.
    pub hidden: usize,
    /// Weights of a network at most: with more regressors it has fewer units, at least one.
    pub weights: usize,
    /// Networks that are trained, each from its own random weights.
    pub restarts: usize,
    /// How many of them, the best, make up the model: its answer is the mean of the middle half of theirs. Where no rows
    /// are held out, keep them all: on noisy chaos (the Santa Fe laser) those that fit the training rows best forecast
    /// worse than all together.
    pub committee: usize,
    /// Levenberg-Marquardt iterations per network at most.
    pub iterations: usize,
    /// The penalty on the weights.
    pub decay: Decay,
    /// Share of the rows, the last ones, that are held out: training stops where they are predicted best, and they decide
    /// which networks are best. With 0 the rows that are fitted decide.
    pub holdout: f64,
    /// Rows that are used at most; of a longer history, every so many-th.
    pub rows: usize,
    /// Seed of the random weights.
    pub seed: u64,
}

impl Settings {
    /// Quick, for refits beside a running service: about 15 ms for 600 rows of 12 regressors.
    pub const REFIT: Self = Self {
        hidden: 8,
        weights: 130,
        restarts: 2,
        committee: 1,
        iterations: 12,
        decay: Decay::Ladder { first: 1.0, factor: 10.0 },
        holdout: 0.2,
        rows: 2000,
        seed: 1,
    };

    /// Thorough, for the identification of a system: seconds to a minute.
    pub const IDENTIFICATION: Self = Self {
        hidden: 16,
        weights: 160,
        restarts: 16,
        committee: 16,
        iterations: 280,
        decay: Decay::Evidence,
        holdout: 0.0,
        rows: 4000,
        seed: 1,
    };

    pub(super) fn check(&self) -> Result<(), FitError> {
        let counts: [(_, _, _, std::ops::RangeInclusive<usize>); 6] = [
            ("hidden", self.hidden, "from 1 to 64", 1..=64),
            ("weights", self.weights, "from 10 to 10000", 10..=10_000),
            ("restarts", self.restarts, "from 1 to 100", 1..=100),
            ("committee", self.committee, "from 1 to the restarts", 1..=self.restarts),
            ("iterations", self.iterations, "from 1 to 10000", 1..=10_000),
            ("rows", self.rows, "from 10 to 1000000", 10..=1_000_000),
        ];
        for (name, value, rule, range) in counts {
            setting(name, value as f64, rule, range.contains(&value))?;
        }
        setting("holdout", self.holdout, "from 0 to 0.5", (0.0..=0.5).contains(&self.holdout))?;
        let penalty = self.decay.start();
        setting("decay", penalty, "0 or more, and finite", penalty >= 0.0 && penalty.is_finite())?;
        if let Decay::Ladder { factor, .. } = self.decay {
            setting("decay factor", factor, "above 0, and finite", factor > 0.0 && factor.is_finite())?;
        }
        Ok(())
    }
}
