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
