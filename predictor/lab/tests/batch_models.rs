//! Batch models through the public API: known systems, and properties of every model.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use evenstep_core::forecast::fit::FitError;
use evenstep_core::forecast::narx::{Decay, FittedNarx, Narx, Settings};
use evenstep_lab::batch::{Arx, Lags, Recipe, System};
use linfa::Dataset;
use linfa::prelude::SingleTargetRegression;
use linfa::traits::{Fit, Predict};
use ndarray::{Array1, Array2, Axis};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A network that is fitted in milliseconds even without compiler optimization.
fn small_narx() -> Narx {
    Narx::new(Settings { hidden: 3, restarts: 2, committee: 2, iterations: 20, ..Settings::REFIT }).unwrap()
}

fn every_recipe() -> Vec<(&'static str, Box<dyn Recipe>)> {
    vec![
        ("arx", Box::new(Arx::default())),
        ("arx without ridge", Box::new(Arx::new(0.0).unwrap())),
        ("narx", Box::new(small_narx())),
    ]
}

fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    2.0 * rng.random::<f64>() - 1.0
}

/// A table of independent columns, with targets that are linear in them plus noise.
fn linear_table(rows: usize, width: usize) -> (Array2<f64>, Array1<f64>) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let regressors = Array2::from_shape_fn((rows, width), |(_, column)| {
        3.0 * column as f64 + (1.0 + column as f64) * uniform(&mut rng)
    });
    let target = |row: ndarray::ArrayView1<f64>| 5.0 + row.sum() - 2.0 * row[0];
    let targets = regressors.rows().into_iter().map(|row| target(row) + 0.1 * uniform(&mut rng)).collect();
    (regressors, targets)
}

/// Recipes and models compose with linfa's datasets and metrics.
#[test]
fn composes_with_linfa() {
    let (regressors, targets) = linear_table(200, 3);
    let dataset = Dataset::new(regressors, targets);
    let r2 = |predictions: Array1<f64>| predictions.r2(&dataset).unwrap();
    assert!(r2(Arx::default().fit(&dataset).unwrap().predict(&dataset)) > 0.99);
    assert!(r2(small_narx().fit(&dataset).unwrap().predict(&dataset)) > 0.99);
}

/// Mackey-Glass series with tau 17 by Euler steps of 0.1: chaotic and strongly nonlinear.
fn mackey_glass(rows: usize) -> Vec<f64> {
    const STEPS: usize = 10;
    let mut x = vec![1.2f64; 17 * STEPS + 1];
    for k in x.len()..(rows + 300) * STEPS {
        let (now, delayed) = (x[k - 1], x[k - 1 - 17 * STEPS]);
        x.push(now + (0.2 * delayed / (1.0 + delayed.powi(10)) - 0.1 * now) / STEPS as f64);
    }
    x.into_iter().step_by(STEPS).skip(300).collect()
}

/// Root of the squared error divided by the squared error of the mean.
fn ndei(truth: &[f64], predictions: &[f64]) -> f64 {
    let mean = truth.iter().sum::<f64>() / truth.len() as f64;
    let squares = |other: &dyn Fn(usize) -> f64| -> f64 {
        truth.iter().enumerate().map(|(k, value)| (value - other(k)).powi(2)).sum()
    };
    (squares(&|k| predictions[k]) / squares(&|_| mean)).sqrt()
}

/// On a nonlinear system the network is more than ten times as accurate as the linear model.
#[test]
fn the_network_learns_mackey_glass() {
    let y = mackey_glass(600);
    let system = System { y: &y, u: &[] };
    let lags = Lags { y: 4, u: 0, current: false, stride: 6, horizon: 6 };
    let (regressors, targets) = lags.table(system, 0..400);
    let settings =
        Settings { hidden: 6, restarts: 1, committee: 1, iterations: 50, ..Settings::IDENTIFICATION };
    let score = |recipe: &dyn Recipe| {
        let model = recipe.fit_rows(&regressors, &targets).unwrap();
        ndei(&y[400..600], &lags.one_step(&*model, system, 400..600))
    };
    let (linear, network) = (score(&Arx::default()), score(&Narx::new(settings).unwrap()));
    assert!(linear > 0.3 && network < 0.03, "linear {linear}, network {network}");
}

