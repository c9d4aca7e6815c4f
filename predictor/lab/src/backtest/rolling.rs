//! Rolling origin: a model walks through a job, forecasts each row from earlier rows, then sees the actual
//! row.

use evenstep_core::forecast::{AdaptiveInterval, COVERAGE};

use super::clock::Clock;
use super::error::BacktestError;
use super::job::{Job, Row, Series};

/// Minimum number of rows after the warm-up. Fewer have no spread to compare an error with.
pub const TEST_ROWS_MIN: usize = 2;

/// Minimum number of rows of the warm-up. Before the first row, no model has a forecast.
const WARMUP_ROWS_MIN: usize = 1;

/// Settings of a walk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WalkSettings {
    /// Share of each series used only for learning, in (0, 1).
    pub warmup: f64,
}

impl WalkSettings {
    /// Returns the number of warm-up rows of a series.
    ///
    /// # Errors
    /// [`BacktestError::TooFewRows`] if the warm-up, or the range after it, is too short.
    pub fn warmup_rows(&self, series: &Series) -> Result<usize, BacktestError> {
        let rows = series.rows.len();
        let warmup = self.warmup_of(rows);
        if warmup < WARMUP_ROWS_MIN || rows < warmup + TEST_ROWS_MIN {
            let (warmup_min, test_min) = (WARMUP_ROWS_MIN, TEST_ROWS_MIN);
            return Err(BacktestError::TooFewRows {
                id: series.id.clone(),
                rows,
                warmup,
                warmup_min,
                test_min,
            });
        }
        Ok(warmup)
    }

    /// Returns the number of warm-up rows in a series of `rows` rows.
    pub fn warmup_of(&self, rows: usize) -> usize {
        (rows as f64 * self.warmup) as usize
    }
}

/// Interface of a forecaster of all workers of a job. At each boundary the walk passes the drivers, requests
/// forecasts, and then passes the actual row.
pub trait JobModel {
    /// Receives the drivers read just before the next iteration.
    fn boundary(&mut self, worker: usize, drivers: &[Option<f64>]);
    /// Forecasts the speed of a coming iteration with this batch; `None` without enough data.
    fn forecast(&mut self, worker: usize, batch: u64) -> Option<Prediction>;
    /// Receives the outcome of the iteration.
    fn observe(&mut self, worker: usize, batch: u64, compute_time_s: f64);
    /// Learns from all workers of the iteration, after all outcomes were passed.
    fn learn(&mut self) {}
}

/// Forecast of a row by a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Samples per second of compute time.
    pub speed: f64,
    /// Prediction interval of the model, if it has one.
    pub interval: Option<(f64, f64)>,
}

/// Forecast of a row with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Forecast speed in samples per second.
    pub speed: f64,
    /// Lower bound of the interval.
    pub lower: f64,
    /// Upper bound of the interval.
    pub upper: f64,
}

/// Forecasts of one model on one series.
#[derive(Debug, Clone, PartialEq)]
pub struct Track {
    /// First row after the warm-up.
    pub start: usize,
    /// Forecasts of all rows, including the warm-up; `None` for rows without a forecast.
    pub points: Vec<Option<Point>>,
    /// Seconds of training over the whole series.
    pub fit_s: f64,
    /// Mean time of a forecast in microseconds, including the input of drivers.
    pub predict_us: f64,
    /// Reason why some rows have no forecast.
    pub failure: Option<String>,
}

impl Track {
    /// Returns actual and forecast speed of each row after the warm-up. `None` if any row has no forecast,
    /// because the remaining rows would give a biased error.
    pub fn pairs(&self, series: &Series) -> Option<Vec<(f64, f64)>> {
        self.rows(series).map(|(row, point)| Some((row.speed, point?.speed))).collect()
    }

    /// Returns actual speed, forecast and interval of each row. `None` as for [`Track::pairs`].
    pub fn bands(&self, series: &Series) -> Option<Vec<(f64, f64, f64, f64)>> {
        let band = |row: &Row, point: Point| (row.speed, point.speed, point.lower, point.upper);
        self.rows(series).map(|(row, point)| Some(band(row, point?))).collect()
    }

    fn rows<'a>(&'a self, series: &'a Series) -> impl Iterator<Item = (&'a Row, Option<Point>)> {
        series.rows.iter().zip(self.points.iter().copied()).skip(self.start)
    }
}

/// State of one series during the walk.
struct SeriesWalk {
    start: usize,
    /// Forecasts by row, including the warm-up.
    points: Vec<Option<Point>>,
    interval: AdaptiveInterval,
    forecasts: usize,
    fit_s: f64,
    predict_s: f64,
    invalid_forecast: Option<String>,
}

