//! What comes before the first iteration: the group, the data, the replicas, and who the workers are.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use evenstep_agent::Boundary;
use evenstep_c10d::{Group, Store};
use evenstep_protocol::{JobId, JobSpec, WorkerId};
use tch::{Cuda, Device, Tensor};

use crate::arm::Arm;
use crate::ask::{Backlog, Begin, Client, Link, Registration};
use crate::checkpoint;
use crate::cli::{DeviceChoice, JoinArgs, Policy, TrainArgs};
use crate::collective::Bucket;
use crate::compute::Compute;
use crate::contend::clock_s;
use crate::data::{Cursor, Dataset, TeacherTask};
use crate::figures::Tally;
use crate::identity::{default_job_id, device_words, worker_id};
use crate::load::{Load, LoadKind, Timeline};
use crate::model::Model;
use crate::narrator::Narrator;
use crate::optimizer::Sgd;
use crate::output::Progress;
use crate::pace::Pace;
use crate::plan::Plan;
use crate::planner::Planner;
use crate::record::{Recorder, RunLine, Scenario};
use crate::sample_log::SampleLog;
use crate::worker::{Worker, asks};

/// Where this run begins, as rank 0 knows it and tells the others.
#[derive(Debug, Clone, Default)]
struct Start {
    iteration: u64,
    epoch: u64,
    position: u64,
    job_id: Option<JobId>,
}

/// Finds the others and builds everything.
///
/// # Errors
/// Values that do not go together, data that cannot be used, others that do not come, a job that is not ours.
pub fn prepare(args: &JoinArgs) -> Result<(Worker<'_>, Vec<Arm>)> {
    let train = &args.train;
    ensure!(
        args.rank < args.world_size,
        "--rank {} must be below --world-size {}",
        args.rank,
        args.world_size
    );
    train.check(args.world_size)?;
    let started = Instant::now();
    tch::set_num_threads(1);
    tch::set_num_interop_threads(1);
    let device = choose_device(train.device, args.rank)?;
    let data = match &train.data {
        Some(folder) => Dataset::open(folder)?,
        None => TeacherTask { samples: train.samples, seed: train.seed }.generate(),
    };

    let timeout = Duration::from_secs(train.timeout_s);
    let store = Store::connect(&args.store.host, args.store.port, timeout)?;
    let group = join_group(args, &store, device, timeout)?;
    let (workers, devices) = introduce(args, &store, device, timeout)?;

    let compute = Compute {
        micro_batch: train.micro_batch,
        pace: train
            .pace
            .as_ref()
            .map(|paces| Pace::new(paces[args.rank], Duration::from_secs_f64(train.pace_unit_ms / 1e3))),
    };
    let sample_log =
        train.sample_log.as_ref().map(|folder| SampleLog::open(folder, &train.policy, args.rank));
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("listening for signals")?;
    }
    let gpu = if let Device::Cuda(index) = device { Some(index as u32) } else { None };
    let mut worker = Worker {
        args,
        group,
        data,
        device,
        compute,
        drivers: Boundary::new(std::process::id(), gpu),
        stop,
        sample_log: sample_log.transpose()?,
        narrator: None,
    };

    let (start, mut arms) = begin(&worker)?;
    if args.rank == 0 {
        worker.narrator = Some(narrate(&worker, &workers, &start, started)?);
    }
    let begin = Begin { iteration: start.iteration, resumed: train.resume };
    for arm in arms.iter_mut().filter(|arm| arm.policy == Policy::Evenstep) {
        let link = match &worker.narrator {
            Some(narrator) => Some(open_link(train, narrator, &devices, begin)?),
            None => None,
        };
        let even = Plan::even(train.global_batch, args.world_size, train.quantum);
        arm.planner = Planner::asking(train.ask, link, even, reduce_device(device));
        arm.planner.begin(start.iteration + 1, arm.cursor.size(train.global_batch, 1));
    }
    // The first reading of a rate only opens its window; nobody begins before everybody is ready.
    worker.drivers.read(Instant::now());
    worker.group.barrier().context("waiting for the others to be ready")?;
    Ok((worker, arms))
}

fn choose_device(choice: DeviceChoice, rank: usize) -> Result<Device> {
    let wanted = choice != DeviceChoice::Cpu;
    let devices = if wanted && evenstep_c10d::load_cuda() { Cuda::device_count() } else { 0 };
    match (choice, devices) {
        (DeviceChoice::Cuda, 0) => bail!("--device cuda: libtorch sees no CUDA device on this machine"),
        (_, 0) => Ok(Device::Cpu),
        (_, devices) => Ok(Device::Cuda(rank % devices as usize)),
    }
}

/// Gradients stay on the GPU with NCCL; with Gloo they pass through host memory.
fn reduce_device(device: Device) -> Device {
    if cfg!(feature = "nccl") { device } else { Device::Cpu }
}

