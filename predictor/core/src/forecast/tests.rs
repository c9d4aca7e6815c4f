//! Properties of the whole forecaster.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::series::{DriverSet, Observation};

const NAMES: [&str; 6] =
    ["psi_cpu_some", "run_queue_wait", "own_cpu", "other_cpu", "temperature", "sm_clock_mhz"];

fn observation(speed: f64) -> Observation {
    Observation::new(64.0, 64.0 / speed).unwrap()
}

fn forecaster(names: &[&str]) -> JobForecaster<u8> {
    JobForecaster::new(DriverSet::new(names.iter().copied()))
}

fn reading() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        Just(None),
        (-1e12..1e12).prop_map(Some),
        Just(Some(0.0)),
        Just(Some(1e300)),
        Just(Some(f64::MIN_POSITIVE)),
    ]
}

proptest! {
    /// For any input, a forecast is a positive, finite speed inside its interval.
    #[test]
    fn always_an_answer(
        rows in prop::collection::vec((0u8..3, -40.0f64..40.0, 0.0f64..20.0, prop::array::uniform6(reading())), 2..120)
    ) {
        let mut forecaster = forecaster(&NAMES);
        for (worker, log, log_batch, drivers) in rows {
            let batch = log_batch.exp();
            forecaster.boundary(&worker, &drivers);
            forecaster.observe(&[(worker, Observation::new(batch, batch / log.exp()).unwrap())]);
            for coming in [None, Some(1.0), Some(1e6)] {
                let forecast = forecaster.forecast(&worker, coming).unwrap();
                prop_assert!(forecast.speed.is_finite() && forecast.speed > 0.0, "{forecast:?}");
                prop_assert!(forecast.lower <= forecast.speed && forecast.speed <= forecast.upper, "{forecast:?}");
            }
            let weights: f64 = forecaster.experts(&worker).iter().map(|expert| expert.weight).sum();
            prop_assert!((weights - 1.0).abs() < 1e-9);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Forecasts that were computed before equal the forecasts of a stored copy, which computes them again.
    #[test]
    fn a_copy_forecasts_the_same(
        rows in prop::collection::vec((0u8..3, 0u8..8, 1u64..4, -1.0f64..1.0, prop::array::uniform6(reading())), 2..60)
    ) {
        let mut forecaster = forecaster(&NAMES);
        for (worker, change, batch, log, drivers) in rows {
            let batch = batch as f64 * 32.0;
            match change {
                0 => forecaster.age(&worker),
                1..=3 => forecaster.boundary(&worker, &drivers),
                _ => forecaster.observe(&[(worker, Observation::new(batch, batch / log.exp()).unwrap())]),
            }
            let copy: JobForecaster<u8> =
                postcard::from_bytes(&postcard::to_allocvec(&forecaster).unwrap()).unwrap();
            for worker in 0..3 {
                for coming in [None, Some(64.0)] {
                    prop_assert_eq!(forecaster.forecast(&worker, coming), copy.forecast(&worker, coming));
                }
            }
        }
    }
}

/// Without noise, the forecast is exactly the speed.
#[test]
fn a_constant_speed_is_forecast_exactly() {
    let mut forecaster = forecaster(&[]);
    for _ in 0..50 {
        forecaster.observe(&[(0, observation(100.0))]);
    }
    assert!((forecaster.forecast(&0, None).unwrap().speed - 100.0).abs() < 1e-9);
}

/// If a driver announces each slow iteration, the mix is far better than forecasts from past speeds.
#[test]
fn a_driver_that_announces_a_slowdown_is_used() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let (mut mix, mut last, mut count) = (0.0, 0.0, 0);
    let mut forecaster = forecaster(&["psi_cpu_some"]);
    let mut previous = 100.0f64;
    for k in 0..600 {
        let slow = rng.random::<f64>() < 0.3;
        forecaster.boundary(&0, &[Some(f64::from(u8::from(slow)))]);
        let speed = if slow { 50.0 } else { 100.0 } * (1.0 + 0.02 * (rng.random::<f64>() - 0.5));
        if k >= 200 {
            mix += (forecaster.forecast(&0, None).unwrap().speed / speed).ln().powi(2);
            last += (previous / speed).ln().powi(2);
            count += 1;
        }
        forecaster.observe(&[(0, observation(speed))]);
        previous = speed;
    }
    let (mix, last) = ((mix / f64::from(count)).sqrt(), (last / f64::from(count)).sqrt());
    assert!(mix < 0.2 * last, "mix {mix} against last value {last}");
}

/// A change is followed at once, and so is the way back, whatever its size. The interval does not promise what the old one did, and
/// a jump is no forecast error.
#[test]
fn a_change_of_regime_is_followed_at_once() {
    let noisy = |random: &mut rand_chacha::ChaCha8Rng, noise: f64| {
        (noise * ((0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0)).exp()
    };
    for (factor, noise, length) in
        [(1.5, 0.02, 40), (3.0, 0.1, 10), (0.2, 0.05, 20), (30.0, 0.02, 5), (1000.0, 0.1, 3)]
    {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(5);
        let mut forecaster = forecaster(&[]);
        for k in 0..300 {
            let speed = if (200..200 + length).contains(&k) { 100.0 / factor } else { 100.0 };
            let forecast = forecaster.forecast(&0, None);
            // A single value may be followed later, if slow-downs never lasted before.
            if k >= 202 && k != 200 + length {
                let error = (forecast.unwrap().speed / speed).ln().abs();
                assert!(error < 4.0 * noise, "{factor}: {error} at {k}");
            }
            if k == 202 {
                let forecast = forecast.unwrap();
                assert!((forecast.upper / forecast.lower).ln() >= 0.6 - 1e-9, "{factor}: {forecast:?}");
            }
            forecaster.observe(&[(0, observation(speed * noisy(&mut random, noise)))]);
        }
        let residuals = forecaster.residuals(&0).iter().map(|(_, residual)| residual.abs());
        assert!(residuals.fold(0.0, f64::max) < 5.5 * noise, "{factor}");
    }
}

/// One iteration that is far slower leaves no trace in later forecasts. It is a pause: seconds, not a factor.
#[test]
fn a_single_slow_iteration_is_forgotten_at_once() {
    let error = |factor: f64| {
        let mut sum = 0.0;
        for seed in 0..4 {
            let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
            let mut forecaster = forecaster(&[]);
            let mut log_speed = 5.0;
            for k in 0..500 {
                log_speed += 0.05 * ((0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0);
                let speed = f64::exp(log_speed) / if k == 300 { factor } else { 1.0 };
                if k > 302 {
                    sum += (forecaster.forecast(&0, None).unwrap().speed / speed).ln().powi(2);
                }
                forecaster.observe(&[(0, observation(speed))]);
            }
        }
        f64::sqrt(sum)
    };
    let (steady, spiked) = (error(1.0), error(50.0));
    assert!(spiked <= 1.05 * steady, "{spiked} against {steady}");
}

/// Of slow-downs that were over after one iteration, the third is not followed; if slow-downs last, they are again.
#[test]
fn slow_downs_that_never_last_are_not_followed() {
    let mut forecaster = forecaster(&[]);
    let run = |forecaster: &mut JobForecaster<u8>, length: usize| {
        for k in 0..60 {
            if k == 31 {
                let followed = forecaster.forecast(&0, None).unwrap().speed < 50.0;
                for _ in 1..length {
                    forecaster.observe(&[(0, observation(1.0))]);
                }
                if followed {
                    return true;
                }
            }
            forecaster.observe(&[(0, observation(if k == 30 { 1.0 } else { 100.0 }))]);
        }
        let pauses: Vec<f64> = forecaster.pauses(&0).iter().map(|(_, seconds)| *seconds).collect();
        assert!(
            length > 1 || pauses.iter().all(|seconds| (seconds - (64.0 - 0.64)).abs() < 0.1),
            "{pauses:?}"
        );
        assert!(!pauses.is_empty() || length > 1);
        false
    };
    assert_eq!([1; 4].map(|length| run(&mut forecaster, length)), [true, true, false, false]);
    assert_eq!([5; 4].map(|length| run(&mut forecaster, length)), [false, true, true, true]);
}

/// With the step-time loss, the weights favour the expert that overestimates least.
#[test]
fn the_step_can_be_what_the_mix_is_trained_on() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(9);
    let roster = vec![ExpertKind::Last, ExpertKind::Ema(0.05)];
    let mut forecaster = JobForecaster::with(DriverSet::default(), roster, Loss::StepTime);
    for _ in 0..400 {
        let noisy = |rng: &mut rand_chacha::ChaCha8Rng| {
            observation(100.0 * (1.0 + 0.3 * (rng.random::<f64>() - 0.5)))
        };
        let outcomes = [(0, noisy(&mut rng)), (1, noisy(&mut rng)), (2, noisy(&mut rng))];
        forecaster.observe(&outcomes);
    }
    for worker in 0..3 {
        let weights: Vec<f64> = forecaster.experts(&worker).iter().map(|expert| expert.weight).collect();
        assert!(weights[1] > 0.8, "the slow mean is the best forecast of independent noise: {weights:?}");
    }
}

/// On the same kind of device, a worker can start from what another worker learned in hundreds of iterations.
#[test]
fn a_warm_start_spares_the_first_iterations() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(12);
    let names = ["own_cpu", "temperature"];
    let (mut earlier, mut cold, mut warm) = (forecaster(&names), forecaster(&names), forecaster(&names));
    let mut row = |forecasters: &mut [&mut JobForecaster<u8>]| -> Vec<f64> {
        let hot = rng.random::<f64>();
        let seen = observation(100.0 * (1.0 - 0.4 * hot));
        forecasters
            .iter_mut()
            .map(|forecaster| {
                forecaster.boundary(&0, &[None, Some(hot)]);
                let error = forecaster
                    .forecast(&0, None)
                    .map_or(0.0, |known| (known.speed / seen.speed()).ln().powi(2));
                forecaster.observe(&[(0, seen)]);
                error
            })
            .collect()
    };
    for _ in 0..300 {
        row(&mut [&mut earlier]);
    }
    warm.warm_start(&0, earlier.learned(&0).unwrap());
    let mut errors = [0.0; 2];
    for _ in 0..60 {
        for (sum, error) in errors.iter_mut().zip(row(&mut [&mut cold, &mut warm])) {
            *sum += error;
        }
    }
    assert!(errors[1] < 0.5 * errors[0], "warm {} against cold {}", errors[1], errors[0]);
}

/// A restored forecaster continues exactly like the stored one.
#[test]
fn state_survives_storage() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(10);
    let mut forecaster = forecaster(&NAMES);
    let mut row = |forecaster: &mut JobForecaster<u8>, restored: Option<&mut JobForecaster<u8>>| {
        let drivers: Vec<Option<f64>> = NAMES.iter().map(|_| Some(rng.random::<f64>())).collect();
        let outcome = [(0, observation(50.0 + 100.0 * rng.random::<f64>()))];
        for forecaster in std::iter::once(forecaster).chain(restored) {
            forecaster.boundary(&0, &drivers);
            forecaster.observe(&outcome);
        }
    };
    for _ in 0..100 {
        row(&mut forecaster, None);
    }
    let stored = serde_json::to_string(&forecaster).unwrap();
    let mut restored: JobForecaster<u8> = serde_json::from_str(&stored).unwrap();
    for _ in 0..20 {
        row(&mut forecaster, Some(&mut restored));
        assert_eq!(forecaster.forecast(&0, None), restored.forecast(&0, None));
    }
}

