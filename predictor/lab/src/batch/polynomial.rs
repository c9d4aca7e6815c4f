//! Polynomial NARX: a linear model of products of the regressors.

use evenstep_core::forecast::fit::{Dataset, FitError, Regression, check, setting};
use evenstep_core::forecast::scaling::Scaling;
use evenstep_core::predict_rows;
use linfa::traits::Fit;
use ndarray::{Array1, Array2};
use serde::{Deserialize, Serialize};

use super::frols::{Criterion, select};
use super::monomials::Monomials;
use super::triangle::Triangle;

/// Highest degree.
pub const DEGREE_MAX: usize = 9;

/// Most monomials that a model can choose from.
pub const CANDIDATES_MAX: usize = 1000;

/// Rows per candidate from which [`Terms::Automatic`] keeps them all.
const ROWS_PER_CANDIDATE: usize = 100;

/// Most terms that [`Terms::Automatic`] picks.
const PICKED_MAX: usize = 15;

/// Ridge of [`Terms::Automatic`]: plain least squares, but for products that nearly coincide.
const RIDGE: f64 = 1e-9;

/// A coefficient under this, everything scaled to within -1 and 1, is rounding: a later term explains all that its term
/// was picked for.
const NEGLIGIBLE: f64 = 1e-12;

/// Which of the monomials a model keeps; of these, what gets a coefficient of 0 is dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Terms {
    /// All of them (ridge 1e-9) where there are at least 100 rows for each: then none can be fitted to noise. Otherwise
    /// those picked by AIC, 15 at most.
    Automatic,
    /// All of them, by least squares with this ridge (0 and up), everything scaled to within -1 and 1.
    All {
        /// Weight of the squared coefficients.
        ridge: f64,
    },
    /// Those picked by error reduction ratio until a further one does not better the criterion.
    Picked {
        /// What decides.
        criterion: Criterion,
        /// How many at most; at least 1.
        most: usize,
    },
    /// So many (at least 1), picked by error reduction ratio.
    Count(usize),
}

/// The recipe of a polynomial NARX model.
///
/// Minimises `sum (y - sum_m c_m prod x)^2` over the coefficients of monomials of the regressors.
///
/// | setting | default | meaning | range |
/// |---|---|---|---|
/// | `degree` | | highest degree of a monomial | 1 to 9, with at most 1000 monomials |
/// | `terms` | [`Terms::Automatic`] | which of them are kept | |
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Polynomial {
    degree: usize,
    terms: Terms,
}

impl Polynomial {
    /// Of this degree.
    ///
    /// # Errors
    /// [`FitError::Setting`] for a degree out of range.
    pub fn new(degree: usize) -> Result<Self, FitError> {
        setting("degree", degree as f64, "from 1 to 9", (1..=DEGREE_MAX).contains(&degree))?;
        Ok(Self { degree, terms: Terms::Automatic })
    }

    /// The same, with another rule for its terms.
    ///
    /// # Errors
    /// [`FitError::Setting`] for a rule that no model can keep.
    pub fn with_terms(self, terms: Terms) -> Result<Self, FitError> {
        match terms {
            Terms::Automatic => {}
            Terms::All { ridge } => {
                setting("ridge", ridge, "0 or more, and finite", ridge >= 0.0 && ridge.is_finite())?;
            }
            Terms::Picked { most, .. } | Terms::Count(most) => {
                setting("terms", most as f64, "1 or more", most >= 1)?;
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

/// One term: its coefficient times the product of its factors, all scaled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Term {
    factors: Vec<usize>,
    coefficient: f64,
}

impl FittedPolynomial {
    /// Its terms in the order in which they were picked: the regressors whose product each is, and the coefficient in
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
            triangle.absorb(&mut values);
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
