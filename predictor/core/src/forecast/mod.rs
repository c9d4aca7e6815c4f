//! The speed of a worker in the coming iteration, one step ahead, on the log scale.
//!
//! Experts (`ema`, `arx`) each forecast the log speed; `mix` weights them by their own records; `interval`
//! puts a band around the mix. [`WorkerForecaster`] runs them for one worker: it exists only from a first observation
//! on, so an unfitted model cannot be asked.

mod arx;
pub mod batch;
mod ema;
mod interval;
mod mix;

pub use arx::Arx;
pub use ema::Ema;
pub use interval::AdaptiveInterval;
pub use mix::Mix;

use crate::series::Observation;

/// Nominal coverage of the interval of a forecast.
pub const COVERAGE: f64 = 0.9;

/// Smoothing factors of the EMA bank: slow, medium, quick. (`last value` is the EMA with factor 1.)
const EMA_ALPHAS: [f64; 3] = [0.1, 0.3, 0.6];

/// Names of the experts, in the order of their weights.
pub const EXPERT_NAMES: [&str; EXPERTS] = ["last", "ema_0.1", "ema_0.3", "ema_0.6", "arx"];

/// How many experts there are.
pub const EXPERTS: usize = EMA_ALPHAS.len() + 2;

/// The speed expected in the coming iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Expected speed in samples per second of compute time; positive and finite.
    pub speed: f64,
    /// Lower end of the interval with [`COVERAGE`].
    pub lower: f64,
    /// Upper end of the interval.
    pub upper: f64,
}

/// One expert's part in a forecast.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertRecord {
    /// Its name.
    pub name: &'static str,
    /// The speed it expects.
    pub speed: f64,
    /// Its weight in the mix.
    pub weight: f64,
    /// Root of its mean squared error in log speed, exponentially forgotten; `None` before its first score.
    pub log_rmse: Option<f64>,
}

/// Forecasts one worker: scores every expert on each observation, then lets all learn from it.
#[derive(Debug, Clone)]
pub struct WorkerForecaster {
    last: f64,
    ema: [Ema; EMA_ALPHAS.len()],
    arx: Arx,
    mix: Mix<EXPERTS>,
    interval: AdaptiveInterval,
    /// What each expert expects of the coming iteration, in log speed.
    next: [f64; EXPERTS],
}

impl WorkerForecaster {
    /// A forecaster that has seen one observation and expects more of the same.
    pub fn new(first: &Observation) -> Self {
        let log_speed = first.speed().ln();
        Self {
            last: log_speed,
            ema: EMA_ALPHAS.map(|alpha| Ema::new(alpha, log_speed)),
            arx: Arx::new(log_speed, first.drivers),
            mix: Mix::uniform(),
            interval: AdaptiveInterval::new(COVERAGE),
            next: [log_speed; EXPERTS],
        }
    }

    /// Takes the next observation: scores the outstanding forecasts, then updates every model. Microseconds.
    pub fn observe(&mut self, observation: &Observation) {
        let log_speed = observation.speed().ln();
        self.interval.score(log_speed - self.mix.combine(&self.next));
        self.mix.score(&self.next, log_speed);
        self.last = log_speed;
        for ema in &mut self.ema {
            ema.update(log_speed);
        }
        self.arx.update(log_speed, observation.drivers);
        self.next = self.expect();
    }

    /// The forecast of the coming iteration.
    pub fn forecast(&self) -> Forecast {
        let log_speed = self.mix.combine(&self.next);
        let half_width = self.interval.half_width();
        Forecast {
            speed: log_speed.exp(),
            lower: (log_speed - half_width).exp(),
            upper: (log_speed + half_width).exp(),
        }
    }

    /// Each expert's part in the forecast.
    pub fn experts(&self) -> [ExpertRecord; EXPERTS] {
        std::array::from_fn(|i| ExpertRecord {
            name: EXPERT_NAMES[i],
            speed: self.next[i].exp(),
            weight: self.mix.weights()[i],
            log_rmse: self.mix.log_rmse(i),
        })
    }