/// The speed follows a curve that linear models cannot learn (the logistic map). Once a network is fitted and
/// installed, the mix gives it most of the weight.
#[test]
fn a_network_joins_the_mix_and_gains_weight_when_it_is_better() {
    let mut state = 0.37f64;
    let mut next = || {
        state = 3.9 * state * (1.0 - state);
        observation(100.0 * (0.5 + state))
    };
    let mut forecaster = forecaster(&[]);
    let mut training = nonlinear::Training::new(forecaster.drivers(), false);
    assert!(training.fit(&narx::Narx::refit()).is_err(), "the training set is empty");
    let mut walk = |forecaster: &mut JobForecaster<u8>, training: &mut nonlinear::Training| {
        let mut squares = 0.0;
        for _ in 0..300 {
            let (seen, iteration) = (next(), forecaster.observations(&0));
            if let Some(forecast) = forecaster.forecast(&0, None) {
                squares += (forecast.speed / seen.speed()).ln().powi(2);
            }
            forecaster.observe(&[(0, seen)]);
            training.observe(iteration, &seen);
        }
        squares
    };
    let before = walk(&mut forecaster, &mut training);
    forecaster.install(&0, training.fit(&narx::Narx::refit()).unwrap());
    walk(&mut forecaster, &mut training);
    let after = walk(&mut forecaster, &mut training);
    assert!(after < 0.1 * before, "{after} against {before}");
    let narx = forecaster.experts(&0).into_iter().find(|expert| expert.name == "narx").unwrap();
    assert!(narx.weight > 0.9, "{narx:?}");
}

