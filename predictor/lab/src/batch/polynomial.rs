//! Polynomial NARX: a linear model of monomials of the regressors.

use evenstep_core::forecast::fit::{Dataset, FitError, Regression, check, setting};
use evenstep_core::forecast::scaling::Scaling;
use evenstep_core::predict_rows;
use linfa::traits::Fit;
use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};

use super::frols::{Criterion, select};
use super::monomials::Monomials;
use super::triangle::Triangle;

/// Maximum degree.
pub const DEGREE_MAX: usize = 9;

/// Maximum number of monomials from which a model selects.
pub const CANDIDATES_MAX: usize = 1000;

/// Minimum number of rows per candidate for which [`Terms::Automatic`] keeps all candidates.
const ROWS_PER_CANDIDATE: usize = 100;

/// Maximum number of terms that [`Terms::Automatic`] selects.
const PICKED_MAX: usize = 15;

/// Ridge of [`Terms::Automatic`]: nearly ordinary least squares, except for monomials that are almost
/// collinear.
const RIDGE: f64 = 1e-9;

/// A smaller coefficient is rounding error, with all variables scaled to within -1 and 1. Later terms then
/// explain the whole effect of the term.
const NEGLIGIBLE: f64 = 1e-12;

/// Selection of the monomials. Selected monomials with a coefficient of 0 are dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Terms {
    /// All monomials (ridge 1e-9) if there are at least 100 rows for each, so that none can be fitted to
    /// noise. Otherwise up to 15 monomials, selected by AIC.
    Automatic,
    /// All monomials, by least squares with this ridge (at least 0). Variables are scaled to within -1 and 1.
    All {
        /// Weight of the squared coefficients.
        ridge: f64,
    },
    /// Monomials selected by error reduction ratio until another one does not improve the criterion.
    Picked {
        /// The criterion.
        criterion: Criterion,
        /// Maximum number of terms; at least 1.
        most: usize,
    },
    /// This number of monomials (at least 1), selected by error reduction ratio.
    Count(usize),
}

/// Recipe of a polynomial NARX model.
///
/// Minimizes `sum (y - sum_m c_m prod x)^2` over the coefficients of monomials of the regressors.
///
/// | setting | default | meaning | range |
/// |---|---|---|---|
/// | `degree` | | highest degree of a monomial | 1 to 9, with at most 1000 monomials |
/// | `terms` | [`Terms::Automatic`] | selection of the monomials | |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Polynomial {
    degree: usize,
    terms: Terms,
}

impl Polynomial {
    /// Creates a recipe of this degree.
    ///
    /// # Errors
    /// [`FitError::Setting`] if the degree is out of range.
    pub fn new(degree: usize) -> Result<Self, FitError> {
        setting("degree", degree as f64, "from 1 to 9", (1..=DEGREE_MAX).contains(&degree))?;
        Ok(Self { degree, terms: Terms::Automatic })
    }

    /// Returns the same recipe with another selection of terms.
    ///
    /// # Errors
    /// [`FitError::Setting`] if the ridge or the number of terms is out of range.
    pub fn with_terms(self, terms: Terms) -> Result<Self, FitError> {
        match terms {
            Terms::Automatic => {}
            Terms::All { ridge } => {
                setting("ridge", ridge, "finite and at least 0", ridge >= 0.0 && ridge.is_finite())?;
            }
            Terms::Picked { most, .. } | Terms::Count(most) => {
                setting("terms", most as f64, "at least 1", most >= 1)?;
            }
        }
        Ok(Self { terms, ..self })
    }
}

/// A fitted polynomial NARX model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FittedPolynomial {
    scaling: Scaling,
    terms: Vec<Term>,
}

/// A term: its coefficient times the product of its factors, in scaled units.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Term {
    factors: Vec<usize>,
    coefficient: f64,
}

impl FittedPolynomial {
    /// Returns the terms in the order of selection: the regressors of each monomial, and the coefficient in
    /// the units of the data.
    pub fn terms(&self) -> impl Iterator<Item = (&[usize], f64)> {
        self.terms.iter().map(|term| {
            let units: f64 = term.factors.iter().map(|factor| self.scaling.columns[*factor].unit()).product();
            (term.factors.as_slice(), term.coefficient * self.scaling.target.unit() / units)
        })
    }
}

impl Fit<Array2<f64>, Array1<f64>, FitError> for Polynomial {
    type Object = FittedPolynomial;

    fn fit(&self, dataset: &Dataset) -> Result<FittedPolynomial, FitError> {
        let (regressors, targets) = (dataset.records(), dataset.targets());
        let monomials =
            Monomials::up_to(self.degree, regressors.ncols(), CANDIDATES_MAX).ok_or(FitError::Setting {
                name: "degree",
                value: self.degree as f64,
                rule: "at most 1000 monomials of the regressors up to this degree",
            })?;
        let (rows, candidates) = (regressors.nrows(), monomials.count());
        let (terms, ridge) = match self.terms {
            Terms::Automatic if rows >= ROWS_PER_CANDIDATE * candidates => {
                (Terms::All { ridge: RIDGE }, RIDGE)
            }
            Terms::Automatic => (Terms::Picked { criterion: Criterion::Aic, most: PICKED_MAX }, 0.0),
            Terms::All { ridge } => (self.terms, ridge),
            terms => (terms, 0.0),
        };
        let needed = match terms {
            Terms::Picked { most, .. } | Terms::Count(most) => most.min(candidates) + 1,
            Terms::All { .. } | Terms::Automatic => candidates,
        };
        check(dataset, needed)?;

        let scaling = Scaling::max_abs(regressors, targets);
        let mut triangle = Triangle::new(candidates, ridge);
        let (mut scaled, mut values) = (Vec::new(), Vec::with_capacity(candidates + 1));
        for (row, target) in regressors.rows().into_iter().zip(targets) {
            scaled.clear();
            scaled.extend(scaling.row(row));
            values.clear();
            monomials.values(&scaled, &mut values);
            values.push(scaling.target.scaled(*target));
            triangle.add_row(&mut values);
        }
        let picked = match terms {
            Terms::Picked { criterion, most } => select(&triangle, rows, most, Some(criterion)),
            Terms::Count(most) => select(&triangle, rows, most, None),
            Terms::All { .. } | Terms::Automatic => (0..candidates).collect(),
        };
        let coefficients = triangle.only(&picked).solve();
        let terms = picked
            .iter()
            .zip(coefficients)
            .filter(|(_, coefficient)| coefficient.abs() > NEGLIGIBLE)
            .map(|(at, coefficient)| Term { factors: monomials.factors(*at), coefficient })
            .collect();
        Ok(FittedPolynomial { scaling, terms })
    }
}

impl Regression for FittedPolynomial {
    fn predict_row(&self, regressors: &[f64]) -> f64 {
        let scaled: Vec<f64> = self.scaling.row(regressors).collect();
        let product = |term: &Term| term.factors.iter().map(|factor| scaled[*factor]).product::<f64>();
        self.scaling.target.unscaled(self.terms.iter().map(|term| term.coefficient * product(term)).sum())
    }
}

predict_rows!(FittedPolynomial);