/// Walks a model through a job. If the model has no interval, an
/// [`AdaptiveInterval`] over the residuals of its forecasts replaces it.
///
/// # Errors
/// [`BacktestError::TooFewRows`] if a series is too short.
pub fn walk_job(
    job: &Job,
    model: &mut dyn JobModel,
    plan: &WalkSettings,
    clock: Clock<'_>,
) -> Result<Vec<Track>, BacktestError> {
    let walker = |series: &Series| {
        Ok(SeriesWalk {
            start: plan.warmup_rows(series)?,
            points: vec![None; series.rows.len()],
            interval: AdaptiveInterval::new(COVERAGE),
            forecasts: 0,
            fit_s: 0.0,
            predict_s: 0.0,
            invalid_forecast: None,
        })
    };
    let mut walkers = job.series.iter().map(walker).collect::<Result<Vec<SeriesWalk>, BacktestError>>()?;
    for tick in job.ticks() {
        // All workers reach the boundary before any of them computes.
        for &(worker, at) in &tick {
            let rows = &job.series[worker].rows;
            walkers[worker].forecast(worker, &rows[at], at, model, clock);
        }
        for &(worker, at) in &tick {
            walkers[worker].compare_and_learn(worker, &job.series[worker].rows[at], at, model, clock);
        }
        let began = clock();
        model.learn();
        let each_s = (clock() - began) / tick.len() as f64;
        for (worker, _) in tick {
            walkers[worker].fit_s += each_s;
        }
    }
    Ok(walkers.into_iter().map(SeriesWalk::end).collect())
}

impl SeriesWalk {
    fn forecast(&mut self, worker: usize, row: &Row, at: usize, model: &mut dyn JobModel, clock: Clock<'_>) {
        let began = clock();
        model.boundary(worker, &row.drivers);
        // The batch of the row is a decision, not a measurement, so it is known.
        let forecast = model.forecast(worker, row.batch);
        self.predict_s += clock() - began;
        self.forecasts += 1;
        let Some(forecast) = forecast else { return };
        if !(forecast.speed.is_finite() && forecast.speed > 0.0) {
            self.invalid_forecast = Some(format!("row {at} has the invalid forecast {}", forecast.speed));
            return;
        }
        let spread = self.interval.half_width().exp();
        let (lower, upper) = forecast.interval.unwrap_or((forecast.speed / spread, forecast.speed * spread));
        self.points[at] = Some(Point { speed: forecast.speed, lower, upper });
    }

    fn compare_and_learn(
        &mut self,
        worker: usize,
        row: &Row,
        at: usize,
        model: &mut dyn JobModel,
        clock: Clock<'_>,
    ) {
        if let Some(point) = self.points[at] {
            self.interval.score(at as u64, (row.speed / point.speed).ln());
        }
        let began = clock();
        model.observe(worker, row.batch, row.compute_time_s());
        self.fit_s += clock() - began;
    }

    fn end(self) -> Track {
        let counted = &self.points[self.start..];
        let missing = counted.iter().filter(|point| point.is_none()).count();
        let why = self.invalid_forecast.unwrap_or_else(|| "the model had too little data".into());
        Track {
            start: self.start,
            failure: (missing > 0)
                .then(|| format!("no forecast for {missing} of {} rows: {why}", counted.len())),
            points: self.points,
            fit_s: self.fit_s,
            predict_us: 1e6 * self.predict_s / self.forecasts.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::backtest::ModelName;

    const EVERY_KIND: [&str; 5] = ["last", "ma_3", "ema_0.5", "arx", "mix"];

    fn job(speeds: &[&[f64]]) -> Job {
        let row = |(k, speed): (usize, &f64)| Row {
            tick: k as u64,
            batch: 8,
            speed: *speed,
            drivers: vec![Some((k * 7919 % 13) as f64)],
        };
        let series = |speeds: &&[f64]| Series {
            id: speeds.len().to_string(),
            rows: speeds.iter().enumerate().map(row).collect(),
        };
        Job {
            trace: "t".into(),
            drivers: vec!["other_cpu".into()],
            series: speeds.iter().map(series).collect(),
        }
    }

    fn tracks(job: &Job, model: &str, plan: &WalkSettings) -> Vec<Track> {
        let mut model = model.parse::<ModelName>().unwrap().build(&job.drivers, job.series.len());
        walk_job(job, model.as_mut(), plan, &|| 0.0).unwrap()
    }

    fn speeds(track: &Track) -> Vec<Option<f64>> {
        // Equal to the nearest thousandth, because of the logarithm and back.
        track.points[track.start..]
            .iter()
            .map(|point| Some((point.as_ref()?.speed * 1e3).round() / 1e3))
            .collect()
    }

    /// By hand: the last value of each row, and the EMA(0.5) of logarithms, the geometric mean of level and
    /// value.
    #[test]
    fn simple_models_forecast_what_their_formula_says() {
        let job = job(&[&[1.0, 4.0, 16.0, 1.0, 2.0]]);
        let plan = WalkSettings { warmup: 0.4 };
        let of = |model| speeds(&tracks(&job, model, &plan)[0]);
        assert_eq!(of("last"), [Some(4.0), Some(16.0), Some(1.0)]);
        assert_eq!(of("ema_0.5"), [Some(2.0), Some(5.657), Some(2.378)]);
        assert_eq!(of("ma_2"), [Some(2.0), Some(8.0), Some(4.0)]);
    }

    #[test]
    fn each_worker_has_its_own_past_and_its_own_warm_up() {
        let job = job(&[&[1.0, 2.0, 3.0, 4.0], &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]]);
        let tracks = tracks(&job, "last", &WalkSettings { warmup: 0.5 });
        assert_eq!((tracks[0].start, speeds(&tracks[0])), (2, vec![Some(2.0), Some(3.0)]));
        assert_eq!((tracks[1].start, speeds(&tracks[1])), (3, vec![Some(30.0), Some(40.0), Some(50.0)]));
        assert_eq!(tracks[1].pairs(&job.series[1]).unwrap()[2].0, 60.0);
    }

    /// A model with a fixed forecast.
    struct FixedForecast(f64, Option<(f64, f64)>);

    impl JobModel for FixedForecast {
        fn boundary(&mut self, _worker: usize, _drivers: &[Option<f64>]) {}

        fn forecast(&mut self, _worker: usize, _batch: u64) -> Option<Prediction> {
            Some(Prediction { speed: self.0, interval: self.1 })
        }

        fn observe(&mut self, _worker: usize, _batch: u64, _compute_time_s: f64) {}
    }

    fn scripted(speed: f64, interval: Option<(f64, f64)>) -> Track {
        let halves = AtomicU32::new(0);
        let clock = || 0.5 * f64::from(halves.fetch_add(1, Ordering::Relaxed));
        let plan = WalkSettings { warmup: 0.5 };
        walk_job(&job(&[&[1.0; 10]]), &mut FixedForecast(speed, interval), &plan, &clock).unwrap().remove(0)
    }

    #[test]
    fn invalid_speeds_give_no_forecast() {
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let track = scripted(speed, None);
            assert_eq!(track.points, [None; 10]);
            assert!(
                track
                    .failure
                    .as_ref()
                    .unwrap()
                    .starts_with("no forecast for 5 of 5 rows: row 9 has the invalid forecast")
            );
            let job = job(&[&[1.0; 10]]);
            assert_eq!((track.pairs(&job.series[0]), track.bands(&job.series[0])), (None, None));
        }
    }

