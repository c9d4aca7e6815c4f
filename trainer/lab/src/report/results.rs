//! The figures of all runs, in the form that other programs read.

use serde::Serialize;

use crate::load::LoadKind;
use crate::record::Scenario;
use crate::report::run::{Run, Training};
use evenstep_trainer::Policy;
use evenstep_trainer::progress::IterationLine;
use evenstep_trainer::progress::statistics::{WARM_UP, quantile};

/// All figures.
#[derive(Debug, Serialize)]
pub struct Results {
    /// One for each policy of each record.
    pub runs: Vec<RunResult>,
    /// The service's own time for an allocation; absent when it never said.
    pub allocate_ms: Option<Spread>,
    /// What rank 0 measured from sending a request to having read the answer.
    pub round_trip_ms: Option<Spread>,
    /// Iterations of each policy that were left out at its begin.
    pub warm_up_iterations: usize,
}

/// The figures of one policy.
#[derive(Debug, Serialize)]
pub struct RunResult {
    /// What the record's file is called, without its ending.
    pub record: String,
    /// What made the workers unequal.
    pub scenario: Scenario,
    /// What competed with the workers, really or as their imposed speeds took it to be.
    pub load: Option<LoadKind>,
    /// The policy.
    pub policy: Policy,
    /// Samples over step time.
    pub throughput_samples_per_s: f64,
    /// Over the iterations that count.
    pub step_time_s: StepTime,
    /// Of all workers' time, the part spent waiting for the last one.
    pub barrier_wait_share: f64,
    /// The same in a step, on average.
    pub barrier_wait_s: f64,
    /// The sum of the measured speeds.
    pub ideal_throughput_samples_per_s: f64,
    /// Mean loss over held-out samples.
    pub final_loss: f64,
    /// Throughput over the ideal one.
    pub share_of_ideal: f64,
    /// Throughput over that of even batches; absent where they were not run.
    pub gain: Option<f64>,
    /// The share of the ideal over that of even batches: the gain if both had met the same load.
    pub gain_like_for_like: Option<f64>,
    /// Against the policy base; absent where it was not run, and for policies without forecasts.
    pub over_base: Option<OverBase>,
    /// Of the step time, the part that asking took.
    pub ask_share: f64,
    /// Of all workers' time, the part spent waiting for the answers to claims.
    pub claim_share: f64,
    /// The same for what chunks took beyond their samples at the pace of the base.
    pub chunk_overhead_share: f64,
    /// Chunks that were claimed in a step, on average.
    pub chunks: f64,
    /// Of all samples, those that were claimed.
    pub tail_share: f64,
    /// Forward and backward passes of all workers in a step, on average.
    pub passes: f64,
    /// Workers that took part.
    pub workers: usize,
    /// Iterations that count.
    pub iterations: usize,
    /// Micro-batches of each rank that were slower than the imposed pace allows.
    pub pace_missed: Vec<u64>,
    /// Reports that the predictor never got.
    pub reports_lost: u64,
    /// What a reader must know, imposed speeds above all.
    pub notes: Vec<String>,
}

/// What a shared tail adds to the same forecasts.
#[derive(Debug, Serialize)]
pub struct OverBase {
    /// Throughput over that of base.
    pub gain: f64,
    /// The share of the ideal over that of base.
    pub gain_like_for_like: f64,
    /// Time at the barrier over that of base; absent where base never waited.
    pub barrier_wait: Option<f64>,
    /// The sum of the measured speeds over that of base: where both met the same load, what is missing to 1 is what smaller
    /// passes cost.
    pub speed: f64,
}

/// Step times in seconds.
#[derive(Debug, Serialize)]
pub struct StepTime {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 95 % are no longer.
    pub p95: f64,
}

/// Times in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub p50: f64,
    /// 99 % are no longer.
    pub p99: f64,
    /// How many there were.
    pub count: usize,
}

impl Results {
    /// The figures of these runs.
    pub fn of(runs: &[Run]) -> Self {
        let all = runs.iter().flat_map(|run| run.trainings.iter().map(move |training| (run, training)));
        Self {
            runs: all.map(|(run, training)| RunResult::of(run, training)).collect(),
            allocate_ms: spread(runs, |line| line.server_s),
            round_trip_ms: spread(runs, |line| line.round_trip_s),
            warm_up_iterations: WARM_UP,
        }
    }
}

impl RunResult {
    fn of(run: &Run, training: &Training) -> Self {
        let figures = &training.figures;
        Self {
            record: run.name.clone(),
            scenario: run.line.scenario,
            load: run.line.load,
            policy: training.policy,
            throughput_samples_per_s: figures.throughput_samples_per_s,
            step_time_s: StepTime {
                mean: figures.step_mean_s,
                p50: figures.step_time_s(0.5),
                p95: figures.step_time_s(0.95),
            },
            barrier_wait_share: figures.barrier_wait_share,
            barrier_wait_s: figures.barrier_wait_s,
            ideal_throughput_samples_per_s: figures.ideal_throughput_samples_per_s,
            final_loss: training.end.final_loss,
            share_of_ideal: figures.share_of_ideal(),
            gain: run.gain(training, Policy::Even),
            gain_like_for_like: run.gain_like_for_like(training, Policy::Even),
            over_base: OverBase::of(run, training),
            ask_share: figures.ask_share,
            claim_share: figures.claim_share,
            chunk_overhead_share: figures.chunk_overhead_share,
            chunks: figures.chunks,
            tail_share: figures.tail_share,
            passes: figures.passes,
            workers: run.line.workers.len(),
            iterations: figures.iterations,
            pace_missed: training.end.pace_missed.clone(),
            reports_lost: training.end.reports_lost,
            notes: run.line.notes.clone(),
        }
    }
}

impl OverBase {
    fn of(run: &Run, training: &Training) -> Option<Self> {
        let asks = training.policy.asks() && training.policy != Policy::Base;
        let training = Some(training).filter(|_| asks)?;
        Some(Self {
            gain: run.gain(training, Policy::Base)?,
            gain_like_for_like: run.gain_like_for_like(training, Policy::Base)?,
            barrier_wait: run.waiting(training, Policy::Base),
            speed: training.figures.ideal_throughput_samples_per_s
                / run.training(Policy::Base)?.figures.ideal_throughput_samples_per_s,
        })
    }
}

fn spread(runs: &[Run], time_s: impl Fn(&IterationLine) -> Option<f64>) -> Option<Spread> {
    let trainings = runs.iter().flat_map(|run| &run.trainings);
    let times_ms: Vec<f64> =
        trainings.flat_map(Training::counted).filter_map(time_s).map(|time_s| time_s * 1e3).collect();
    Some(Spread { p50: quantile(&times_ms, 0.5)?, p99: quantile(&times_ms, 0.99)?, count: times_ms.len() })
}
