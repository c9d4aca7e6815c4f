//! Recorded data: series of rows, grouped into jobs.

use std::collections::BTreeMap;

/// One iteration of one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Position in the order of the job. Rows of several series with the same tick belong to the same
    /// iteration.
    pub tick: u64,
    /// Samples computed, at least 1.
    pub batch: u64,
    /// Samples per second of compute time; positive and finite.
    pub speed: f64,
    /// Drivers known just before the iteration, in the order of [`Job::drivers`]; `None` if unknown,
    /// otherwise finite.
    pub drivers: Vec<Option<f64>>,
}

impl Row {
    /// Returns the compute time in seconds.
    pub fn compute_time_s(&self) -> f64 {
        self.batch as f64 / self.speed
    }
}

/// Record of one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Id of the worker.
    pub id: String,
    /// Rows in increasing order of ticks.
    pub rows: Vec<Row>,
}

/// All series of one trace. Models may learn from all of them jointly.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Source of the recording.
    pub trace: String,
    /// Names of the drivers.
    pub drivers: Vec<String>,
    /// One series per worker.
    pub series: Vec<Series>,
}

impl Job {
    /// Removes drivers that never change. They carry no information, and each input of a model needs rows to
    /// learn from.
    pub fn without_constant_drivers(mut self) -> Self {
        let changes = |at: usize| {
            let mut known =
                self.series.iter().flat_map(|series| &series.rows).filter_map(|row| row.drivers[at]);
            let first = known.next();
            known.any(|value| Some(value) != first)
        };
        let keep: Vec<bool> = (0..self.drivers.len()).map(changes).collect();
        let mut kept = keep.iter();
        self.drivers.retain(|_| kept.next() == Some(&true));
        for row in self.series.iter_mut().flat_map(|series| &mut series.rows) {
            let mut kept = keep.iter();
            row.drivers.retain(|_| kept.next() == Some(&true));
        }
        self
    }

    /// Returns the (worker, row) pairs of each tick, in order of ticks.
    pub fn ticks(&self) -> impl Iterator<Item = Vec<(usize, usize)>> {
        let mut ticks: BTreeMap<u64, Vec<(usize, usize)>> = BTreeMap::new();
        for (worker, series) in self.series.iter().enumerate() {
            for (row, known) in series.rows.iter().enumerate() {
                ticks.entry(known.tick).or_default().push((worker, row));
            }
        }
        ticks.into_values()
    }

    /// Returns the row of each worker in each iteration of which every worker has a row, in order.
    pub fn complete(&self) -> impl Iterator<Item = Vec<usize>> {
        let workers = self.series.len();
        let rows = |tick: Vec<(usize, usize)>| tick.into_iter().map(|(_, row)| row).collect();
        self.ticks().filter(move |tick| tick.len() == workers).map(rows)
    }
}

/// Number of iterations that suffice, even if many more have no row of some worker.
const ENOUGH: usize = 100;

/// Whether results over these complete iterations describe a job whose worker with the fewest rows has this number of rows.
pub fn is_enough(complete: usize, fewest: usize) -> bool {
    complete >= ENOUGH || 2 * complete >= fewest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_never_changes_is_left_out() {
        let row =
            |tick, drivers: [Option<f64>; 3]| Row { tick, batch: 1, speed: 1.0, drivers: drivers.to_vec() };
        let rows = vec![
            row(0, [Some(1.0), Some(2.0), None]),
            row(1, [None, Some(3.0), None]),
            row(2, [Some(1.0), None, None]),
        ];
        let drivers = ["constant", "changing", "missing"].map(String::from).to_vec();
        let job = Job { trace: "t".into(), drivers, series: vec![Series { id: "w".into(), rows }] };
        let job = job.without_constant_drivers();
        assert_eq!(job.drivers, ["changing"]);
        assert_eq!(job.series[0].rows[0].drivers, [Some(2.0)]);
    }
}
