//! Batch models by name.

use evenstep_core::forecast::fit::FitError;
use evenstep_core::forecast::narx::{Narx, Settings};

use crate::batch::{Arx, ElasticNet, Ols, Polynomial, Recipe, Ridge, Terms};

/// Name of a batch model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecipeName {
    /// Least squares with a small ridge, implemented in this crate.
    Arx,
    /// Ordinary least squares.
    Ols,
    /// Least squares with a ridge penalty.
    Ridge,
    /// Least squares with an L1 and an L2 penalty.
    ElasticNet,
    /// Polynomial of the regressors.
    Polynomial,
    /// Neural network with tanh units.
    Narx,
}

impl RecipeName {
    /// Models that a rolling backtest refits. (There, `arx` is the streaming model.)
    pub const ALL: [Self; 5] = [Self::Ols, Self::Ridge, Self::ElasticNet, Self::Polynomial, Self::Narx];

    /// Name of the model.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Arx => "arx",
            Self::Ols => "ols",
            Self::Ridge => "ridge",
            Self::ElasticNet => "elastic_net",
            Self::Polynomial => "poly",
            Self::Narx => "narx",
        }
    }

    /// Returns the model in [`RecipeName::ALL`] with this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|recipe| recipe.as_str() == name)
    }

    /// Whether the model grows so fast with its inputs that it uses only drivers of a known role,
    /// if the job has such drivers.
    pub fn limits_drivers(self) -> bool {
        matches!(self, Self::Polynomial | Self::Narx)
    }

    /// Returns the recipe with its settings.
    ///
    /// # Errors
    /// [`FitError::Setting`] if a setting is out of range.
    pub fn recipe(self, tuning: Tuning) -> Result<Box<dyn Recipe>, FitError> {
        Ok(match self {
            Self::Arx => Box::new(Arx::default()),
            Self::Ols => Box::new(Ols),
            Self::Ridge => Box::new(Ridge::default()),
            Self::ElasticNet => Box::new(ElasticNet::default()),
            Self::Polynomial => Box::new(Polynomial::new(tuning.degree)?.with_terms(tuning.terms)?),
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
    /// Degree of a polynomial.
    pub degree: usize,
    /// Selection of the polynomial's terms.
    pub terms: Terms,
    /// Random seed.
    pub seed: u64,
    /// Whether a fit may be slow: one fit per system instead of many in a walk.
    pub thorough: bool,
}
