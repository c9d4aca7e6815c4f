//! Batch models by name.

use evenstep_core::forecast::fit::FitError;
use evenstep_core::forecast::narx::{Narx, Settings};

use crate::batch::{Arx, ElasticNet, Ols, Polynomial, Recipe, Ridge, Terms};

/// A batch model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecipeName {
    /// Least squares with a small ridge, of our own.
    Arx,
    /// Ordinary least squares.
    Ols,
    /// Least squares with a ridge.
    Ridge,
    /// Least squares with both penalties.
    ElasticNet,
    /// Products of the regressors.
    Polynomial,
    /// A net of tanh units.
    Narx,
}

impl RecipeName {
    /// All that a walk fits again and again. (There `arx` is the streaming one.)
    pub const ALL: [Self; 5] = [Self::Ols, Self::Ridge, Self::ElasticNet, Self::Polynomial, Self::Narx];

    /// Its name.
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

    /// Which of [`RecipeName::ALL`] is called so.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|recipe| recipe.as_str() == name)
    }

    /// Whether its size grows so fast with its inputs that only drivers of a known role are taken, where there are any.
    pub fn is_choosy(self) -> bool {
        matches!(self, Self::Polynomial | Self::Narx)
    }

    /// The recipe with its settings.
    ///
    /// # Errors
    /// [`FitError::Setting`] where a setting is out of range.
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

/// What the user may say about a batch model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// Degree of a polynomial.
    pub degree: usize,
    /// Which of its terms are kept.
    pub terms: Terms,
    /// Seed of what is drawn at random.
    pub seed: u64,
    /// Whether a fit may take its time: one for a system, rather than one of many in a walk.
    pub thorough: bool,
}
