//! Time of a streaming model per iteration of a worker. The number in an id is the number of drivers.
//!
//! Goals: an ARX update under 5 us; a prediction and an update of the whole mix under 60 us.

#![allow(clippy::expect_used, missing_docs, reason = "a benchmark panics if its set-up fails")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use evenstep_bench::{Iteration, Trace};
use evenstep_core::forecast::arx::{Arx, ArxInputs, ArxSettings, PooledArx, PooledRow, Prepared};
use evenstep_core::forecast::inputs::{History, InputGroups};
use evenstep_core::forecast::narx::Narx;
use evenstep_core::forecast::nonlinear::Training;
use evenstep_core::forecast::{ExpertKind, JobForecaster, Loss};

const ROWS: usize = 1000;
/// Rows that a model has processed before it is timed: the range guard is full, and the mix has its networks.
const SEEN: usize = 600;
const SEED: u64 = 1;
/// ARX by its drivers: the selected drivers, or all.
const KINDS: [(&str, usize, InputGroups); 4] = [
    ("0", 0, InputGroups::Level),
    ("6", 6, InputGroups::Selected),
    ("16", 16, InputGroups::Selected),
    ("16_all", 16, InputGroups::All),
];

/// One row as a model receives it: the state before, and the observation.
struct Step {
    history: History,
    batch: f64,
    log_speed: f64,
}

fn steps(trace: &Trace) -> Vec<Step> {
    let log_speed = |iteration: &Iteration| iteration.seen.speed().ln();
    let first = &trace.iterations[0];
    let mut history = History::new(log_speed(first), first.seen.batch);
    let step = |iteration: &Iteration| {
        history.boundary(&iteration.readings);
        let step =
            Step { history: history.clone(), batch: iteration.seen.batch, log_speed: log_speed(iteration) };
        history.observe(step.log_speed, step.batch);
        step
    };
    trace.iterations[1..].iter().map(step).collect()
}

/// Repeats the rows without end, because a model never stops learning.
fn cycle<'a, T>(rows: &'a [T]) -> impl FnMut() -> &'a T {
    let mut at = 0;
    move || {
        at = (at + 1) % rows.len();
        &rows[at]
    }
}

fn arx(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("arx");
    for (id, drivers, groups) in KINDS {
        let trace = Trace::new(ROWS, drivers, SEED);
        let steps = steps(&trace);
        let settings = ArxSettings::of(groups);
        let mut inputs = ArxInputs::new(&settings, &trace.drivers, steps[0].log_speed);
        let mut model = Arx::new(&settings, &trace.drivers);
        let mut prepared = Prepared::default();
        let mut update = |step: &Step| {
            inputs.prepare(&step.history, step.batch, &mut prepared);
            model.update(&inputs, &prepared, step.log_speed);
            inputs.learn(&mut prepared, step.log_speed);
        };
        steps[..SEEN].iter().for_each(&mut update);
        let mut next = cycle(&steps);
        group.bench_function(BenchmarkId::new("update", id), |bencher| {
            bencher.iter(|| {
                update(black_box(next()));
            });
        });
        let mut next = cycle(&steps);
        group.bench_function(BenchmarkId::new("predict", id), |bencher| {
            bencher.iter(|| {
                let step = next();
                inputs.prepare(black_box(&step.history), step.batch, &mut prepared);
                model.predict(&inputs, &prepared, &step.history)
            });
        });
    }
    group.finish();
}

fn pooled_arx(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pooled_arx");
    for (id, drivers, groups) in KINDS {
        let trace = Trace::new(ROWS, drivers, SEED);
        let steps = steps(&trace);
        let mut model = PooledArx::new(ArxSettings::of(groups), &trace.drivers);
        let mut share = model.share(steps[0].log_speed);
        let mut prepared = Prepared::default();
        let mut next = cycle(&steps);
        group.bench_function(BenchmarkId::new("update_and_predict", id), |bencher| {
            bencher.iter(|| {
                let step = next();
                model.prepare(&share, black_box(&step.history), step.batch, &mut prepared);
                let forecast = model.predict(&share, &prepared, &step.history);
                let target = model.observe(&mut share, &mut prepared, step.log_speed);
                model.update(&[PooledRow { inputs: prepared.inputs.clone(), target }]);
                forecast
            });
        });
    }
    group.finish();
}

/// One iteration of a worker in the service: readings, forecast, update.
fn iterate(forecaster: &mut JobForecaster<u32>, iteration: &Iteration) -> f64 {
    forecaster.boundary(&0, black_box(&iteration.readings));
    let forecast = forecaster.forecast(&0, Some(iteration.seen.batch));
    forecaster.observe(&[(0, iteration.seen)]);
    forecast.map_or(f64::NAN, |forecast| forecast.speed)
}

fn mix(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mix");
    for drivers in [0, 6, 16] {
        let trace = Trace::new(ROWS, drivers, SEED);
        let roster = ExpertKind::roster(&trace.drivers);
        let mut forecaster = JobForecaster::with(trace.drivers.clone(), roster, Loss::SquaredError);
        let mut training = Training::new(&trace.drivers, false);
        for (at, iteration) in (0..).zip(&trace.iterations[..SEEN]) {
            iterate(&mut forecaster, iteration);
            training.boundary(&iteration.readings);
            training.observe(at, &iteration.seen);
        }
        let mut with_network = forecaster.clone();
        with_network.install(&0, training.fit(&Narx::refit()).expect("enough rows for a network"));
        for (name, mut forecaster) in
            [("update_and_predict", forecaster), ("update_and_predict_with_network", with_network)]
        {
            let mut next = cycle(&trace.iterations);
            group.bench_function(BenchmarkId::new(name, drivers), |bencher| {
                bencher.iter(|| iterate(&mut forecaster, next()));
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = streaming;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1500));
    targets = arx, pooled_arx, mix
}
criterion_main!(streaming);
