//! A record, read whole and checked against the rules that figures rely on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenstep_protocol::{Readings, WorkerId};

use crate::record::{self, Line, RecordError, RunLine};
use evenstep_trainer::Policy;
use evenstep_trainer::progress::statistics::{Statistics, Tally, WARM_UP};
use evenstep_trainer::progress::{EndLine, IterationLine, WorkerLine};

/// Lines that one record may have: they are held in memory.
const LINES_MAX: usize = 2_000_000;

/// A run and what each policy made of it.
#[derive(Debug)]
pub struct Run {
    /// What the record's file is called, without its ending.
    pub name: String,
    /// What was run.
    pub line: RunLine,
    /// In the order in which they took turns.
    pub trainings: Vec<Training>,
}

/// The training under one policy.
#[derive(Debug)]
pub struct Training {
    /// The policy.
    pub policy: Policy,
    /// All iterations, warm-up included.
    pub iterations: Vec<IterationLine>,
    /// How it ended.
    pub end: EndLine,
    /// What the iterations come to.
    pub figures: Statistics,
}

/// A record that no report can be made of.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// It cannot be read, or a line is no line of a record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A line breaks a rule.
    #[error("record {path}, line {line}: {rule}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What must be, and what was found.
        rule: String,
    },
    /// The whole breaks a rule.
    #[error("record {path}: {rule}")]
    Whole {
        /// The file.
        path: PathBuf,
        /// What must be, and what was found.
        rule: String,
    },
}

/// What was read of a policy so far.
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
    /// The first line, or the first rule, that is broken.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let at = |line: usize| move |rule: String| ReportError::Line { path: path.to_owned(), line, rule };
        let whole = |rule: String| ReportError::Whole { path: path.to_owned(), rule };
        let mut lines = record::read(path)?;
        let mut run = match lines.next().transpose()? {
            None => return Err(whole("is empty: it must begin with a line of kind run".to_owned())),
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
                return Err(whole(format!("must have at most {LINES_MAX} lines")));
            }
            take(&mut run, &mut partial, line?).map_err(at(number))?;
        }
        let finished = partial.into_iter().map(|training| training.finish(&run));
        let trainings = finished.collect::<Result<_, _>>().map_err(whole)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, line: run, trainings })
    }

    /// The training under a policy, where there was one.
    pub fn training(&self, policy: Policy) -> Option<&Training> {
        self.trainings.iter().find(|training| training.policy == policy)
    }

    /// Throughput of a training over that of another policy, where there is one.
    pub fn gain(&self, training: &Training, over: Policy) -> Option<f64> {
        let other = self.training(over)?;
        Some(training.figures.throughput_samples_per_s / other.figures.throughput_samples_per_s)
    }

    /// The share of the ideal that a training reaches over that of another policy, where there is one. Loads that change
    /// are never quite the same for both; this leaves out how much faster the workers themselves were.
    pub fn gain_like_for_like(&self, training: &Training, over: Policy) -> Option<f64> {
        let other = self.training(over)?;
        Some(training.figures.share_of_ideal() / other.figures.share_of_ideal())
    }

    /// The time at the barrier of a training over that of another policy, where that waited at all.
    pub fn waiting(&self, training: &Training, over: Policy) -> Option<f64> {
        let waited_s = self.training(over)?.figures.barrier_wait_s;
        (waited_s > 0.0).then(|| training.figures.barrier_wait_s / waited_s)
    }

    /// The trainings that asked the predictor.
    pub fn asking(&self) -> impl DoubleEndedIterator<Item = &Training> {
        self.trainings.iter().filter(|training| training.policy.asks())
    }

    /// The training that the others lead up to: the last that asked the predictor.
    pub fn headline(&self) -> Option<&Training> {
        self.asking().next_back()
    }
}

impl Training {
    /// The iterations that count.
    pub fn counted(&self) -> &[IterationLine] {
        &self.iterations[WARM_UP.min(self.iterations.len())..]
    }
}

impl Partial {
    fn finish(self, run: &RunLine) -> Result<Training, String> {
        let Self { policy, mut iterations, end } = self;
        for line in &mut iterations {
            // Workers that an elastic run had only later.
            let there = line.workers.len();
            line.workers.extend(run.workers[there..].iter().map(absent));
        }
        let Some(end) = end else {
            return Err(format!("has no closing line of {policy}: the run was cut short"));
        };
        let mut tally = Tally::default();
        for line in &iterations {
            tally.add(line);
        }
        let figures = tally.statistics().ok_or_else(|| {
            format!(
                "{policy} has {} iterations: must be more than the {WARM_UP} of the warm-up",
                iterations.len()
            )
        })?;
        Ok(Training { policy, iterations, end, figures })
    }
}

fn check_run(run: RunLine) -> Result<RunLine, String> {
    if run.workers.is_empty() {
        return Err("must name at least one worker".to_owned());
    }
    let repeated =
        run.policies.iter().enumerate().find(|(index, policy)| run.policies[..*index].contains(policy));
    match repeated {
        Some((_, policy)) => Err(format!("names the policy {policy} twice")),
        None if run.policies.is_empty() => Err("must name at least one policy".to_owned()),
        None => Ok(run),
    }
}

fn take(run: &mut RunLine, partial: &mut [Partial], line: Line) -> Result<(), String> {
    let policy = match &line {
        Line::Run(_) => return Err("a second line of kind run: a record tells of one run".to_owned()),
        Line::Regroup(_) if run.elastic => return Ok(()),
        Line::Regroup(_) => return Err("only an elastic run regroups".to_owned()),
        Line::Iteration(line) => line.policy,
        Line::End(end) => end.policy,
    };
    let Some(training) = partial.iter_mut().find(|training| training.policy == policy) else {
        return Err(format!("the policy {policy} is not among those of the run"));
    };
    if training.end.is_some() {
        return Err(format!("comes after the closing line of {policy}"));
    }
    match line {
        Line::Iteration(mut line) => {
            if run.elastic {
                // A rank 0 that died told of an iteration that only it finished, or not of one that all finished.
                while training.iterations.last().is_some_and(|last| last.iteration >= line.iteration) {
                    training.iterations.pop();
                }
                line.workers = everybody(run, line.workers);
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

/// The workers that an elastic run has had so far, those that it began with first: whoever was not there computed nothing.
fn everybody(run: &mut RunLine, there: Vec<WorkerLine>) -> Vec<WorkerLine> {
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

/// The rules that divisions and sums over an iteration rely on.
fn check_iteration(run: &RunLine, line: &IterationLine) -> Result<(), String> {
    if !line.workers.iter().map(|worker| &worker.worker).eq(&run.workers) {
        return Err("its workers must be those of the run, in rank order".to_owned());
    }
    let samples: u64 = line.workers.iter().map(|worker| worker.local_batch).sum();
    if line.global_batch == 0 || samples != line.global_batch {
        return Err(format!(
            "local batches add up to {samples}: must be the global batch {}",
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
