//! Batch models, which are fitted once to a range of rows and then predict one value at a time. Only
//! backtests use them. The batch model of the service is [`Narx`](evenstep_core::forecast::narx::Narx).
//!
//! A recipe (an unfitted model) fits a [`Regression`](evenstep_core::forecast::fit::Regression) to regressors
//! and targets. The regression then predicts.
//!
//! - `recipe`: the trait of recipes
//! - `regressors`: lagged values of a system, with predictions one step ahead and in free run
//! - `triangle`: least squares by rotations
//! - `arx`: linear models
//! - `library`: linear models of linfa
//! - `monomials`, `frols`, `polynomial`: polynomials and the selection of their terms

mod recipe;

mod regressors;

mod triangle;

mod arx;

mod library;

mod monomials;

mod frols;

mod polynomial;

pub use arx::{Arx, FittedArx};
pub use frols::Criterion;
pub use library::{ElasticNet, FittedLinear, Ols, Ridge};
pub use polynomial::{CANDIDATES_MAX, DEGREE_MAX, FittedPolynomial, Polynomial, Terms};
pub use recipe::Recipe;
pub use regressors::{Lags, System};
