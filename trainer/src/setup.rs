//! What comes before the first iteration: the group, the data, the replicas, and who the workers are.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evenstep_agent::Boundary;
use evenstep_c10d::{Group, Store};
use evenstep_client::RunStart;
use evenstep_protocol::{JobId, WorkerId};
use signal_hook::consts::{SIGINT, SIGTERM};
use tch::{Device, Tensor};

use crate::arm::Arm;
use crate::background::{Background, foreground_stream};
use crate::checkpoint::{self, State};
use crate::claims::Claims;
use crate::cli::{JoinArgs, Policy};
use crate::collective::Bucket;
use crate::compute::Compute;
use crate::data::Cursor;
use crate::device::{connect, reduce_device};
use crate::elastic::Told;
use crate::identity::{device_words, worker_id};
use crate::moments::MomentsLog;
use crate::opening::{connection, narrate, registration, timeline};
use crate::optimizer::Sgd;
use crate::pace::Pace;
use crate::plan::Plan;
use crate::planner::Planner;
use crate::rate::{self, Rate};
use crate::sample_log::SampleLog;
use crate::worker::Worker;

/// Where a run begins, as rank 0 knows it and tells the others.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// The first iteration.
    pub iteration: u64,
    /// The epoch it lies in.
    pub epoch: u64,
    /// Samples of that epoch that are done.
    pub position: u64,
    /// The learning rate of the step before it.
    pub learning_rate: Option<f64>,
    /// What the learning rate was multiplied by, and how that goes on.
    pub rate: Option<Rate>,
    /// The job, where it is given.
    pub job_id: Option<JobId>,
}

/// Finds the others and builds everything.
///
/// # Errors
/// Values that do not go together, data that cannot be used, others that do not come, a job that is not ours.
pub fn prepare(args: &JoinArgs) -> Result<(Worker<'_>, Group, Vec<Arm>)> {
    let train = &args.train;
    ensure!(
        args.rank < args.world_size,
        "--rank {} must be below --world-size {}",
        args.rank,
        args.world_size
    );
    train.check(args.world_size)?;
    let started = Instant::now();
    let mut worker = equip(args)?;
    let timeout = Duration::from_secs(train.timeout_s);
    let store = Store::connect(&args.store.host, args.store.port, timeout)?;
    let group =
        connect(&args.interface, worker.device, &store.prefix("group")?, args.rank, args.world_size, timeout)
            .with_context(|| format!("finding the other {} workers", args.world_size - 1))?;
    let (workers, devices) = introduce(args, &store, worker.device, timeout)?;

    let (start, mut arms) = begin(&worker, &group)?;
    if args.rank == 0 {
        worker.narrator = Some(narrate(&worker, &workers, &start, started, false)?);
    }
    let begin = RunStart { iteration: start.iteration, resumed: train.resume };
    for arm in &mut arms {
        let even = Plan::even(arm.global_batch, args.world_size, train.quantum);
        let even = even.at_rate(worker.rate(arm, start.rate));
        if !arm.policy.asks() {
            arm.planner = Planner::even(even, train.quantum, train.even_tail());
            continue;
        }
        let connected = worker.narrator.as_ref().map(|narrator| {
            let asking = narrator.asking(arm.policy)?;
            let registration = registration(&worker, asking, &workers, &devices, begin);
            let connected = connection(registration, asking, &narrator.output).open();
            connected.with_context(|| format!("predictor {}", train.server))
        });
        arm.planner = Planner::asking(train.ask, connected.transpose()?, even, reduce_device(worker.device));
        arm.planner.begin(start.iteration + 1, arm.cursor.size(arm.global_batch, 1));
    }
    // The first reading of a rate only opens its window; nobody begins before everybody is ready.
    worker.drivers.read(Instant::now());
    group.barrier().context("waiting for the others to be ready")?;
    Ok((worker, group, arms))
}

/// Everything that a worker has by itself.
///
/// # Errors
/// Data or a device that cannot be used.
pub fn equip(args: &JoinArgs) -> Result<Worker<'_>> {
    let train = &args.train;
    tch::set_num_threads(1);
    tch::set_num_interop_threads(1);
    let device = train.task.device_of(args.rank)?;
    let data = train.task.dataset()?;
    let unit = Duration::from_secs_f64(train.pace_unit_ms / 1e3);
    let pace = train.pace_of(args.rank)?.map(|pace| {
        let (pace, origin) = (Pace::new(pace, unit), Instant::now());
        match train.sway {
            Some(kind) => pace.swayed(timeline(args, kind, args.rank, origin), origin),
            None => pace,
        }
    });
    let wanted = train.background.background.is_some();
    let background = wanted.then(|| {
        foreground_stream(device)?;
        Background::start(train.background.job(args.rank, train.task.seed), device)
    });
    let sample_log =
        train.sample_log.as_ref().map(|folder| SampleLog::open(folder, &train.policy, args.rank));
    let open = |folder| {
        let worker = worker_id(train.worker_id.as_deref(), args.rank)?;
        let goes_on = args.life.is_some_and(|life| life > 0);
        MomentsLog::open(folder, args.rank, worker, train.timeline_every, goes_on)
    };
    let timeline = train.timeline.as_deref().map(open).transpose()?;
    let gpu = if let Device::Cuda(index) = device { Some(index as u32) } else { None };
    Ok(Worker {
        args,
        data,
        device,
        compute: Compute { micro_batch: train.micro_batch, pace },
        claims: Claims::new(args.store.clone(), train.hedge.claim, Duration::from_secs(train.timeout_s)),
        drivers: Boundary::new(std::process::id(), gpu),
        told: listen(train.elastic)?,
        called: false,
        leaving: false,
        background: background.transpose()?,
        sample_log: sample_log.transpose()?,
        timeline,
        narrator: None,
    })
}

