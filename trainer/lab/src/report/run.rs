//! Reads a whole record and checks the rules that the results depend on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenstep_protocol::{Readings, WorkerId};

use crate::record::{self, Line, RecordError, RunLine};
use evenstep_trainer::Policy;
use evenstep_trainer::progress::statistics::{Statistics, Tally, WARM_UP};
use evenstep_trainer::progress::{EndLine, IterationLine, WorkerLine};

/// Maximum number of lines of a record. All lines are held in memory.
const LINES_MAX: usize = 2_000_000;

/// A run with its training under each policy.
#[derive(Debug)]
pub struct Run {
    /// File name of the record, without its extension.
    pub name: String,
    /// Settings of the run.
    pub line: RunLine,
    /// Trainings in the order of their turns.
    pub trainings: Vec<Training>,
}

/// The training under one policy.
#[derive(Debug)]
pub struct Training {
    /// The policy.
    pub policy: Policy,
    /// All iterations, warm-up included.
    pub iterations: Vec<IterationLine>,
    /// The end line.
    pub end: EndLine,
    /// Statistics of the iterations after the warm-up.
    pub figures: Statistics,
}

/// An error in a record that prevents a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The record cannot be read, or a line is malformed.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A line violates a rule.
    #[error("record {path}, line {line}: {rule}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The offending value and the rule.
        rule: String,
    },
    /// The record as a whole violates a rule.
    #[error("record {path}: {rule}")]
    Whole {
        /// The file.
        path: PathBuf,
        /// The offending value and the rule.
        rule: String,
    },
}

/// The lines of a policy read so far.
#[derive(Debug)]
struct Partial {
    policy: Policy,
    iterations: Vec<IterationLine>,
    end: Option<EndLine>,
}

impl Run {
    /// Reads and checks a record.
    ///
    /// # Errors
    /// Returns the first malformed line or violated rule.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let at = |line: usize| move |rule: String| ReportError::Line { path: path.to_owned(), line, rule };
        let whole = |rule: String| ReportError::Whole { path: path.to_owned(), rule };
        let mut lines = record::read(path)?;
        let mut run = match lines.next().transpose()? {
            None => return Err(whole("the file is empty: it must begin with a line of kind run".to_owned())),
            Some(Line::Run(run)) => check_run(run).map_err(at(1))?,
            Some(_) => return Err(at(1)("the first line must be of kind run".to_owned())),
        };
        let mut partial: Vec<Partial> = run
            .policies
            .iter()
            .map(|&policy| Partial { policy, iterations: Vec::new(), end: None })
            .collect();
        for (number, line) in (2..).zip(lines) {
            if number > LINES_MAX {
                return Err(whole(format!("the file must have at most {LINES_MAX} lines")));
            }
            take(&mut run, &mut partial, line?).map_err(at(number))?;
        }
        let finished = partial.into_iter().map(|training| training.finish(&run));
        let trainings = finished.collect::<Result<_, _>>().map_err(whole)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, line: run, trainings })
    }

    /// Returns the training under a policy, if the run has it.
    pub fn training(&self, policy: Policy) -> Option<&Training> {
        self.trainings.iter().find(|training| training.policy == policy)
    }

    /// Returns the throughput of a training divided by the throughput under another policy, if the run
    /// has it.
    pub fn gain(&self, training: &Training, over: Policy) -> Option<f64> {
        let other = self.training(over)?;
        Some(training.figures.throughput_samples_per_s / other.figures.throughput_samples_per_s)
    }

    /// Returns the share of the ideal that a training reaches, divided by the share under another policy,
    /// if the run has it.
    ///
    /// A changing load is never equal for both policies. This ratio removes the effect of different
    /// worker speeds.
    pub fn gain_like_for_like(&self, training: &Training, over: Policy) -> Option<f64> {
        let other = self.training(over)?;
        Some(training.figures.share_of_ideal() / other.figures.share_of_ideal())
    }

    /// Returns the barrier wait of a training divided by the barrier wait under another policy. `None` if
    /// the run does not have that policy or its workers never waited.
    pub fn waiting(&self, training: &Training, over: Policy) -> Option<f64> {
        let waited_s = self.training(over)?.figures.barrier_wait_s;
        (waited_s > 0.0).then(|| training.figures.barrier_wait_s / waited_s)
    }

    /// Returns the trainings that requested allocations from the predictor.
    pub fn asking(&self) -> impl DoubleEndedIterator<Item = &Training> {
        self.trainings.iter().filter(|training| training.policy.requests_allocations())
    }

    /// Returns the main training of the run: the last one that requested allocations from the predictor.
    pub fn headline(&self) -> Option<&Training> {
        self.asking().next_back()
    }
}

impl Training {
    /// Returns the iterations after the warm-up.
    pub fn counted(&self) -> &[IterationLine] {
        &self.iterations[WARM_UP.min(self.iterations.len())..]
    }
}

