//! The record of a run: JSON lines, one per iteration, as input for reports; or a table for backtests.

mod append;
mod run_line;
pub mod sample_log;
mod table;

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use evenstep_trainer::progress::{EndLine, IterationLine, RegroupLine};

use crate::load::Timeline;
pub use run_line::{RunLine, Scenario};
use table::Table;

/// A line of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// The first line: the settings of the run.
    Run(RunLine),
    /// The measurements of one iteration.
    Iteration(Box<IterationLine>),
    /// A change of the group of workers.
    Regroup(RegroupLine),
    /// The last line of each policy.
    End(EndLine),
}

/// An error when writing or reading a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Reading or writing failed.
    #[error("record {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The record to read is a table.
    #[error(
        "record {path} is a table for backtests, not JSON lines; record with a file name that does not end in .csv"
    )]
    Table {
        /// The file.
        path: PathBuf,
    },
    /// A line is not a line of a record.
    #[error("record {path}, line {line}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The cause.
        source: serde_json::Error,
    },
}

/// Writes a record.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    form: RecordFormat,
}

#[derive(Debug)]
enum RecordFormat {
    Lines(BufWriter<File>),
    Table(Box<Table<File>>),
}

impl Recorder {
    /// Creates the record of a run: a table if the file's name ends in `.csv`, otherwise JSON lines. An
    /// existing file is replaced.
    ///
    /// `loads` are the loads of the workers by rank, if known. Only a table contains them.
    ///
    /// # Errors
    /// Fails if the file cannot be created or written.
    pub fn begin(path: &Path, run: RunLine, loads: Vec<Timeline>) -> Result<Self, RecordError> {
        let failed = |source| RecordError::File { path: path.to_owned(), source };
        let file = File::create(path).map_err(failed)?;
        if is_table(path) {
            let table = Box::new(Table::begin(file, &run, loads).map_err(failed)?);
            return Ok(Self { path: path.to_owned(), form: RecordFormat::Table(table) });
        }
        let mut recorder = Self { path: path.to_owned(), form: RecordFormat::Lines(BufWriter::new(file)) };
        recorder.write(&Line::Run(run))?;
        Ok(recorder)
    }

    /// Continues the JSON lines of another process, and removes an incomplete line at the end.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or truncated.
    pub fn reopen(path: &Path) -> Result<Self, RecordError> {
        let file =
            append::open(path).map_err(|source| RecordError::File { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), form: RecordFormat::Lines(BufWriter::new(file)) })
    }

    /// Appends a line, or its rows if the record is a table.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&mut self, line: &Line) -> Result<(), RecordError> {
        let written = match (&mut self.form, line) {
            (RecordFormat::Lines(file), line) => serde_json::to_writer(&mut *file, line)
                .map_err(io::Error::from)
                .and_then(|()| file.write_all(b"\n")),
            (RecordFormat::Table(table), Line::Iteration(iteration)) => table.add(iteration),
            // These lines have no rows; the header comes from the run's line.
            (RecordFormat::Table(_), Line::Run(_) | Line::Regroup(_) | Line::End(_)) => Ok(()),
        };
        written.map_err(|source| self.failed(source))
    }

    /// Writes all buffered lines to the file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        let flushed = match &mut self.form {
            RecordFormat::Lines(file) => file.flush(),
            RecordFormat::Table(table) => table.flush(),
        };
        flushed.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> RecordError {
        RecordError::File { path: self.path.clone(), source }
    }
}

/// Returns whether a record with this file name is a table.
pub fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"))
}

/// Reads a record line by line.
///
/// # Errors
/// Fails if the file cannot be opened or is a table. Each item of the iterator is a line or its error.
pub fn read(path: &Path) -> Result<impl Iterator<Item = Result<Line, RecordError>>, RecordError> {
    if is_table(path) {
        return Err(RecordError::Table { path: path.to_owned() });
    }
    let failed = {
        let path = path.to_owned();
        move |source| RecordError::File { path: path.clone(), source }
    };
    let file = File::open(path).map_err(&failed)?;
    let path = path.to_owned();
    Ok(BufReader::new(file).lines().enumerate().map(move |(index, line)| {
        let line = line.map_err(&failed)?;
        serde_json::from_str(&line).map_err(|source| RecordError::Malformed {
            path: path.clone(),
            line: index + 1,
            source,
        })
    }))
}

#[cfg(test)]
mod tests {
    use evenstep_protocol::{LearningRateRule, TailReport, WorkerId};
    use evenstep_trainer::plan::Policy;
    use evenstep_trainer::progress::WorkerLine;

    use super::*;
    use crate::load::LoadKind;

    #[test]
    fn lines_survive_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.jsonl");
        let worker = WorkerId::new("node/0").unwrap();
        let run = RunLine {
            scenario: Scenario::Paced,
            job_id: None,
            paces: Some(vec![1.0, 2.0]),
            load: Some(LoadKind::Walk),
            workers: vec![worker.clone()],
            global_batch: 64,
            per_worker_batch: Some(32),
            rule: LearningRateRule::Adascale,
            model: "mlp".into(),
            data: "task".into(),
            steps: 1,
            seed: 1,
            policies: vec![Policy::Even, Policy::Evenstep],
            elastic: false,
            block: 20,
            notes: vec!["imposed speeds".into()],
        };
        let iteration = Line::Iteration(Box::new(IterationLine {
            policy: Policy::Evenstep,
            iteration: 3,
            epoch: 0,
            at_s: 1.5,
            global_batch: 64,
            lr_multiplier: Some(1.5),
            schedule_iteration: Some(4.5),
            step_time_s: 0.1,
            request_s: 0.001,
            round_trip_s: Some(0.0008),
            server_s: None,
            all_reduce_s: 0.01,
            loss: 2.3,
            generation: None,
            decision: None,
            gradient_difference: Some(1e-7),
            workers: vec![WorkerLine {
                worker,
                local_batch: 64,
                compute_time_s: 0.09,
                micro_batches: Some(3),
                tail: Some(TailReport { chunks: 1, samples: 8, compute_time_s: 0.01, claim_time_s: 0.0 }),
                barrier_wait_s: 0.0,
                loader_wait_s: 0.0,
                predicted_compute_time_s: None,
                predicted_speed_samples_per_s: None,
                speed_lower_samples_per_s: None,
                speed_upper_samples_per_s: None,
                drivers: [("other_cpu".to_owned(), 0.5)].into(),
            }],
        }));
        let mut recorder = Recorder::begin(&path, run.clone(), Vec::new()).unwrap();
        recorder.write(&iteration).unwrap();
        recorder.flush().unwrap();
        let lines: Vec<Line> = read(&path).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(lines, [Line::Run(run.clone()), iteration.clone()]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(r#"{"kind":"run","scenario":"paced""#), "{text}");

        let table = folder.path().join("record.CSV");
        let mut recorder = Recorder::begin(&table, run, Vec::new()).unwrap();
        recorder.write(&iteration).unwrap();
        recorder.flush().unwrap();
        let text = std::fs::read_to_string(&table).unwrap();
        assert!(text.starts_with("worker,t_start,iter,batch,iter_ms,speed,"), "{text}");
        assert_eq!(text.lines().count(), 2);
        assert!(matches!(read(&table).map(Iterator::count), Err(RecordError::Table { .. })));

        std::fs::write(&path, "{\"kind\":\"walk\"}\n").unwrap();
        let error = read(&path).unwrap().next().unwrap().unwrap_err();
        assert!(matches!(error, RecordError::Malformed { line: 1, .. }));
    }
}
