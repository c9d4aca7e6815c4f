//! Batch models through the public API: known systems, comparisons with linfa, and properties of every model.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use evenstep_core::forecast::fit::FitError;
use evenstep_core::forecast::narx::{Decay, FittedNarx, Narx, Settings};
use evenstep_lab::batch::{
    Arx, Criterion, ElasticNet, FittedPolynomial, Lags, Ols, Polynomial, Recipe, Ridge, System, Terms,
};
use linfa::Dataset;
use linfa::prelude::SingleTargetRegression;
use linfa::traits::{Fit, Predict};
use ndarray::{Array1, Array2, Axis};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const ONE_STEP: Lags = Lags { y: 2, u: 1, current: false, stride: 1, horizon: 1 };

/// A network that is fitted in milliseconds even without compiler optimization.
fn small_narx() -> Narx {
    Narx::new(Settings { hidden: 3, restarts: 2, committee: 2, iterations: 20, ..Settings::REFIT }).unwrap()
}

fn every_recipe() -> Vec<(&'static str, Box<dyn Recipe>)> {
    let all = Terms::All { ridge: 1e-6 };
    vec![
        ("arx", Box::new(Arx::default())),
        ("arx without ridge", Box::new(Arx::new(0.0).unwrap())),
        ("ridge", Box::new(Ridge::default())),
        ("elastic net", Box::new(ElasticNet::default())),
        ("polynomial", Box::new(Polynomial::new(2).unwrap())),
        ("polynomial, all terms", Box::new(Polynomial::new(2).unwrap().with_terms(all).unwrap())),
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

fn assert_same_predictions(ours: &dyn Recipe, theirs: &dyn Recipe, tolerance: f64) {
    let (regressors, targets) = linear_table(60, 4);
    let ours = ours.fit_rows(&regressors, &targets).unwrap();
    let theirs = theirs.fit_rows(&regressors, &targets).unwrap();
    for row in regressors.rows() {
        let (ours, theirs) = (ours.predict_row(&row.to_vec()), theirs.predict_row(&row.to_vec()));
        assert!((ours - theirs).abs() < tolerance, "{ours} {theirs}");
    }
}

#[test]
fn least_squares_agree_with_linfa() {
    assert_same_predictions(&Arx::new(0.0).unwrap(), &Ols, 1e-10);
    for ridge in [1e-3, 10.0, 1e4] {
        assert_same_predictions(&Arx::new(ridge).unwrap(), &Ridge::new(ridge).unwrap(), 1e-10);
    }
}

/// With only the L2 penalty, the elastic net is ridge regression whose ridge is the number of rows times the
/// penalty.
#[test]
fn the_elastic_net_has_ridge_at_its_end() {
    let net = ElasticNet::new(0.05, 0.0).unwrap();
    assert_same_predictions(&Arx::new(60.0 * 0.05).unwrap(), &net, 1e-6);
}

/// Recipes and models compose with linfa's datasets and metrics.
#[test]
fn composes_with_linfa() {
    let (regressors, targets) = linear_table(200, 3);
    let dataset = Dataset::new(regressors, targets);
    let r2 = |predictions: Array1<f64>| predictions.r2(&dataset).unwrap();
    assert!(r2(Arx::default().fit(&dataset).unwrap().predict(&dataset)) > 0.99);
    assert!(r2(Polynomial::new(2).unwrap().fit(&dataset).unwrap().predict(&dataset)) > 0.99);
    assert!(r2(small_narx().fit(&dataset).unwrap().predict(&dataset)) > 0.99);
}

/// y[k] = 0.5 y[k-1] + 0.8 u[k-1] - 0.3 y[k-1] u[k-1] + 0.2 y[k-2]^2 - 0.1, driven by uniform noise.
fn bilinear_system(rows: usize) -> (Vec<f64>, Vec<Vec<f64>>) {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let u: Vec<Vec<f64>> = (0..rows).map(|_| vec![uniform(&mut rng)]).collect();
    let mut y = vec![0.1, -0.2];
    for k in 2..rows {
        let (y1, y2, u1) = (y[k - 1], y[k - 2], u[k - 1][0]);
        y.push(0.5 * y1 + 0.8 * u1 - 0.3 * y1 * u1 + 0.2 * y2 * y2 - 0.1);
    }
    (y, u)
}

#[test]
fn a_polynomial_system_is_recovered_term_for_term() {
    let (y, u) = bilinear_system(400);
    let system = System { y: &y, u: &u };
    let (regressors, targets) = ONE_STEP.table(system, 0..300);
    let model: FittedPolynomial =
        Polynomial::new(3).unwrap().fit(&Dataset::new(regressors, targets)).unwrap();
    let mut terms: Vec<(Vec<usize>, f64)> =
        model.terms().map(|(factors, coefficient)| (factors.to_vec(), coefficient)).collect();
    terms.sort_by(|a, b| a.0.cmp(&b.0));
    // Regressors: 0 and 1 are y[k-1] and y[k-2], 2 is u[k-1].
    let truth = [(vec![], -0.1), (vec![0], 0.5), (vec![0, 2], -0.3), (vec![1, 1], 0.2), (vec![2], 0.8)];
    assert_eq!(terms.len(), truth.len(), "{terms:?}");
    for ((factors, coefficient), (true_factors, true_coefficient)) in terms.iter().zip(&truth) {
        assert_eq!(factors, true_factors);
        assert!((coefficient - true_coefficient).abs() < 1e-10, "{factors:?}: {coefficient}");
    }
    for (free, measured) in ONE_STEP.free_run(&model, system, 300..400).iter().zip(&y[300..]) {
        assert!((free - measured).abs() < 1e-9);
    }
}

/// The requested number of terms is kept, and the criteria keep at most that number.
#[test]
fn the_requested_number_of_terms() {
    let (regressors, targets) = linear_table(100, 3);
    let dataset = Dataset::new(regressors, targets);
    let count = |terms| {
        let recipe = Polynomial::new(2).unwrap().with_terms(terms).unwrap();
        recipe.fit(&dataset).unwrap().terms().count()
    };
    assert_eq!(count(Terms::Count(3)), 3);
    assert_eq!(count(Terms::Picked { criterion: Criterion::Bic, most: 4 }), 4);
    assert_eq!(count(Terms::All { ridge: 0.0 }), 10);
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
    assert_eq!(name(Ridge::new(0.0).unwrap_err()), "ridge");
    assert_eq!(name(ElasticNet::new(1.0, 1.5).unwrap_err()), "l1_ratio");
    assert_eq!(name(Polynomial::new(0).unwrap_err()), "degree");
    assert_eq!(name(Polynomial::new(2).unwrap().with_terms(Terms::Count(0)).unwrap_err()), "terms");
    let refit = Settings::REFIT;
    for (settings, bad) in [
        (Settings { hidden: 0, ..refit }, "hidden"),
        (Settings { committee: refit.restarts + 1, ..refit }, "committee"),
        (Settings { holdout: f64::NAN, ..refit }, "holdout"),
        (Settings { decay: Decay::Fixed(-1.0), ..refit }, "decay"),
    ] {
        assert_eq!(name(Narx::new(settings).unwrap_err()), bad);
    }
    // 20 regressors have 230 230 monomials up to degree 6.
    let (regressors, targets) = linear_table(30, 20);
    assert_eq!(name(Polynomial::new(6).unwrap().fit_rows(&regressors, &targets).unwrap_err()), "degree");
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
        for recipe in [&Arx::default() as &dyn Recipe, &Ridge::default(), &ElasticNet::default()] {
            let without = recipe.fit_rows(&regressors, &targets).unwrap();
            let with = recipe.fit_rows(&with, &targets).unwrap();
            let row = regressors.row(0).to_vec();
            let extended: Vec<f64> = row.iter().copied().chain([later]).collect();
            let difference = without.predict_row(&row) - with.predict_row(&extended);
            prop_assert!(difference.abs() < 1e-6, "{difference}");
        }
    }
}