/// Rare pauses change neither the network nor its weight: the mix does not learn from them either.
#[test]
fn a_network_has_the_same_weight_with_pauses_as_without() {
    let weight = |seed: u64, noise: f64, pause: f64| {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut forecaster = forecaster(&NAMES[..1]);
        let mut training = nonlinear::Training::new(forecaster.drivers(), false);
        let mut reading: f64 = 0.0;
        for iteration in 0..400 {
            let log_speed = 0.3 * (3.0 * reading).sin() + noise * random.random_range(-1.0..1.0);
            let factor = if iteration % 25 == 12 { pause } else { 1.0 };
            let seen = observation(100.0 * log_speed.exp() / factor);
            forecaster.observe_iteration(iteration, &[(0, seen)]);
            training.observe(iteration, &seen);
            reading = random.random_range(-1.0..1.0);
            forecaster.boundary(&0, &[Some(reading)]);
            training.boundary(&[Some(reading)]);
        }
        forecaster.install(&0, training.fit(&narx::Narx::refit()).unwrap());
        forecaster.experts(&0).into_iter().find(|expert| expert.name == "narx").unwrap().weight
    };
    for (noise, pause) in [(0.05, 20.0), (0.3, 20.0), (0.3, 1000.0)] {
        let mean = |pause: f64| (0..10).map(|seed| weight(seed, noise, pause)).sum::<f64>() / 10.0;
        let (without, with) = (mean(1.0), mean(pause));
        assert!((with - without).abs() < 0.1, "{noise}, {pause}: {with} against {without}");
    }
}