    /// The latest measured speed.
    pub fn last_speed(&self) -> f64 {
        self.last.exp()
    }

    fn expect(&self) -> [f64; EXPERTS] {
        let [slow, medium, quick] = [0, 1, 2].map(|i| self.ema[i].level());
        [self.last, slow, medium, quick, self.arx.predict()]
    }
}

/// Drivers for tests of the models: one reading, the others missing.
#[cfg(test)]
fn only(at: usize, value: f64) -> crate::series::Drivers {
    let mut drivers = crate::series::Drivers::default();
    drivers.0[at] = Some(value);
    drivers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::series::Drivers;

    fn observation(speed: f64, drivers: Drivers) -> Observation {
        Observation::new(64, 64.0 / speed, drivers).unwrap()
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
        /// Whatever comes in, a forecast is a positive, finite speed inside its interval.
        #[test]
        fn always_an_answer(
            rows in prop::collection::vec((-40.0f64..40.0, prop::array::uniform6(reading())), 2..200)
        ) {
            let mut rows = rows.into_iter().map(|(log, drivers)| observation(log.exp(), Drivers(drivers)));
            let mut forecaster = WorkerForecaster::new(&rows.next().unwrap());
            for row in rows {
                forecaster.observe(&row);
                let forecast = forecaster.forecast();
                prop_assert!(forecast.speed.is_finite() && forecast.speed > 0.0, "{forecast:?}");
                prop_assert!(forecast.lower <= forecast.speed && forecast.speed <= forecast.upper, "{forecast:?}");
                let weights: f64 = forecaster.experts().iter().map(|expert| expert.weight).sum();
                prop_assert!((weights - 1.0).abs() < 1e-9);
            }
        }
    }

    /// With no noise there is nothing to forecast: the answer is the speed itself.
    #[test]
    fn a_constant_speed_is_forecast_exactly() {
        let mut forecaster = WorkerForecaster::new(&observation(100.0, Drivers::default()));
        for _ in 0..50 {
            forecaster.observe(&observation(100.0, Drivers::default()));
        }
        assert!((forecaster.forecast().speed - 100.0).abs() < 1e-9);
    }

    /// A driver that announces each slow iteration makes the mix far better than any forecast from the past alone.
    #[test]
    fn a_driver_that_announces_a_slowdown_is_believed() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let (mut mix, mut last, mut count) = (0.0, 0.0, 0);
        let mut announced = false;
        let mut forecaster = WorkerForecaster::new(&observation(100.0, only(0, 0.0)));
        let mut previous = 100.0f64;
        for k in 0..600 {
            let speed = if announced { 50.0 } else { 100.0 } * (1.0 + 0.02 * (rng.random::<f64>() - 0.5));
            if k >= 200 {
                mix += (forecaster.forecast().speed / speed).ln().powi(2);
                last += (previous / speed).ln().powi(2);
                count += 1;
            }
            announced = rng.random::<f64>() < 0.3;
            forecaster.observe(&observation(speed, only(0, f64::from(announced))));
            previous = speed;
        }
        let (mix, last) = ((mix / f64::from(count)).sqrt(), (last / f64::from(count)).sqrt());
        assert!(mix < 0.2 * last, "mix {mix} against last value {last}");
    }

    /// After a change of regime the mix follows within a few iterations.
    #[test]
    fn a_new_regime_takes_a_few_iterations() {
        let mut forecaster = WorkerForecaster::new(&observation(100.0, Drivers::default()));
        for _ in 0..300 {
            forecaster.observe(&observation(100.0, Drivers::default()));
        }
        for _ in 0..5 {
            forecaster.observe(&observation(40.0, Drivers::default()));
        }
        let speed = forecaster.forecast().speed;
        assert!((speed / 40.0).ln().abs() < 0.1, "{speed}");
    }
}
