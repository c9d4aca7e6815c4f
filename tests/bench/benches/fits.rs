//! Time to fit a batch model on 600 rows of 12 regressors (rows x regressors in the id), and the network of
//! the mix on 600 iterations (iterations x drivers).
//!
//! Goal: the network of a refit in under 20 ms.

#![allow(clippy::expect_used, missing_docs, reason = "a benchmark panics if its set-up fails")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use evenstep_bench::{Trace, table};
use evenstep_core::forecast::fit::Regression;
use evenstep_core::forecast::narx::Narx;
use evenstep_core::forecast::nonlinear::Training;
use evenstep_lab::batch::{Arx, Recipe};

const SIZES: [(usize, usize); 2] = [(200, 12), (600, 12)];
const SEED: u64 = 1;

/// Omits `Narx::identification()`, which takes seconds, but only once and outside the critical path.
fn recipes() -> Vec<(&'static str, Box<dyn Recipe>)> {
    vec![("arx", Box::new(Arx::default())), ("narx_refit", Box::new(Narx::refit()))]
}

fn fit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fit");
    for (rows, width) in SIZES {
        let (regressors, targets) = table(rows, width, SEED);
        for (name, recipe) in recipes() {
            group.bench_function(BenchmarkId::new(name, format!("{rows}x{width}")), |bencher| {
                bencher.iter(|| recipe.fit_rows(black_box(&regressors), &targets).expect("a fit"));
            });
        }
    }
    group.finish();
}

/// Measures the network of the mix as the service fits it: on all inputs of ARX, from a history of 600
/// iterations.
fn expert(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fit_expert");
    let (rows, _) = SIZES[1];
    for drivers in [0, 6, 16] {
        let trace = Trace::new(rows + 1, drivers, SEED);
        let mut training = Training::new(&trace.drivers, false);
        for (at, iteration) in (0..).zip(&trace.iterations) {
            training.boundary(&iteration.readings);
            training.observe(at, &iteration.seen);
        }
        group.bench_function(BenchmarkId::new("narx_refit", format!("{rows}x{drivers}")), |bencher| {
            bencher.iter(|| training.fit(black_box(&Narx::refit())).expect("a fit"));
        });
    }
    group.finish();
}

fn predict(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("predict");
    let (rows, width) = SIZES[1];
    let (regressors, targets) = table(rows, width, SEED);
    let row = regressors.row(0).to_vec();
    for (name, recipe) in recipes() {
        let model: Box<dyn Regression> = recipe.fit_rows(&regressors, &targets).expect("a fit");
        group.bench_function(BenchmarkId::new(name, format!("1x{width}")), |bencher| {
            bencher.iter(|| model.predict_row(black_box(&row)));
        });
    }
    group.finish();
}

criterion_group! {
    name = fits;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(2500));
    targets = fit, expert, predict
}
criterion_main!(fits);
