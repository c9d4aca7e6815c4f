//! Candidate forms of a curve.

use serde::{Deserialize, Serialize};

use super::knowledge::Kind;
use super::shape::Curve;

/// Fixed shares of a linear form.
const FIXED_SHARES: [f64; 12] = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95];

/// Fixed shares of a saturating form. They determine the slope beyond the saturation point.
const FIXED_SHARES_SATURATING: [f64; 3] = [0.0, 0.25, 0.5];

/// Number of saturation points on either side of the reference: the reference times the square root of 2 to
/// the power of -STEPS to STEPS.
const SATURATION_STEPS: i32 = 8;

/// Sizes of tiles in samples, for staircases.
const TILES: [u64; 5] = [8, 16, 32, 64, 128];

/// Prior cost in log likelihood of a fixed share of 1: the prior favours a proportional form.
const PRIOR_FIXED: f64 = 3.0;

/// Fixed share below which a linear form counts as proportional.
const FIXED_SHARE_MIN: f64 = 0.05;

/// Prior cost in log likelihood of a saturation point.
const PRIOR_SATURATING: f64 = 2.0;

/// Prior cost in log likelihood of a staircase.
const PRIOR_TILED: f64 = 3.0;

/// `time(x) / time(unit) = f + (1 - f) max(x, s) / max(unit, s)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Form {
    /// f: share of the time at the unit that does not depend on the batch.
    pub fixed_share: f64,
    /// s: samples up to which time is flat; 0 for a straight line.
    pub saturation: u64,
    /// Whether the flat part repeats: a staircase of tiles of s samples.
    pub is_tiled: bool,
}

impl Form {
    /// Returns all forms around a unit, in a fixed order: lines first.
    pub fn all(unit: u64) -> impl Iterator<Item = Self> {
        let lines = FIXED_SHARES.map(|fixed_share| Self { fixed_share, saturation: 0, is_tiled: false });
        let saturating = (-SATURATION_STEPS..=SATURATION_STEPS).flat_map(move |step| {
            let saturation = (unit as f64 * 2.0f64.powf(f64::from(step) / 2.0)).round() as u64;
            let saturation = saturation.max(1);
            FIXED_SHARES_SATURATING.map(|fixed_share| Self { fixed_share, saturation, is_tiled: false })
        });
        // A larger tile cannot be distinguished from a saturation point.
        let tiles = TILES.into_iter().filter(move |tile| *tile <= unit);
        let tiles = tiles.map(|tile| Self { fixed_share: 0.0, saturation: tile, is_tiled: true });
        lines.into_iter().chain(saturating).chain(tiles)
    }

    /// Returns the prior cost in log likelihood.
    pub fn prior(&self) -> f64 {
        let of_kind = match self.kind() {
            Kind::Staircase => PRIOR_TILED,
            Kind::Saturating => PRIOR_SATURATING,
            Kind::Linear | Kind::Proportional => 0.0,
        };
        PRIOR_FIXED * self.fixed_share + of_kind
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self { is_tiled: true, .. } => Kind::Staircase,
            Self { saturation: 1.., .. } => Kind::Saturating,
            Self { fixed_share, .. } if *fixed_share < FIXED_SHARE_MIN => Kind::Proportional,
            Self { .. } => Kind::Linear,
        }
    }

    /// Whether this is a straight line.
    pub fn is_line(&self) -> bool {
        self.saturation == 0
    }

    /// Returns the curve of this form, in any unit of time; `unit` is the unit of the fixed share.
    pub fn curve(&self, unit: u64) -> Curve {
        if self.is_tiled {
            let tile = self.saturation as f64;
            return Curve::saturating(tile, self.saturation, 1.0).accumulating(self.saturation);
        }
        let (unit, saturation) = (unit as f64, self.saturation as f64);
        let per_sample = (1.0 - self.fixed_share) / unit.max(saturation);
        Curve::saturating(self.fixed_share + per_sample * saturation, self.saturation, per_sample)
    }
}
