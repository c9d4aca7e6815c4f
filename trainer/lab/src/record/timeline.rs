//! Timelines of iterations: the times of a worker's base batch, chunks, claims and all-reduce, for charts of
//! a step.
//!
//! Times are on the machine's monotonic clock. Processes on the same machine share this clock; different
//! machines do not.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use evenstep_protocol::WorkerId;
use serde::{Deserialize, Serialize};

use super::append;
use crate::load::clock_s;
use evenstep_trainer::plan::Policy;

/// Maximum number of lines per file. All lines are held in memory.
const LINES_MAX: usize = 100_000;

/// One worker's part in one iteration; times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepTimeline {
    /// The worker.
    pub worker: WorkerId,
    /// The policy.
    pub policy: Policy,
    /// Number of the iteration, from 0.
    pub iteration: u64,
    /// Start time, before the request for the allocation.
    pub began_s: f64,
    /// Parts that the worker loaded and computed: the base batch first, then each chunk.
    pub parts: Vec<Part>,
    /// Waits for responses to claims.
    pub claims: Vec<Interval>,
    /// Time at which the worker entered the all-reduce.
    pub arrived_s: f64,
    /// Time at which the all-reduce finished.
    pub reduced_s: f64,
}

/// Samples that a worker computed together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Offset of the first sample in the iteration.
    pub offset: u64,
    /// Number of samples.
    pub samples: u64,
    /// Time of loading and computing them.
    #[serde(flatten)]
    pub interval: Interval,
}

/// A time interval in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Start time.
    pub from_s: f64,
    /// End time.
    pub to_s: f64,
}

/// Records the times of one worker in one iteration.
#[derive(Debug)]
pub struct Watch {
    began: Instant,
    /// Start of the current interval.
    last: Instant,
    parts: Vec<(u64, u64, [Instant; 2])>,
    claims: Vec<[Instant; 2]>,
    arrived: Option<Instant>,
}

impl Watch {
    /// Starts the recording of an iteration that began at `began` and whose allocation is known now.
    pub fn begin(began: Instant) -> Self {
        Self { began, last: Instant::now(), parts: Vec::new(), claims: Vec::new(), arrived: None }
    }

    /// Records that samples were loaded and computed since the last call.
    pub fn computed(&mut self, offset: u64, samples: u64) {
        let interval = self.lap();
        self.parts.push((offset, samples, interval));
    }

    /// Records a wait for a claim since the last call.
    pub fn claimed(&mut self) {
        let interval = self.lap();
        self.claims.push(interval);
    }

    /// Records the start of the all-reduce.
    pub fn enters_all_reduce(&mut self) {
        self.arrived = Some(Instant::now());
    }

    fn lap(&mut self) -> [Instant; 2] {
        let now = Instant::now();
        [std::mem::replace(&mut self.last, now), now]
    }
}

/// Writes the timelines of a rank to the file `RANK.jsonl`.
#[derive(Debug)]
pub struct TimelineLog {
    path: PathBuf,
    file: File,
    every: u64,
    worker: WorkerId,
}

impl TimelineLog {
    /// Creates the file of a rank. With `resumes`, appends to the file that the rank wrote before its
    /// restart. Every `every`-th iteration is written.
    ///
    /// # Errors
    /// Fails if the folder or the file cannot be created.
    pub fn open(folder: &Path, rank: usize, worker: WorkerId, every: u64, resumes: bool) -> Result<Self> {
        let path = folder.join(format!("{rank}.jsonl"));
        let open = || if resumes { append::open(&path) } else { File::create(&path) };
        let file = fs::create_dir_all(folder).and_then(|()| open());
        let file = file.with_context(|| format!("timeline {}", path.display()))?;
        Ok(Self { path, file, every, worker })
    }

    /// Writes the timeline of an iteration whose all-reduce has just ended, if its number is a multiple
    /// of `every`.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&mut self, policy: Policy, iteration: u64, watch: Watch) -> Result<()> {
        if !iteration.is_multiple_of(self.every) {
            return Ok(());
        }
        let (now, now_s) = (Instant::now(), clock_s());
        let seconds = |at: Instant| now_s - now.saturating_duration_since(at).as_secs_f64();
        let interval = |[from, to]: [Instant; 2]| Interval { from_s: seconds(from), to_s: seconds(to) };
        let part = |(offset, samples, at)| Part { offset, samples, interval: interval(at) };
        let timeline = StepTimeline {
            worker: self.worker.clone(),
            policy,
            iteration,
            began_s: seconds(watch.began),
            parts: watch.parts.into_iter().map(part).collect(),
            claims: watch.claims.into_iter().map(interval).collect(),
            arrived_s: seconds(watch.arrived.unwrap_or(now)),
            reduced_s: now_s,
        };
        let mut line = serde_json::to_vec(&timeline)?;
        line.push(b'\n');
        self.file.write_all(&line).with_context(|| format!("timeline {}", self.path.display()))
    }
}

/// Reads the timelines of all workers from a folder, by rank.
///
/// # Errors
/// Fails if the folder has no timelines, a file cannot be read, or a line is malformed.
pub fn read(folder: &Path) -> Result<Vec<Vec<StepTimeline>>> {
    let mut ranks = Vec::new();
    loop {
        let path = folder.join(format!("{}.jsonl", ranks.len()));
        let named = || format!("timeline {}", path.display());
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !ranks.is_empty() => return Ok(ranks),
            Err(error) => return Err(error).with_context(named),
        };
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(BufReader::new(file).lines()) {
            ensure!(
                number <= LINES_MAX,
                "{}: the file must have at most {LINES_MAX} lines; write fewer with --timeline-every",
                named()
            );
            let timeline = serde_json::from_str(&line.with_context(named)?);
            lines.push(timeline.with_context(|| format!("{}, line {number}", named()))?);
        }
        ranks.push(lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_events_are_read_back_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let worker = WorkerId::new("node/0").unwrap();
        let mut log = TimelineLog::open(folder.path(), 0, worker.clone(), 2, false).unwrap();
        for iteration in 0..3 {
            let mut watch = Watch::begin(Instant::now());
            watch.computed(0, 40);
            watch.claimed();
            watch.computed(100, 8);
            watch.claimed();
            watch.enters_all_reduce();
            log.write(Policy::Evenstep, iteration, watch).unwrap();
        }
        let read = read(folder.path()).unwrap();
        let [rank] = read.as_slice() else { panic!("{read:?}") };
        assert_eq!(rank.iter().map(|timeline| timeline.iteration).collect::<Vec<_>>(), [0, 2]);
        for timeline in rank {
            let parts: Vec<_> = timeline.parts.iter().map(|part| (part.offset, part.samples)).collect();
            assert_eq!((&timeline.worker, parts), (&worker, vec![(0, 40), (100, 8)]));
            let at = |interval: Interval| [interval.from_s, interval.to_s];
            let mut times = vec![timeline.began_s];
            for (part, claim) in timeline.parts.iter().zip(&timeline.claims) {
                times.extend(at(part.interval).into_iter().chain(at(*claim)));
            }
            times.extend([timeline.arrived_s, timeline.reduced_s]);
            assert!(times.windows(2).all(|pair| pair[0] <= pair[1] + 1e-7), "{times:?}");
        }
    }
}