/// SIGINT stops the run, as it reaches all workers of a terminal at once; SIGTERM too, but a worker of an elastic run that
/// is told so only leaves it.
fn listen(elastic: bool) -> Result<Told> {
    let told = Told::default();
    let terminated = if elastic { &told.leave } else { &told.stop };
    for (signal, flag) in [(SIGINT, &told.stop), (SIGTERM, terminated)] {
        let flag: Arc<AtomicBool> = Arc::clone(flag);
        signal_hook::flag::register(signal, flag).context("listening for signals")?;
    }
    Ok(told)
}

/// A replica at the begin of the run, in a group of this size.
pub fn replica(worker: &Worker<'_>, policy: Policy, world_size: usize) -> Arm {
    let (train, data) = (&worker.args.train, &worker.data);
    let global_batch = train.whole_batch(world_size);
    let model = train.task.network(data, worker.device);
    Arm {
        policy,
        optimizer: Sgd::new(model.parameters(), train.task.momentum, train.momentum_form),
        bucket: Bucket::new(&model, world_size, reduce_device(worker.device), train.rule.needs_norms()),
        model,
        cursor: Cursor::new(train.task.seed, data.train.len()),
        iteration: 0,
        global_batch,
        planner: Planner::even(Plan::even(global_batch, world_size, train.quantum), train.quantum, None),
    }
}

/// Fills the replicas from the latest checkpoint; none where none is wanted.
///
/// # Errors
/// There is none, or it is of another run.
pub fn resume(worker: &Worker<'_>, arms: &mut [Arm]) -> Result<Option<State>> {
    let train = &worker.args.train;
    let Some(folder) = train.checkpoint_dir.as_ref().filter(|_| train.resume) else { return Ok(None) };
    let (path, state) = checkpoint::latest(folder, &worker.identity())?;
    for arm in arms {
        checkpoint::load(&path, arm.policy, arm.model.parameters(), arm.optimizer.velocity_mut())?;
    }
    Ok(Some(state))
}

/// Each worker writes its id and device on the store and reads those of all.
fn introduce(
    args: &JoinArgs,
    store: &Store,
    device: Device,
    timeout: Duration,
) -> Result<(Vec<WorkerId>, Vec<String>)> {
    let own = worker_id(args.train.worker_id.as_deref(), args.rank)?;
    store.set(&format!("worker/{}", args.rank), own.as_str().as_bytes())?;
    store.set(&format!("device/{}", args.rank), device_words(device).as_bytes())?;
    let (mut workers, mut devices) = (Vec::new(), Vec::new());
    for rank in 0..args.world_size {
        let worker = String::from_utf8(store.get(&format!("worker/{rank}"), timeout)?)?;
        let worker = WorkerId::new(worker)?;
        ensure!(
            !workers.contains(&worker),
            "two workers call themselves {worker}: give each its own --worker-id"
        );
        workers.push(worker);
        devices.push(String::from_utf8(store.get(&format!("device/{rank}"), timeout)?)?);
    }
    Ok((workers, devices))
}

/// The replicas, at the begin of the run or where a checkpoint left off; the same on all ranks.
fn begin(worker: &Worker<'_>, group: &Group) -> Result<(Start, Vec<Arm>)> {
    let (args, train) = (worker.args, &worker.args.train);
    let mut arms: Vec<Arm> =
        train.policy.iter().map(|&policy| replica(worker, policy, args.world_size)).collect();
    let mut start = Start { job_id: train.job.clone(), ..Start::default() };
    if args.rank == 0
        && let Some(state) = resume(worker, &mut arms)?
    {
        let job_id = start.job_id.or(state.job_id);
        start = Start {
            iteration: state.iteration,
            epoch: state.epoch,
            position: state.position,
            learning_rate: state.learning_rate,
            rate: state.rate,
            job_id,
        };
    }
    // Neither learning rates nor their multipliers are negative, so that their bits are no negative numbers.
    let bits = |rate: f64| rate.to_bits() as i64;
    let mut whole = vec![start.iteration as i64, start.epoch as i64, start.position as i64];
    whole.push(start.learning_rate.map_or(-1, bits));
    whole.extend(start.rate.map_or([-1; rate::SLOTS], |rate| rate.encode().map(bits)));
    let mut position = Tensor::from_slice(&whole).to_device(reduce_device(worker.device));
    group.broadcast(&mut position, 0)?;
    let told = |index: i64| position.int64_value(&[index]) as u64;
    let said = |index: i64| (position.int64_value(&[index]) >= 0).then(|| f64::from_bits(told(index)));
    let slots: Vec<f64> = (4..4 + rate::SLOTS as i64).filter_map(said).collect();
    let rate = <[f64; rate::SLOTS]>::try_from(slots).ok().map(Rate::decode);
    start = Start {
        iteration: told(0),
        epoch: told(1),
        position: told(2),
        learning_rate: said(3),
        rate,
        ..start
    };
    for arm in &mut arms {
        arm.align(group, 0, reduce_device(worker.device))?;
        arm.iteration = start.iteration;
        arm.optimizer.set_last_rate(start.learning_rate);
        arm.cursor = Cursor::at(train.task.seed, worker.data.train.len(), start.epoch, start.position);
    }
    Ok((start, arms))
}
