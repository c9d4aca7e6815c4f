//! The results of all runs, for other programs.

use serde::Serialize;

use crate::load::LoadKind;
use crate::record::Scenario;
use crate::report::run::{Run, Training};
use evenstep_trainer::Policy;
use evenstep_trainer::progress::IterationLine;
use evenstep_trainer::progress::statistics::{WARM_UP, quantile};

/// The results of all runs.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Results per policy and record.
    pub runs: Vec<RunResult>,
    /// Time of an allocation inside the service, in milliseconds; absent if the service never reported
    /// it.
    pub allocate_ms: Option<Spread>,
    /// Time from sending a request to reading the whole response, on rank 0, in milliseconds.
    pub round_trip_ms: Option<Spread>,
    /// Number of iterations left out at the start of each policy.
    pub warm_up_iterations: usize,
}

/// The results of one policy.
#[derive(Debug, Serialize)]
pub struct RunResult {
    /// File name of the record, without its extension.
    pub record: String,
    /// Cause of the differences in worker speed.
    pub scenario: Scenario,
    /// Kind of the competing load: real, or simulated by imposed speeds.
    pub load: Option<LoadKind>,
    /// The policy.
    pub policy: Policy,
    /// Samples divided by step time.
    pub throughput_samples_per_s: f64,
    /// Step times after the warm-up.
    pub step_time_s: StepTime,
    /// Share of all workers' time spent waiting for the slowest worker.
    pub barrier_wait_share: f64,
    /// Mean barrier wait per step, in seconds.
    pub barrier_wait_s: f64,
    /// Sum of the measured speeds.
    pub ideal_throughput_samples_per_s: f64,
    /// Mean loss on held-out samples.
    pub final_loss: f64,
    /// Throughput divided by the ideal throughput.
    pub share_of_ideal: f64,
    /// Throughput divided by the throughput with even batches; absent if the run has no such policy.
    pub gain: Option<f64>,
    /// Share of the ideal divided by the share with even batches: the gain if both policies had run under
    /// the same load.
    pub gain_like_for_like: Option<f64>,
    /// Comparison with the policy base; absent if the run does not have it, and for policies without
    /// forecasts.
    pub over_base: Option<OverBase>,
    /// Share of the step time spent on allocation requests.
    pub request_share: f64,
    /// Share of all workers' time spent waiting for responses to claims.
    pub claim_share: f64,
    /// Share of all workers' time that chunks took beyond the time of their samples at the speed on the
    /// base batch.
    pub chunk_overhead_share: f64,
    /// Mean number of claimed chunks per step.
    pub chunks: f64,
    /// Share of all samples that were claimed.
    pub tail_share: f64,
    /// Mean number of forward and backward passes of all workers per step.
    pub passes: f64,
    /// Number of workers.
    pub workers: usize,
    /// Number of iterations after the warm-up.
    pub iterations: usize,
    /// Number of micro-batches that were slower than the imposed pace, by rank.
    pub pace_missed: Vec<u64>,
    /// Number of reports that never reached the predictor.
    pub reports_lost: u64,
    /// Notes that readers need, in particular about imposed speeds.
    pub notes: Vec<String>,
}

/// The effect of a shared tail, compared with the same forecasts without a tail.
#[derive(Debug, Serialize)]
pub struct OverBase {
    /// Throughput divided by the throughput of base.
    pub gain: f64,
    /// Share of the ideal divided by the share of base.
    pub gain_like_for_like: f64,
    /// Barrier wait divided by the barrier wait of base; absent if workers never waited under base.
    pub barrier_wait: Option<f64>,
    /// Sum of the measured speeds divided by the sum under base. If both ran under the same load, the
    /// difference to 1 is the cost of smaller passes.
    pub speed: f64,
}

/// Step times in seconds.
#[derive(Debug, Serialize)]
pub struct StepTime {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
}

/// Times in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// Number of values.
    pub count: usize,
}

impl Results {
    /// Computes the results of these runs.
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
            request_share: figures.request_share,
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
        let asks = training.policy.requests_allocations() && training.policy != Policy::Base;
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
