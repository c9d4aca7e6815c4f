//! One rank of the measurement: it runs its turns and returns its measurements.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenstep_c10d::Group;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind};

use super::args::GapsArgs;
use super::plans;
use crate::background::{
    BENCHMARK_ITERATIONS, Background, BackgroundResult, GateController, Observer, WorkGate, foreground_stream,
};
use crate::burst::{BurstPlan, Executor};
use crate::dataset::DataSet;
use crate::processes::Process;
use evenstep_trainer::data::Cursor;
use evenstep_trainer::model::MOMENTUM;

/// Iterations per turn.
pub const BLOCK: u64 = 20;
/// Minimum duration of a turn of background jobs without the foreground.
const BACKGROUND_TURN_MIN_S: f64 = 0.1;

/// The configurations that take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Configuration {
    /// The plan, without background work.
    Burst,
    /// The plan, with background work in its gaps.
    Filled,
    /// All layers on all ranks, without background work.
    DataParallel,
    /// All layers on rank 0, without background work.
    OneRank,
    /// Background jobs without the foreground: the unit of their throughput.
    Background,
}

/// The configurations with a foreground, in the order of their turns.
pub const CONFIGURATIONS: [Configuration; 4] =
    [Configuration::Burst, Configuration::Filled, Configuration::DataParallel, Configuration::OneRank];

/// One turn of a configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Turn {
    /// The configuration.
    pub arm: Configuration,
    /// Durations of the foreground's iterations on this rank, in seconds.
    pub iterations_s: Vec<f64>,
    /// Wall-clock time of the turn, in seconds.
    pub wall_s: f64,
    /// Number of samples of the background job during the turn.
    pub background_samples: u64,
}

/// The measurements of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankMeasurements {
    /// Turns in the order in which they ran.
    pub turns: Vec<Turn>,
    /// Result of the rank's background job.
    pub background: RankBackground,
    /// Checksums of the final parameters under the plan, without and with background work.
    pub parameters: [u64; 2],
}

/// The result of a background job on a rank.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RankBackground {
    /// Samples per piece.
    pub piece_samples: u64,
    /// Time of a piece without contention, in microseconds.
    pub piece_us: f64,
    /// Total work, steps and losses of the job.
    pub ran: BackgroundResult,
}

/// Runs all turns of a rank.
///
/// # Errors
/// Fails if another rank is lost or a background job fails.
pub fn run(args: &GapsArgs, plan: &BurstPlan, process: &Process, data: &DataSet) -> Result<RankMeasurements> {
    foreground_stream(process.device)?;
    let background =
        Background::start(args.background.job(process.rank, args.task.step.seed), process.device)?;
    Table { args, process, data }.run_turns(plan, background)
}

/// The arguments, process and data of a rank.
struct Table<'a> {
    args: &'a GapsArgs,
    process: &'a Process,
    data: &'a DataSet,
}

/// A training under one plan.
struct PlanTraining {
    executor: Executor,
    cursor: Cursor,
    learning_rate: f64,
}