    /// The interval of a model is used if it has one; otherwise the residuals determine it.
    /// The clock advances by half a second at each reading: a row takes one interval to observe, one to learn
    /// and one to forecast.
    #[test]
    fn intervals_and_times() {
        let own = scripted(2.0, Some((1.0, 3.0)));
        assert_eq!(own.points[9], Some(Point { speed: 2.0, lower: 1.0, upper: 3.0 }));
        assert_eq!((own.fit_s, own.predict_us, own.failure), (10.0, 0.5e6, None));
        let from_residuals = scripted(2.0, None).points[5].unwrap();
        assert!(from_residuals.lower < 2.0 && from_residuals.upper > 2.0 && from_residuals.lower != 1.0);
    }

    /// After ten residuals of log 2, the interval reaches exactly from 1 to 4.
    #[test]
    fn an_interval_learns_from_residuals() {
        let job = job(&[&[1.0; 24]]);
        let plan = WalkSettings { warmup: 0.5 };
        let tracks = walk_job(&job, &mut FixedForecast(2.0, None), &plan, &|| 0.0).unwrap();
        let point = tracks[0].points[23].unwrap();
        assert!((point.lower - 1.0).abs() < 1e-9 && (point.upper - 4.0).abs() < 1e-9, "{point:?}");
    }

    #[test]
    fn too_few_rows_are_counted() {
        let job = job(&[&[1.0, 2.0, 3.0, 4.0]]);
        let warmup = |warmup| WalkSettings { warmup }.warmup_rows(&job.series[0]);
        assert_eq!(warmup(0.5), Ok(2));
        let said = warmup(0.1).unwrap_err().to_string();
        assert_eq!(
            said,
            "4: 4 rows, of which 0 are warm-up; the warm-up needs at least 1 rows, and at least 2 must \
                follow it"
        );
        assert!(warmup(0.9).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// No future information leaks into forecasts. If rows from `changed` on change, forecasts of earlier rows
        /// stay the same. So does the forecast of row `changed` if its drivers stay the same.
        #[test]
        fn later_values_do_not_change_earlier_forecasts(
            speeds in prop::collection::vec(50.0f64..150.0, 60..70), changed in 24usize..50,
            drivers_too: bool
        ) {
            let plan = WalkSettings { warmup: 0.4 };
            let one = job(&[&speeds, &speeds[1..]]);
            let mut other = one.clone();
            for series in &mut other.series {
                for row in &mut series.rows[changed..] {
                    row.speed *= 1.5;
                    if drivers_too {
                        row.drivers[0] = Some(99.0);
                    }
                }
                if !drivers_too {
                    for row in &mut series.rows[changed + 1..] {
                        row.drivers[0] = None;
                    }
                }
            }
            let safe = changed + 1 - usize::from(drivers_too);
            for model in EVERY_KIND {
                let (ones, others) = (tracks(&one, model, &plan), tracks(&other, model, &plan));
                for (a, b) in ones.iter().zip(&others) {
                    prop_assert!(a.failure.is_none(), "{model}: {:?}", a.failure);
                    let kept = safe.min(a.points.len());
                    prop_assert_eq!(&a.points[..kept], &b.points[..kept], "{}", model);
                }
            }
        }
    }
}