/// The forecast of a worker that was away does not change until it is measured again; then its level and its
/// interval start again.
#[test]
fn a_returning_worker_restarts_with_its_models() {
    let mut job = JobForecaster::new(DriverSet::default());
    let seen = |speed: f64| [("w", Observation::new(speed, 1.0).unwrap())];
    for k in 0..60 {
        job.observe(&seen(100.0 + f64::from(k % 2)));
    }
    let before = job.forecast(&"w", None).unwrap();
    job.age(&"w");
    assert_eq!(job.forecast(&"w", None), Some(before));
    job.observe(&seen(10.0));
    let after = job.forecast(&"w", None).unwrap();
    assert!((after.speed / 10.0 - 1.0).abs() < 0.05, "{after:?}");
    assert!(after.upper / after.lower > 1.5, "{after:?}");
    assert_eq!((job.observations(&"w"), job.residuals(&"w").len()), (1, 0));
    job.age(&"unknown");
}

/// A driver without readings does not change any forecast.
#[test]
fn a_driver_that_is_never_read_changes_nothing() {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(8);
    let mut known = forecaster(&["psi_cpu_some", "temperature", "sm_clock_mhz"]);
    let mut more = forecaster(&["psi_cpu_some", "temperature", "sm_clock_mhz", "tail_speedup"]);
    for _ in 0..100 {
        let readings = [Some(random.random()), Some(random.random()), None];
        let seen: Vec<(u8, Observation)> =
            (0..2).map(|worker| (worker, observation(random.random_range(50.0..200.0)))).collect();
        for worker in 0..2 {
            known.boundary(&worker, &readings);
            more.boundary(&worker, &[&readings[..], &[None]].concat());
        }
        known.observe(&seen);
        more.observe(&seen);
        assert_eq!(known.forecast(&0, None), more.forecast(&0, None));
    }
}