fn join_group(args: &JoinArgs, store: &Store, device: Device, timeout: Duration) -> Result<Group> {
    let store = store.prefix("group")?;
    let group = match reduce_device(device) {
        Device::Cuda(index) => Group::nccl(&store, args.rank, args.world_size, index, timeout),
        _ => Group::gloo(&store, args.rank, args.world_size, &args.interface, timeout),
    };
    group.with_context(|| format!("finding the other {} workers", args.world_size - 1))
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
fn begin(worker: &Worker<'_>) -> Result<(Start, Vec<Arm>)> {
    let (args, train, data) = (worker.args, &worker.args.train, &worker.data);
    let kind = train.dtype.kind();
    let mut arms: Vec<Arm> = Vec::new();
    for &policy in &train.policy {
        let model =
            Model::new(&train.architecture(), data.shape, data.classes, train.seed, kind, worker.device);
        arms.push(Arm {
            policy,
            optimizer: Sgd::new(&model, train.momentum),
            bucket: Bucket::new(&model, args.world_size, reduce_device(worker.device)),
            model,
            cursor: Cursor::new(train.seed, data.train.len()),
            iteration: 0,
            planner: Planner::even(train.global_batch, args.world_size, train.quantum),
        });
    }
    let mut start = Start { job_id: train.job.clone(), ..Start::default() };
    if let (0, true, Some(folder)) = (args.rank, train.resume, &train.checkpoint_dir) {
        let (path, state) = checkpoint::latest(folder, &worker.identity())?;
        for arm in &mut arms {
            checkpoint::load(&path, arm.policy, arm.model.parameters(), arm.optimizer.velocity_mut())?;
        }
        let job_id = start.job_id.or(state.job_id);
        start = Start { iteration: state.iteration, epoch: state.epoch, position: state.position, job_id };
    }
    let mut position =
        Tensor::from_slice(&[start.iteration as i64, start.epoch as i64, start.position as i64])
            .to_device(reduce_device(worker.device));
    worker.group.broadcast(&mut position, 0)?;
    let told = |index: i64| position.int64_value(&[index]) as u64;
    start = Start { iteration: told(0), epoch: told(1), position: told(2), ..start };
    for arm in &mut arms {
        arm.align(&worker.group, reduce_device(worker.device))?;
        arm.iteration = start.iteration;
        arm.cursor = Cursor::at(train.seed, data.train.len(), start.epoch, start.position);
    }
    Ok((start, arms))
}

fn narrate(worker: &Worker<'_>, workers: &[WorkerId], start: &Start, started: Instant) -> Result<Narrator> {
    let (args, train) = (worker.args, &worker.args.train);
    let left = worker.iterations().saturating_sub(start.iteration) * train.policy.len() as u64;
    let (progress, output) = Progress::new("rank 0", left);
    let job_id =
        asks(&train.policy).then(|| start.job_id.clone().map_or_else(default_job_id, Ok)).transpose()?;
    let run = describe(worker, workers, job_id.clone());
    output.say(&format!(
        "{} workers, {}, {}, global batch {}, {} iterations{}",
        args.world_size,
        run.model,
        run.data,
        run.global_batch,
        run.steps,
        job_id.as_ref().map_or_else(String::new, |job| format!(", job {job}")),
    ));
    for note in &run.notes {
        output.say(&format!("note: {note}"));
    }
    if start.iteration > 0 {
        output.say(&format!("goes on with iteration {}", start.iteration));
    }
    let loads = timelines(args, started);
    let recorder = train.record.as_deref().map(|path| Recorder::begin(path, run, loads)).transpose()?;
    let tallies = train.policy.iter().map(|&policy| (policy, Tally::default())).collect();
    Ok(Narrator {
        started,
        workers: workers.to_vec(),
        job_id,
        backlog: Backlog::default(),
        recorder,
        progress,
        output,
        pace_missed: Vec::new(),
        tallies,
    })
}

/// The load of our own beside each worker, by rank, on the clock of the record; empty where there is none.
fn timelines(args: &JoinArgs, started: Instant) -> Vec<Timeline> {
    let Some((kind, since_s)) = args.contended.zip(args.contended_since) else { return Vec::new() };
    let lead_s = clock_s() - started.elapsed().as_secs_f64() - since_s;
    (0..args.world_size)
        .map(|rank| Timeline::new(Load::beside(rank, kind, args.train.seed), lead_s))
        .collect()
}

fn describe(worker: &Worker<'_>, workers: &[WorkerId], job_id: Option<JobId>) -> RunLine {
    let (args, train) = (worker.args, &worker.args.train);
    let mut notes = Vec::new();
    if let Some(paces) = &train.pace {
        notes.push(format!(
            "imposed speeds {paces:?}: real gradients, then each worker waits until {} ms a sample divided by its pace \
             are over",
            train.pace_unit_ms
        ));
    }
    if let Some(kind) = args.contended {
        let changes = match kind {
            LoadKind::Regimes => "changes over time",
            LoadKind::Steady => "stays as it is",
            LoadKind::Bursty => "comes in bursts",
            LoadKind::Periodic => "comes and goes periodically",
            LoadKind::Walk => "wanders up and down",
        };
        notes.push(format!("each worker's core carries a real competing load that {changes}"));
    }
    let scenario = match (&train.pace, args.contended.is_some()) {
        (_, true) => Scenario::Contended,
        (Some(_), false) => Scenario::Paced,
        (None, false) => Scenario::Plain,
    };
    RunLine {
        scenario,
        job_id,
        paces: train.pace.clone(),
        workers: workers.to_vec(),
        global_batch: train.global_batch,
        model: format!("{}, {}", train.model_name(), train.dtype.tolerance().0),
        data: worker.data.name.clone(),
        steps: worker.iterations(),
        seed: train.seed,
        ask: train.ask,
        policies: train.policy.clone(),
        block: if train.policy.len() > 1 { train.block } else { worker.iterations() },
        notes,
    }
}

fn open_link(train: &TrainArgs, narrator: &Narrator, devices: &[String], begin: Begin) -> Result<Link> {
    let job_id = narrator.job_id().cloned().context("the policy evenstep needs a job id")?;
    let registration = Registration {
        client: Client::new(&train.server, job_id, Duration::from_millis(train.ask_timeout_ms)),
        spec: JobSpec {
            quantum: train.quantum,
            max_local_batch: train.max_local_batch,
            ..JobSpec::new(train.global_batch)
        },
        workers: narrator.workers.clone(),
        devices: devices.to_vec(),
        begin,
    };
    let link = Link::open(registration, narrator.backlog.clone(), narrator.output.clone());
    link.with_context(|| format!("predictor {}", train.server))
}
