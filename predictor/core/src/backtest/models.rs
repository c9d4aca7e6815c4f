//! The models of a backtest by name, and what stands behind each.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use super::recipes::RecipeName;
use super::refit::{Refits, Refitted};
use super::rolling::{JobModel, Prediction};
use crate::forecast::batch::FitError;
use crate::forecast::{EXPERT_NAMES, Ema, WorkerForecaster};
use crate::series::{Drivers, Observation};

/// The streaming models, as a person would write them. Batch models stand beside them: [`RecipeName::ALL`].
const STREAMING: &str = "last, ma_N (mean of N rows), ema_ALPHA (0 < ALPHA <= 1), arx, mix";
/// What is compared where no models are named.
pub const DEFAULT_MODELS: [&str; 5] = ["last", "ema_0.3", "ema_0.6", "arx", "mix"];
/// The most rows of a moving average.
pub const MOVING_AVERAGE_ROWS_MAX: usize = 10_000;
/// What `ma` stands for.
const MOVING_AVERAGE_ROWS_DEFAULT: usize = 5;
/// What `ema` stands for.
const EMA_ALPHA_DEFAULT: f64 = 0.3;

/// The name of a model. It prints as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelName {
    written: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Last,
    MovingAverage { rows: usize },
    Ema { alpha: f64 },
    Arx,
    Mix,
    Batch(RecipeName),
}

/// No model is called so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no model {name:?}; there are {STREAMING}, {}", RecipeName::ALL.map(RecipeName::as_str).join(", "))]
pub struct UnknownModel {
    name: String,
}

impl FromStr for ModelName {
    type Err = UnknownModel;

    fn from_str(written: &str) -> Result<Self, UnknownModel> {
        let kind = match written {
            "last" => Some(Kind::Last),
            "ma" => Some(Kind::MovingAverage { rows: MOVING_AVERAGE_ROWS_DEFAULT }),
            "ema" => Some(Kind::Ema { alpha: EMA_ALPHA_DEFAULT }),
            "arx" => Some(Kind::Arx),
            "mix" => Some(Kind::Mix),
            _ => RecipeName::find(written).map(Kind::Batch).or_else(|| numbered(written)),
        };
        let kind = kind.ok_or_else(|| UnknownModel { name: written.into() })?;
        Ok(Self { written: written.into(), kind })
    }
}

/// A name that ends in a number.
fn numbered(written: &str) -> Option<Kind> {
    if let Some(rows) = written.strip_prefix("ma_") {
        let rows = rows.parse().ok().filter(|rows| (1..=MOVING_AVERAGE_ROWS_MAX).contains(rows))?;
        return Some(Kind::MovingAverage { rows });
    }
    let alpha: f64 = written.strip_prefix("ema_")?.parse().ok()?;
    (alpha > 0.0 && alpha <= 1.0).then_some(Kind::Ema { alpha })
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// What a model is set up for.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// Names of the drivers.
    pub drivers: &'a [String],
    /// Rows of warm-up of each worker.
    pub warmup_rows: &'a [usize],
    /// How batch models are fitted.
    pub refits: &'a Refits,
}

impl ModelName {
    /// The last value: what every other model is compared with.
    pub fn last() -> Self {
        Self { written: "last".into(), kind: Kind::Last }
    }

    /// Whether it is the last value.
    pub fn is_last(&self) -> bool {
        self.kind == Kind::Last
    }

    /// The batch model of this name, in system identification; there `arx` is fitted by least squares.
    pub fn recipe(&self) -> Option<RecipeName> {
        match self.kind {
            Kind::Batch(recipe) => Some(recipe),
            Kind::Arx => Some(RecipeName::Arx),
            _ => None,
        }
    }

    /// A fresh model that has seen nothing.
    ///
    /// # Errors
    /// [`FitError::Setting`] where a setting of a batch model is out of range.
    pub fn build(&self, setup: &Setup<'_>) -> Result<Box<dyn JobModel>, FitError> {
        let workers = setup.warmup_rows.len();
        Ok(match self.kind {
            Kind::Last => Box::new(Apart(vec![Smoothed { alpha: 1.0, ema: None }; workers])),
            Kind::Ema { alpha } => Box::new(Apart(vec![Smoothed { alpha, ema: None }; workers])),
            Kind::MovingAverage { rows } => {
                Box::new(Apart(vec![MovingAverage { rows, recent: VecDeque::new() }; workers]))
            }
            Kind::Arx => Box::new(Experts::new(setup, EXPERT_NAMES.iter().position(|name| *name == "arx"))),
            Kind::Mix => Box::new(Experts::new(setup, None)),
            Kind::Batch(recipe) => Box::new(Refitted::new(recipe, setup)?),
        })
    }
}

