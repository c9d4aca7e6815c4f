//! Batch models by name.

use evenstep_core::forecast::fit::FitError;
use evenstep_core::forecast::narx::{Narx, Settings};

use crate::batch::{Arx, Recipe};

/// Name of a batch model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecipeName {
    /// Least squares with a small ridge.
    Arx,
    /// Neural network with tanh units.
    Narx,
}

impl RecipeName {
    /// Returns the recipe with its settings.
    ///
    /// # Errors
    /// [`FitError::Setting`] if a setting is out of range.
    pub fn recipe(self, tuning: Tuning) -> Result<Box<dyn Recipe>, FitError> {
        Ok(match self {
            Self::Arx => Box::new(Arx::default()),
            Self::Narx => {
                let settings = if tuning.thorough { Settings::IDENTIFICATION } else { Settings::REFIT };
                Box::new(Narx::new(Settings { seed: tuning.seed, ..settings })?)
            }
        })
    }
}

/// User settings of batch models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// Random seed.
    pub seed: u64,
    /// Whether the fit may be slow.
    pub thorough: bool,
}