impl Partial {
    fn finish(self, run: &RunLine) -> Result<Training, String> {
        let Self { policy, mut iterations, end } = self;
        for line in &mut iterations {
            // In an elastic run, workers that joined later.
            let there = line.workers.len();
            line.workers.extend(run.workers[there..].iter().map(absent));
        }
        let Some(end) = end else {
            return Err(format!("no end line of policy {policy}: the run was interrupted"));
        };
        let mut tally = Tally::default();
        for line in &iterations {
            tally.add(line);
        }
        let figures = tally.statistics().ok_or_else(|| {
            format!(
                "policy {policy} has {} iterations: must be more than the {WARM_UP} iterations of the warm-up",
                iterations.len()
            )
        })?;
        Ok(Training { policy, iterations, end, figures })
    }
}

fn check_run(run: RunLine) -> Result<RunLine, String> {
    if run.workers.is_empty() {
        return Err("workers: must list at least one worker".to_owned());
    }
    let repeated =
        run.policies.iter().enumerate().find(|(index, policy)| run.policies[..*index].contains(policy));
    match repeated {
        Some((_, policy)) => Err(format!("policies: {policy} is listed twice")),
        None if run.policies.is_empty() => Err("policies: must list at least one policy".to_owned()),
        None => Ok(run),
    }
}

fn take(run: &mut RunLine, partial: &mut [Partial], line: Line) -> Result<(), String> {
    let policy = match &line {
        Line::Run(_) => return Err("a second line of kind run: a record must contain one run".to_owned()),
        Line::Regroup(_) if run.elastic => return Ok(()),
        Line::Regroup(_) => return Err("a line of kind regroup: only allowed in elastic runs".to_owned()),
        Line::Iteration(line) => line.policy,
        Line::End(end) => end.policy,
    };
    let Some(training) = partial.iter_mut().find(|training| training.policy == policy) else {
        return Err(format!("policy {policy}: not in the policies of the run"));
    };
    if training.end.is_some() {
        return Err(format!("the line comes after the end line of policy {policy}"));
    }
    match line {
        Line::Iteration(mut line) => {
            if run.elastic {
                // If rank 0 died, its last line may be of an iteration that only it finished,
                // or the line of an iteration that all workers finished may be missing.
                while training.iterations.last().is_some_and(|last| last.iteration >= line.iteration) {
                    training.iterations.pop();
                }
                line.workers = with_absent_workers(run, line.workers);
            }
            let last = training.iterations.last().map(|last| last.iteration);
            if let Some(last) = last.filter(|last| !run.elastic && line.iteration != last + 1) {
                return Err(format!("iteration {} of {policy}: must follow {last}", line.iteration));
            }
            check_iteration(run, &line)?;
            training.iterations.push(*line);
        }
        Line::End(end) => training.end = Some(end),
        Line::Run(_) | Line::Regroup(_) => {}
    }
    Ok(())
}

/// Returns a line for each worker that the elastic run has had so far, the initial workers first. Absent
/// workers have no samples.
fn with_absent_workers(run: &mut RunLine, there: Vec<WorkerLine>) -> Vec<WorkerLine> {
    for line in &there {
        if !run.workers.contains(&line.worker) {
            run.workers.push(line.worker.clone());
        }
    }
    let mut there: BTreeMap<WorkerId, WorkerLine> =
        there.into_iter().map(|line| (line.worker.clone(), line)).collect();
    run.workers.iter().map(|worker| there.remove(worker).unwrap_or_else(|| absent(worker))).collect()
}

fn absent(worker: &WorkerId) -> WorkerLine {
    WorkerLine {
        worker: worker.clone(),
        local_batch: 0,
        compute_time_s: 0.0,
        micro_batches: None,
        tail: None,
        barrier_wait_s: 0.0,
        loader_wait_s: 0.0,
        predicted_compute_time_s: None,
        predicted_speed_samples_per_s: None,
        speed_lower_samples_per_s: None,
        speed_upper_samples_per_s: None,
        drivers: Readings::new(),
    }
}

/// Checks the rules that divisions and sums over an iteration depend on.
fn check_iteration(run: &RunLine, line: &IterationLine) -> Result<(), String> {
    if !line.workers.iter().map(|worker| &worker.worker).eq(&run.workers) {
        return Err("workers: must equal the workers of the run, in rank order".to_owned());
    }
    let samples: u64 = line.workers.iter().map(|worker| worker.local_batch).sum();
    if line.global_batch == 0 || samples != line.global_batch {
        return Err(format!(
            "the local batches sum to {samples}: must equal the global batch {}",
            line.global_batch
        ));
    }
    if line.step_time_s <= 0.0 {
        return Err(format!("step_time_s {}: must be above 0", line.step_time_s));
    }
    for worker in &line.workers {
        if worker.local_batch > 0 && worker.compute_time_s <= 0.0 {
            let name = &worker.worker;
            return Err(format!("{name}: compute_time_s {}: must be above 0", worker.compute_time_s));
        }
        if worker.barrier_wait_s < 0.0 {
            return Err(format!(
                "{}: barrier_wait_s {}: must be at least 0",
                worker.worker, worker.barrier_wait_s
            ));
        }
    }
    Ok(())
}
