//! Models of system identification, for comparison with published results (example `published_sets`). They are fitted once
//! to a range of rows, and then predict one value at a time.
//!
//! A recipe (an unfitted model) fits a [`Regression`](evenstep_core::forecast::fit::Regression) to regressors
//! and targets. The regression then predicts.
//!
//! - `recipe`: the trait of recipes
//! - `regressors`: lagged values of a system, with predictions one step ahead and in free run
//! - `triangle`: least squares by rotations
//! - `arx`: linear models; the other model is [`Narx`](evenstep_core::forecast::narx::Narx)

mod recipe;

mod regressors;

mod triangle;

mod arx;

pub use arx::{Arx, FittedArx};
pub use recipe::Recipe;
pub use regressors::{Lags, System};