/// The same data and seed give the same model. A stored model is read back without changes.
#[test]
fn networks_are_reproducible_and_storable() {
    let (regressors, targets) = linear_table(100, 2);
    let dataset = Dataset::new(regressors, targets);
    let model: FittedNarx = small_narx().fit(&dataset).unwrap();
    assert_eq!(model, small_narx().fit(&dataset).unwrap());
    let stored = serde_json::to_string(&model).unwrap();
    assert_eq!(serde_json::from_str::<FittedNarx>(&stored).unwrap(), model);
}

#[test]
fn bad_history_is_named() {
    let (regressors, targets) = linear_table(60, 4);
    let first = |rows: usize| targets.slice_axis(Axis(0), (..rows).into()).to_owned();
    let few_rows = regressors.slice_axis(Axis(0), (..3).into()).to_owned();
    let mut broken = regressors.clone();
    broken[[7, 2]] = f64::INFINITY;
    for (name, recipe) in every_recipe() {
        let few = recipe.fit_rows(&few_rows, &first(3)).unwrap_err();
        assert!(matches!(few, FitError::TooFewRows { rows: 3, needed } if needed > 3), "{name}: {few:?}");
        let unequal = recipe.fit_rows(&regressors, &first(9)).unwrap_err();
        assert_eq!(unequal, FitError::Shape { rows: 60, targets: 9 }, "{name}");
        let infinite = recipe.fit_rows(&broken, &targets).unwrap_err();
        assert_eq!(infinite, FitError::NotFinite { row: 7, value: f64::INFINITY }, "{name}");
    }
}

#[test]
fn bad_settings_are_named() {
    let name = |error: FitError| match error {
        FitError::Setting { name, .. } => name,
        other => panic!("{other}"),
    };
    assert_eq!(name(Arx::new(-1.0).unwrap_err()), "ridge");
    assert_eq!(name(Arx::new(f64::NAN).unwrap_err()), "ridge");
    let refit = Settings::REFIT;
    for (settings, bad) in [
        (Settings { hidden: 0, ..refit }, "hidden"),
        (Settings { committee: refit.restarts + 1, ..refit }, "committee"),
        (Settings { holdout: f64::NAN, ..refit }, "holdout"),
        (Settings { decay: Decay::Fixed(-1.0), ..refit }, "decay"),
    ] {
        assert_eq!(name(Narx::new(settings).unwrap_err()), bad);
    }
}

/// Values of all magnitudes, with constant and repeated columns.
fn awkward_table() -> impl Strategy<Value = (Array2<f64>, Array1<f64>, [f64; 4])> {
    let value = || prop_oneof![4 => -1.0..1.0f64, 1 => Just(0.0), 1 => -1e100..1e100f64];
    let row = (value(), value(), value());
    let later = prop::array::uniform4(-1e300..1e300f64);
    (prop::collection::vec(row, 30..60), -1e6..1e6f64, later).prop_map(|(rows, constant, later)| {
        let regressors = rows.iter().flat_map(|(a, b, _)| [*a, constant, *b, *a]).collect();
        let regressors = Array2::from_shape_vec((rows.len(), 4), regressors).unwrap();
        (regressors, rows.iter().map(|row| row.2).collect(), later)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Predictions are finite for every finite history and all finite regressors.
    #[test]
    fn never_nan_out_of_finite_in((regressors, targets, later) in awkward_table()) {
        for (name, recipe) in every_recipe() {
            let model = recipe.fit_rows(&regressors, &targets);
            prop_assert!(model.is_ok(), "{name}: {model:?}");
            for row in regressors.rows().into_iter().map(|row| row.to_vec()).chain([later.to_vec()]) {
                let prediction = model.as_ref().unwrap().predict_row(&row);
                prop_assert!(prediction.is_finite(), "{name}: {prediction} at {row:?}");
            }
        }
    }

    /// A constant column carries no information: predictions are the same with it and without it.
    #[test]
    fn constant_columns_are_harmless(constant in -1e3..1e3f64, later in -1e3..1e3f64) {
        let (regressors, targets) = linear_table(50, 3);
        let mut with = regressors.clone();
        with.push_column(Array1::from_elem(50, constant).view()).unwrap();
        let without = Arx::default().fit_rows(&regressors, &targets).unwrap();
        let with = Arx::default().fit_rows(&with, &targets).unwrap();
        let row = regressors.row(0).to_vec();
        let extended: Vec<f64> = row.iter().copied().chain([later]).collect();
        let difference = without.predict_row(&row) - with.predict_row(&extended);
        prop_assert!(difference.abs() < 1e-6, "{difference}");
    }
}
