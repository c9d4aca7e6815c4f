//! One rank of the measurement: it takes its turns and tells what it saw.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenstep_c10d::{Group, Store};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::args::GapsArgs;
use super::plans;
use crate::background::{Attendant, BENCHMARK_ITERATIONS, Background, Door, Observer, Ran};
use crate::burst::{Executor, Plan};
use crate::data::{Cursor, Dataset, TeacherTask};
use crate::host_port::HostPort;
use crate::model::{Architecture, Model};
use crate::pin;

const SAMPLES: u64 = 16_384;
const LEARNING_RATE: f64 = 0.01;
const MOMENTUM: f64 = 0.9;
/// The shortest turn of background jobs alone.
const ALONE_LEAST_S: f64 = 0.1;

/// What takes turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// The plan, with nothing beside it.
    Burst,
    /// The plan, with background work in its gaps.
    Filled,
    /// All layers on all ranks, with nothing beside it.
    DataParallel,
    /// All layers on rank 0, with nothing beside it.
    OneRank,
    /// Background jobs with their cores to themselves: the unit that they are measured in.
    Background,
}

/// The arms with a foreground, in the order of their turns.
pub const ARMS: [Arm; 4] = [Arm::Burst, Arm::Filled, Arm::DataParallel, Arm::OneRank];

/// A turn of one arm.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Turn {
    /// Whose.
    pub arm: Arm,
    /// Each iteration of the foreground on this rank, in seconds.
    pub iterations_s: Vec<f64>,
    /// The turn, in seconds.
    pub wall_s: f64,
    /// Samples of the background job in it.
    pub background_samples: u64,
}

/// What a rank tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Told {
    /// Its turns, in their order.
    pub turns: Vec<Turn>,
    /// What its background job did.
    pub background: Beside,
    /// The bits of the parameters that it ends with under the plan, as a checksum; of both arms that run it.
    pub parameters: [u64; 2],
}

/// What a background job did on a rank.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Beside {
    /// Samples of a piece, and what it takes alone in microseconds.
    pub piece_samples: u64,
    /// The time.
    pub piece_us: f64,
    /// Everything that it did.
    pub ran: Ran,
}

/// Runs a rank to its end.
///
/// # Errors
/// Another rank is gone, the plan is for another model, a background job fails.
pub fn run(args: &GapsArgs, rank: usize, store: &HostPort) -> Result<Told> {
    let cores = args.cores(&pin::cores()?)?;
    let core = *cores.get(rank).with_context(|| format!("--rank {rank}: there are {} cores", cores.len()))?;
    pin::to_core(core)?;
    tch::set_num_threads(1);
    tch::set_num_interop_threads(1);
    let timeout = Duration::from_secs(args.timeout_s);
    let store = Store::connect(&store.host, store.port, timeout)?;
    let table = Table { args, rank, world_size: cores.len(), store, timeout };
    let data = TeacherTask { samples: SAMPLES, seed: args.seed }.generate();
    let background = Background::start(args.background.job(rank, args.seed), Device::Cpu)?;
    table.sit(&data, background)
}

/// Where the ranks meet.
struct Table<'a> {
    args: &'a GapsArgs,
    rank: usize,
    world_size: usize,
    store: Store,
    timeout: Duration,
}

/// A training under one plan.
struct Seat {
    executor: Executor,
    cursor: Cursor,
    global_batch: u64,
}