/// A model of one worker's log speed from its past alone.
trait LevelModel {
    fn level(&self) -> Option<f64>;
    fn update(&mut self, log_speed: f64);
}

/// One such model for each worker, apart from the others.
struct Apart<M>(Vec<M>);

impl<M: LevelModel> JobModel for Apart<M> {
    fn boundary(&mut self, _worker: usize, _drivers: &[Option<f64>]) {}

    fn forecast(&mut self, worker: usize, _batch: u64) -> Option<Prediction> {
        Some(Prediction { speed: self.0[worker].level()?.exp(), interval: None })
    }

    fn observe(&mut self, worker: usize, batch: u64, compute_time_s: f64) {
        self.0[worker].update((batch as f64 / compute_time_s).ln());
    }
}

#[derive(Clone)]
struct Smoothed {
    alpha: f64,
    ema: Option<Ema>,
}

impl LevelModel for Smoothed {
    fn level(&self) -> Option<f64> {
        self.ema.as_ref().map(Ema::level)
    }

    fn update(&mut self, log_speed: f64) {
        match &mut self.ema {
            Some(ema) => ema.update(log_speed),
            None => self.ema = Some(Ema::new(self.alpha, log_speed)),
        }
    }
}

/// The mean of the latest rows, on the log scale as all models.
#[derive(Clone)]
struct MovingAverage {
    rows: usize,
    recent: VecDeque<f64>,
}

impl LevelModel for MovingAverage {
    fn level(&self) -> Option<f64> {
        let count = self.recent.len();
        (count > 0).then(|| self.recent.iter().sum::<f64>() / count as f64)
    }

    fn update(&mut self, log_speed: f64) {
        if self.recent.len() == self.rows {
            self.recent.pop_front();
        }
        self.recent.push_back(log_speed);
    }
}

/// The service's own forecaster for each worker: its mix, or one of its experts.
struct Experts {
    drivers: Vec<String>,
    expert: Option<usize>,
    workers: Vec<Forecasting>,
}

/// A worker's forecaster learns from an iteration once the drivers at its end are read.
#[derive(Clone, Default)]
struct Forecasting {
    forecaster: Option<WorkerForecaster>,
    unread: Option<(u64, f64)>,
}

impl Experts {
    fn new(setup: &Setup<'_>, expert: Option<usize>) -> Self {
        let workers = vec![Forecasting::default(); setup.warmup_rows.len()];
        Self { drivers: setup.drivers.to_vec(), expert, workers }
    }
}

impl JobModel for Experts {
    fn boundary(&mut self, worker: usize, drivers: &[Option<f64>]) {
        let readings =
            self.drivers.iter().zip(drivers).filter_map(|(name, value)| Some((name.as_str(), (*value)?)));
        let worker = &mut self.workers[worker];
        let Some((batch, compute_time_s)) = worker.unread.take() else { return };
        let observed = Observation::new(batch, compute_time_s, Drivers::from_readings(readings));
        match (&mut worker.forecaster, observed) {
            (_, None) => {}
            (Some(forecaster), Some(observed)) => forecaster.observe(&observed),
            (none, Some(observed)) => *none = Some(WorkerForecaster::new(&observed)),
        }
    }

    fn forecast(&mut self, worker: usize, _batch: u64) -> Option<Prediction> {
        let forecaster = self.workers[worker].forecaster.as_ref()?;
        Some(match self.expert {
            Some(expert) => Prediction { speed: forecaster.experts()[expert].speed, interval: None },
            None => {
                let forecast = forecaster.forecast();
                Prediction { speed: forecast.speed, interval: Some((forecast.lower, forecast.upper)) }
            }
        })
    }

    fn observe(&mut self, worker: usize, batch: u64, compute_time_s: f64) {
        self.workers[worker].unread = Some((batch, compute_time_s));
    }
}
