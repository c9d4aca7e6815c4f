//! Networks in a job: speeds that only a network can forecast, and plans that follow the forecasts.

use evenstep_protocol::{JobSpec, WorkerReport, driver};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::tests::{job, request, worker};
use super::*;
use crate::forecast::narx::Narx;

/// Log of the speed relative to a constant, by two drivers from -1 to 1.
type Law = fn(f64, f64) -> f64;

/// RMSE in log speed over the last iterations of two workers.
#[derive(Debug)]
struct Errors {
    /// Of the speeds in allocations.
    planned: f64,
    network: f64,
    /// Of the best other expert.
    other: f64,
}

/// Fits the networks, as the service does in the background.
fn refit(state: &mut JobState, reports: &[WorkerReport]) {
    let due = state.models_mut().due_refits(1, 2);
    let fit = |(worker, curve): &(_, _)| {
        let mut training = training(curve, reports.iter().filter(|report| report.worker == *worker));
        if let Some(network) = state.models.forecaster().network(worker) {
            training.start_from(network.clone());
        }
        (worker.clone(), training.fit(&Narx::refit()).unwrap())
    };
    let fitted = due.iter().map(fit).collect();
    state.models_mut().install(fitted);
}

/// Runs a job whose networks are fitted after these iterations, with this deviation of noise. Scores the iterations after
/// the last fit.
fn run(law: Law, noise: f64, fits: &[u64], seed: u64) -> Errors {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut state = job(JobSpec { min_gain: 0.0, ..JobSpec::new(200) });
    let mut drivers = [[0.0; 2]; 2];
    let (mut all, mut squares, mut count) = (Vec::new(), 0.0, 0.0);
    let last = fits.last().copied().unwrap_or_default();
    for iteration in 0..last + 150 {
        let decided = state.decide(&request(iteration)).unwrap();
        let answer = decided.answer.clone();
        state.apply(decided);
        let mut reports = Vec::new();
        for (share, drivers) in answer.allocations.iter().zip(&mut drivers) {
            let mut uniform = || random.random_range(-1.0..1.0f64);
            let normal = (0..12).map(|_| uniform() / 2.0).sum::<f64>();
            let speed = 100.0 * (law(drivers[0], drivers[1]) + noise * normal).exp();
            if let Some(forecast) = share.predicted_speed_samples_per_s.filter(|_| iteration > last) {
                squares += (forecast / speed).ln().powi(2);
                count += 1.0;
            }
            // The drivers of the next iteration.
            *drivers = [uniform(), uniform()];
            let readings = [(driver::PSI_CPU_SOME, drivers[0]), (driver::OTHER_CPU, drivers[1])];
            let readings = readings.map(|(name, reading)| (name.to_owned(), 0.5 + 0.5 * reading));
            reports.push(WorkerReport {
                drivers: readings.into(),
                ..WorkerReport::new(
                    share.worker.clone(),
                    iteration,
                    share.local_batch,
                    share.local_batch as f64 / speed,
                )
            });
        }
        state.observe(&reports);
        all.extend(reports);
        if fits.contains(&iteration) {
            refit(&mut state, &all);
        }
    }
    let error = |is_network: bool| {
        let best = |number: usize| {
            let experts = state.models.forecaster().experts(&worker(number)).into_iter();
            let errors = experts
                .filter(|expert| (expert.name == "narx") == is_network)
                .filter_map(|expert| expert.log_rmse);
            errors.fold(f64::INFINITY, f64::min).powi(2)
        };
        f64::midpoint(best(0), best(1)).sqrt()
    };
    Errors { planned: f64::sqrt(squares / count), network: error(true), other: error(false) }
}

const LAWS: [(&str, Law); 4] = [
    ("exclusive or", |u, v| if (u > 0.0) == (v > 0.0) { 0.0 } else { -0.5 }),
    ("square", |u, _| -0.5 * u * u),
    ("product", |u, v| -0.4 * u * v),
    ("sine", |u, v| 0.3 * (3.0 * u + 2.0 * v).sin()),
];

/// A network counts from its first fit on, and a refit loses nothing.
#[test]
fn planned_speeds_are_as_good_as_the_network() {
    for (at, (name, law)) in LAWS.into_iter().enumerate() {
        let (noise, seed) = if at % 2 == 0 { (0.03, 1) } else { (0.1, 6) };
        for fits in [&[300][..], &[250, 450, 650]] {
            let errors = run(law, noise, fits, seed);
            assert!(errors.planned <= 1.15 * errors.network, "{name} {fits:?}: {errors:?}");
            assert!(errors.planned < 0.8 * errors.other, "{name} {fits:?}: {errors:?}");
        }
    }
}

#[test]
fn a_network_costs_nothing_where_others_are_as_good() {
    let laws: [(&str, Law); 2] = [("linear", |u, v| -0.3 * u + 0.1 * v), ("constant", |_, _| 0.0)];
    for (name, law) in laws {
        let errors = run(law, 0.05, &[300, 500], 7);
        assert!(errors.planned < 1.05 * errors.other, "{name}: {errors:?}");
    }
}