/// Workers whose models are learned on several cores end as workers that are learned one after the other.
#[test]
fn the_number_of_cores_changes_no_model() {
    const WORKERS: u16 = 300;
    let drivers = DriverSet::new(NAMES);
    let mut roster = ExpertKind::roster(&drivers);
    roster.retain(|kind| *kind != ExpertKind::ArxPooled);
    let forecaster = || JobForecaster::<u16>::with(drivers.clone(), roster.clone(), Loss::SquaredError);
    let (mut together, mut apart) = (forecaster(), forecaster());
    for iteration in 0..12u64 {
        let noise = |worker: u16| f64::from((u32::from(worker) * 7 + iteration as u32 * 13) % 17) / 17.0;
        let outcomes: Vec<(u16, Observation)> = (0..WORKERS)
            .map(|worker| (worker, Observation::new(64.0, 1.0 + noise(worker)).unwrap()))
            .collect();
        together.observe_iteration(iteration, &outcomes);
        outcomes.chunks(100).for_each(|some| apart.observe_iteration(iteration, some));
        let readings: Vec<Vec<Option<f64>>> =
            (0..WORKERS).map(|worker| vec![Some(noise(worker)); NAMES.len()]).collect();
        let keyed = (0..WORKERS).collect::<Vec<u16>>();
        let positions = together.positions(&keyed.iter().collect::<Vec<_>>());
        together.boundaries(&positions, &readings);
        keyed.iter().zip(&readings).for_each(|(worker, readings)| apart.boundary(worker, readings));
        assert!((0..WORKERS).all(|worker| together.forecast(&worker, None) == apart.forecast(&worker, None)));
    }
    assert_eq!(postcard::to_allocvec(&together).unwrap(), postcard::to_allocvec(&apart).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The models do not depend on the order of the workers in an iteration.
    #[test]
    fn the_order_of_workers_changes_no_model(
        rows in prop::collection::vec(prop::collection::vec((-1.0f64..1.0, 0.0f64..1.0), 5), 2..25),
        order in Just((0u8..5).collect::<Vec<u8>>()).prop_shuffle(),
    ) {
        let drivers = DriverSet::new(NAMES);
        let new = || JobForecaster::<u8>::with(drivers.clone(), ExpertKind::roster(&drivers), Loss::SquaredError);
        let (mut ascending, mut shuffled) = (new(), new());
        for row in rows {
            let outcome = |worker: &u8| (*worker, observation(row[usize::from(*worker)].0.exp()));
            ascending.observe(&(0..5).map(|worker| outcome(&worker)).collect::<Vec<_>>());
            shuffled.observe(&order.iter().map(outcome).collect::<Vec<_>>());
            for worker in 0..5 {
                let readings = [Some(row[usize::from(worker)].1); 6];
                ascending.boundary(&worker, &readings);
                shuffled.boundary(&worker, &readings);
            }
        }
        prop_assert!(postcard::to_allocvec(&ascending).unwrap() == postcard::to_allocvec(&shuffled).unwrap());
    }
}

/// The pooled model remembers iterations, however many workers report in each.
#[test]
fn the_memory_of_the_pool_does_not_depend_on_the_number_of_workers() {
    let drivers = DriverSet::new(["psi_cpu_some"]);
    let effect = |workers: u16| {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let mut forecaster =
            JobForecaster::<u16>::with(drivers.clone(), vec![ExpertKind::ArxPooled], Loss::SquaredError);
        let mut forecast = 0.0;
        for iteration in 0..100 {
            // A load costs half of the speed, and in the last 20 iterations nothing.
            let cost = if iteration < 80 { -0.7 } else { 0.0 };
            let mut outcomes = Vec::new();
            for worker in 0..workers {
                let load: f64 = random.random_range(0.0..1.0);
                forecaster.boundary(&worker, &[Some(load)]);
                let noise = 0.01 * random.random_range(-1.0..1.0f64);
                outcomes.push((worker, observation(100.0 * (cost * load + noise).exp())));
            }
            forecaster.observe(&outcomes);
        }
        for load in [1.0, -1.0] {
            forecaster.boundary(&0, &[Some(0.5 + 0.5 * load)]);
            forecast += load * forecaster.forecast(&0, None).unwrap().speed.ln();
        }
        forecast
    };
    let (few, many) = (effect(2), effect(300));
    assert!(few < -0.05 && (few / many - 1.0).abs() < 0.35, "{few} against {many}");
}
