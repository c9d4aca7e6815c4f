//! The record of a run: JSON lines, one for each iteration, that reports are drawn from; or a table for backtests.

mod append;
pub mod sample_log;
mod table;
pub mod timeline;

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use evenstep_protocol::{JobId, LearningRateRule, WorkerId};
use serde::{Deserialize, Serialize};

use evenstep_trainer::plan::{AskMode, Policy};
use evenstep_trainer::progress::{EndLine, IterationLine, RegroupLine};

use crate::load::{LoadKind, Timeline};
use table::Table;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// The first: what was run.
    Run(RunLine),
    /// How one iteration went.
    Iteration(Box<IterationLine>),
    /// Workers came or went.
    Regroup(RegroupLine),
    /// The last of each policy.
    End(EndLine),
}

/// What was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunLine {
    /// What made the workers unequal.
    pub scenario: Scenario,
    /// The job id, where the predictor was asked.
    pub job_id: Option<JobId>,
    /// Imposed relative speeds in rank order.
    pub paces: Option<Vec<f64>>,
    /// What competed with the workers: a real load where they were contended, else as their imposed speeds took it to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadKind>,
    /// The workers in rank order.
    pub workers: Vec<WorkerId>,
    /// Samples per iteration; where they follow the number of workers, as the run began.
    pub global_batch: u64,
    /// Samples for each worker, where the global batch follows their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_worker_batch: Option<u64>,
    /// How the learning rate follows the global batch.
    #[serde(default)]
    pub rule: LearningRateRule,
    /// The network, in words.
    pub model: String,
    /// The data, in words.
    pub data: String,
    /// Iterations of each policy.
    pub steps: u64,
    /// The seed of model, data and order.
    pub seed: u64,
    /// When the predictor was asked.
    pub ask: AskMode,
    /// The policies, in turn.
    pub policies: Vec<Policy>,
    /// Whether workers may come and go.
    #[serde(default)]
    pub elastic: bool,
    /// Iterations that each policy ran before the next took its turn.
    pub block: u64,
    /// What a reader of the results must know, imposed speeds above all.
    pub notes: Vec<String>,
}

impl RunLine {
    /// What an iteration holds, in words.
    pub fn samples(&self) -> String {
        match self.per_worker_batch {
            Some(each) => format!("{each} samples for each worker"),
            None => format!("{} samples", self.global_batch),
        }
    }
}

/// What made the workers unequal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// Imposed speeds.
    Paced,
    /// Imposed speeds that change.
    Swayed,
    /// A real competing load.
    Contended,
    /// Nothing of ours.
    Plain,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Paced => "paced",
            Self::Swayed => "swayed",
            Self::Contended => "contended",
            Self::Plain => "plain",
        })
    }
}

/// A record that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Reading or writing failed.
    #[error("record {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A table was to be read.
    #[error(
        "record {path}: is a table for backtests; give --record a name that does not end in .csv for JSON lines"
    )]
    Table {
        /// The file.
        path: PathBuf,
    },
    /// A line is no line of a record.
    #[error("record {path}, line {line}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
}

/// Writes a record.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Lines(BufWriter<File>),
    Table(Box<Table<File>>),
}

impl Recorder {
    /// Begins the record of a run: a table where the file's name ends in `.csv`, else JSON lines. An existing file is
    /// replaced. `loads` are what competes with each worker, by rank, where that is known; only a table tells of them.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn begin(path: &Path, run: RunLine, loads: Vec<Timeline>) -> Result<Self, RecordError> {
        let failed = |source| RecordError::File { path: path.to_owned(), source };
        let file = File::create(path).map_err(failed)?;
        if is_table(path) {
            let table = Box::new(Table::begin(file, &run, loads).map_err(failed)?);
            return Ok(Self { path: path.to_owned(), form: Form::Table(table) });
        }
        let mut recorder = Self { path: path.to_owned(), form: Form::Lines(BufWriter::new(file)) };
        recorder.write(&Line::Run(run))?;
        Ok(recorder)
    }

    /// Goes on with the lines that another process began, without the half one that it may have left.
    ///
    /// # Errors
    /// The file cannot be opened or cut.
    pub fn go_on(path: &Path) -> Result<Self, RecordError> {
        let file =
            append::open(path).map_err(|source| RecordError::File { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), form: Form::Lines(BufWriter::new(file)) })
    }

    /// Adds a line, or the rows that it makes.
    ///
    /// # Errors
    /// Writing failed.
    pub fn write(&mut self, line: &Line) -> Result<(), RecordError> {
        let written = match (&mut self.form, line) {
            (Form::Lines(file), line) => serde_json::to_writer(&mut *file, line)
                .map_err(io::Error::from)
                .and_then(|()| file.write_all(b"\n")),
            (Form::Table(table), Line::Iteration(iteration)) => table.add(iteration),
            // None of them is a row: the run's line made the header.
            (Form::Table(_), Line::Run(_) | Line::Regroup(_) | Line::End(_)) => Ok(()),
        };
        written.map_err(|source| self.failed(source))
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    /// Writing failed.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        let flushed = match &mut self.form {
            Form::Lines(file) => file.flush(),
            Form::Table(table) => table.flush(),
        };
        flushed.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> RecordError {
        RecordError::File { path: self.path.clone(), source }
    }
}

/// Whether a record by this name is a table.
pub fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"))
}

/// Reads a record line by line.
///
/// # Errors
/// The file cannot be opened or is a table; each item tells what is wrong with its line.
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
    use evenstep_protocol::TailReport;
    use evenstep_trainer::progress::WorkerLine;

    use super::*;

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
            ask: AskMode::Ahead,
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
            ask_s: 0.001,
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