impl Table<'_> {
    fn run_turns(&self, burst: &BurstPlan, background: Background) -> Result<RankMeasurements> {
        let mut courses = [
            self.course("burst", burst)?,
            self.course("filled", burst)?,
            self.course("data-parallel", &plans::data_parallel(burst))?,
            self.course("one-rank", &plans::one_rank(burst))?,
        ];
        let meet = self.process.group("meet", self.process.world_size)?;
        let door = background.door().clone();
        let mut attendant = GateController::new(door.clone(), self.args.background.slow_down_limit);
        // The gate takes its benchmark from the training that is filled later. The other trainings
        // run as many iterations.
        for (arm, course) in CONFIGURATIONS.into_iter().zip(&mut courses) {
            let watching = (arm == Configuration::Filled).then_some(&mut attendant);
            self.turn(&meet, course, BENCHMARK_ITERATIONS as u64, watching)?;
        }
        let mut turns = Vec::new();
        for _ in 0..self.args.rounds {
            let mut filled_s = BACKGROUND_TURN_MIN_S;
            for (arm, course) in CONFIGURATIONS.into_iter().zip(&mut courses) {
                let watching = (arm == Configuration::Filled).then_some(&mut attendant);
                let before = door.spent();
                let begun = Instant::now();
                let iterations_s = self.turn(&meet, course, BLOCK, watching)?;
                let wall_s = begun.elapsed().as_secs_f64();
                door.set(false, 1);
                let background_samples = door.spent().since(before).samples;
                if arm == Configuration::Filled {
                    filled_s = wall_s.max(BACKGROUND_TURN_MIN_S);
                }
                turns.push(Turn { arm, iterations_s, wall_s, background_samples });
            }
            meet.barrier().context("waiting for the other workers to pause")?;
            turns.push(alone(&door, &mut attendant, filled_s));
        }
        let parameters = [&courses[0], &courses[1]].map(|course| checksum(&course.executor));
        for course in courses {
            course.executor.close()?;
        }
        meet.barrier().context("waiting for the other workers to finish")?;
        meet.close()?;
        let pieces = background.pieces();
        let beside = RankBackground {
            piece_samples: pieces.samples,
            piece_us: pieces.alone_us,
            ran: background.end()?,
        };
        Ok(RankMeasurements { turns, background: beside, parameters })
    }

    /// Runs a number of iterations and returns their durations in seconds.
    ///
    /// All ranks start together, and the turn ends when all ranks have finished. The core of a rank that
    /// finishes early, or has no part in the plan, is free for background work until then.
    fn turn(
        &self,
        meet: &Group,
        course: &mut PlanTraining,
        iterations: u64,
        mut attendant: Option<&mut GateController>,
    ) -> Result<Vec<f64>> {
        meet.barrier().context("waiting for the other workers to begin")?;
        let mut nobody = ();
        let observer: &mut dyn Observer = match attendant.as_deref_mut() {
            Some(attendant) => attendant,
            None => &mut nobody,
        };
        let iterations_s: Vec<f64> =
            (0..iterations).map(|_| course.iterate(self.data, observer)).collect::<Result<_>>()?;
        if let Some(attendant) = attendant {
            attendant.leaves();
        }
        meet.barrier().context("waiting for the other workers to end their turn")?;
        Ok(iterations_s)
    }

    fn course(&self, name: &str, plan: &BurstPlan) -> Result<PlanTraining> {
        let task = &self.args.task;
        let model = task.network(self.data, self.process.device);
        let group = |ranks| self.process.group(&format!("{name}-{ranks}"), ranks);
        let world = self.process.group(&format!("{name}-world"), self.process.world_size)?;
        let executor = Executor::new(plan, model, &[self.data.features()], MOMENTUM, world, group)?;
        Ok(PlanTraining {
            executor,
            cursor: Cursor::new(task.step.seed, self.data.train.len()),
            learning_rate: task.step.lr,
        })
    }
}

impl PlanTraining {
    fn iterate(&mut self, data: &DataSet, observer: &mut dyn Observer) -> Result<f64> {
        let begun = Instant::now();
        let global_batch = self.executor.global_batch();
        let left = self.cursor.size(global_batch, 0);
        if left < global_batch {
            // A plan requires whole batches, so skip the incomplete batch at the end of an epoch.
            self.cursor.advance(left);
        }
        let batch = self.cursor.slice(0, global_batch);
        self.executor.iterate_observed(&data.train, batch, self.learning_rate, observer)?;
        self.cursor.advance(global_batch);
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Runs a background job without the foreground for this duration.
fn alone(door: &WorkGate, attendant: &mut GateController, duration_s: f64) -> Turn {
    let (begun, before) = (Instant::now(), door.spent());
    attendant.leaves();
    #[expect(clippy::disallowed_methods, reason = "the sleep is the measured time, not a wait for an event")]
    thread::sleep(Duration::from_secs_f64(duration_s));
    door.set(false, 1);
    let wall_s = begun.elapsed().as_secs_f64();
    let background_samples = door.spent().since(before).samples;
    Turn { arm: Configuration::Background, iterations_s: Vec::new(), wall_s, background_samples }
}

/// Returns an FNV-1a hash of the bits of all parameters.
fn checksum(executor: &Executor) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for parameter in executor.parameters() {
        // The conversion from 32-bit to 64-bit floats is exact.
        let flat = parameter.detach().to_kind(Kind::Double).to_device(Device::Cpu).reshape([-1]);
        let mut values = vec![0.0_f64; flat.numel()];
        let count = values.len();
        flat.copy_data(&mut values, count);
        for byte in values.iter().flat_map(|value| value.to_bits().to_le_bytes()) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    sum
}
