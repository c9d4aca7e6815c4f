//! What was recorded: series of rows, and the jobs that they make up.

use std::collections::BTreeMap;

/// One iteration of one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// When it came, in the job's own order: rows of several series with the same tick are of the same iteration.
    pub tick: u64,
    /// Samples computed, at least 1.
    pub batch: u64,
    /// Samples per second of compute time; positive and finite.
    pub speed: f64,
    /// Drivers known just before the iteration, in the order of [`Job::drivers`]; finite where they are known.
    pub drivers: Vec<Option<f64>>,
}

impl Row {
    /// Time of the compute in seconds.
    pub fn compute_time_s(&self) -> f64 {
        self.batch as f64 / self.speed
    }
}

/// What one worker did.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The worker.
    pub id: String,
    /// Its rows; ticks rise.
    pub rows: Vec<Row>,
}

/// The series of one trace. Models may share what they learn between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Where it was recorded.
    pub trace: String,
    /// Names of the drivers.
    pub drivers: Vec<String>,
    /// One for each worker.
    pub series: Vec<Series>,
}

impl Job {
    /// The job without the drivers that never change: they say nothing, and every input of a model takes rows to learn.
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

    /// Who has a row at each tick, in order: (worker, row).
    pub fn ticks(&self) -> impl Iterator<Item = Vec<(usize, usize)>> {
        let mut ticks: BTreeMap<u64, Vec<(usize, usize)>> = BTreeMap::new();
        for (worker, series) in self.series.iter().enumerate() {
            for (row, known) in series.rows.iter().enumerate() {
                ticks.entry(known.tick).or_default().push((worker, row));
            }
        }
        ticks.into_values()
    }
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