impl Table<'_> {
    fn sit(&self, data: &Dataset, background: Background) -> Result<Told> {
        let burst = plans::burst(self.args, &self.model(data), self.world_size)?;
        let mut seats = [
            self.seat("burst", data, &burst)?,
            self.seat("filled", data, &burst)?,
            self.seat("data-parallel", data, &plans::data_parallel(&burst, self.world_size))?,
            self.seat("one-rank", data, &plans::one_rank(&burst))?,
        ];
        let meet = self.group("meet", self.world_size)?;
        let door = background.door().clone();
        let mut attendant = Attendant::new(door.clone(), self.args.background.slow_down_limit);
        // The benchmark comes from the very training that is filled later; the others go on as far.
        for (arm, seat) in ARMS.into_iter().zip(&mut seats) {
            let watching = (arm == Arm::Filled).then_some(&mut attendant);
            self.turn(&meet, seat, data, BENCHMARK_ITERATIONS as u64, watching)?;
        }
        let mut turns = Vec::new();
        for _ in 0..self.args.rounds {
            let mut filled_s = ALONE_LEAST_S;
            for (arm, seat) in ARMS.into_iter().zip(&mut seats) {
                let watching = (arm == Arm::Filled).then_some(&mut attendant);
                let before = door.spent();
                let begun = Instant::now();
                let iterations_s = self.turn(&meet, seat, data, self.args.block, watching)?;
                let wall_s = begun.elapsed().as_secs_f64();
                door.set(false, 1);
                let background_samples = door.spent().since(before).samples;
                if arm == Arm::Filled {
                    filled_s = wall_s.max(ALONE_LEAST_S);
                }
                turns.push(Turn { arm, iterations_s, wall_s, background_samples });
            }
            meet.barrier().context("waiting for the others to rest")?;
            turns.push(alone(&door, &mut attendant, filled_s));
        }
        let parameters = [&seats[0], &seats[1]].map(|seat| checksum(&seat.executor));
        meet.barrier().context("waiting for the others to finish")?;
        let pieces = background.pieces();
        let beside =
            Beside { piece_samples: pieces.samples, piece_us: pieces.alone_us, ran: background.end()? };
        Ok(Told { turns, background: beside, parameters })
    }

    /// So many iterations, each in seconds. They begin on all ranks together.
    fn turn(
        &self,
        meet: &Group,
        seat: &mut Seat,
        data: &Dataset,
        iterations: u64,
        attendant: Option<&mut Attendant>,
    ) -> Result<Vec<f64>> {
        meet.barrier().context("waiting for the others to begin")?;
        let mut nobody = ();
        let observer: &mut dyn Observer = match attendant {
            Some(attendant) => attendant,
            None => &mut nobody,
        };
        (0..iterations).map(|_| seat.iterate(data, observer)).collect()
    }

    fn model(&self, data: &Dataset) -> Model {
        let architecture = Architecture::Mlp { hidden: self.args.hidden.clone() };
        Model::new(&architecture, data.shape, data.classes, self.args.seed, Kind::Float, Device::Cpu)
    }

    fn seat(&self, name: &str, data: &Dataset, plan: &Plan) -> Result<Seat> {
        let model = self.model(data);
        plan.check(model.layers(), self.world_size)?;
        let world = self.group(&format!("{name}/world"), self.world_size)?;
        let join = |ranks| self.group(&format!("{name}/{ranks}"), ranks);
        let executor = Executor::new(plan, model, &[data.features()], MOMENTUM, world, join)?;
        let cursor = Cursor::new(self.args.seed, data.train.len());
        Ok(Seat { executor, cursor, global_batch: plan.global_batch })
    }

    fn group(&self, name: &str, ranks: usize) -> Result<Group> {
        let store = self.store.prefix(name)?;
        Ok(Group::gloo(&store, self.rank, ranks, "127.0.0.1", self.timeout)?)
    }
}

impl Seat {
    fn iterate(&mut self, data: &Dataset, observer: &mut dyn Observer) -> Result<f64> {
        let begun = Instant::now();
        if self.cursor.size(self.global_batch, 0) < self.global_batch {
            // The ragged end of an epoch: a plan is for whole batches.
            self.cursor.advance(self.cursor.size(self.global_batch, 0));
        }
        let batch = self.cursor.slice(0, self.global_batch);
        self.executor.iterate_before(&data.train, batch, LEARNING_RATE, observer)?;
        self.cursor.advance(self.global_batch);
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Lets a background job have its core for so long.
fn alone(door: &Door, attendant: &mut Attendant, duration_s: f64) -> Turn {
    let (begun, before) = (Instant::now(), door.spent());
    attendant.leaves();
    thread::sleep(Duration::from_secs_f64(duration_s));
    door.set(false, 1);
    let wall_s = begun.elapsed().as_secs_f64();
    let background_samples = door.spent().since(before).samples;
    Turn { arm: Arm::Background, iterations_s: Vec::new(), wall_s, background_samples }
}

/// The bits of all parameters, FNV-1a.
fn checksum(executor: &Executor) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for parameter in executor.parameters() {
        let flat = parameter.detach().reshape([-1]);
        let mut values = vec![0.0_f32; flat.numel()];
        let count = values.len();
        Tensor::copy_data(&flat, &mut values, count);
        for byte in values.iter().flat_map(|value| value.to_bits().to_le_bytes()) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    sum
}
