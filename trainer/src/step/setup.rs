//! Preparation of the first iteration: the group, the replicas and the workers' names.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evenstep_c10d::{Group, Store, cuda};
use evenstep_client::RunStart;
use evenstep_protocol::WorkerId;
use evenstep_sensors::{Boundary, GpuId};
use tch::{Device, Kind, Tensor};

use super::flags::StopFlags;
use super::identity::worker_id;
use super::registration::{connection, registration, start_log};
use super::replica::Replica;
use super::worker::{StartPoint, Worker};
use crate::checkpoint::{self, State};
use crate::claims::Claims;
use crate::collective::{Bucket, connect};
use crate::data::Cursor;
use crate::model::{ChosenDevice, Compute, MOMENTUM, Sgd, choose, device_name, kind_of, reduce_device};
use crate::plan::{Plan, Planner, Policy, RATE_SLOTS, Rate};
use crate::training::{Hooks, Training, WorkerProcess, client_tls};

/// Joins the other workers and builds the state of this worker.
///
/// # Errors
/// Options contradict each other, the data is unusable, workers do not join in time, or the job belongs to
/// another run.
pub fn prepare<'a>(
    training: &'a Training,
    process: &'a WorkerProcess,
    hooks: Hooks,
) -> Result<(Worker<'a>, Group, Vec<Replica>)> {
    let (options, rank, world_size) = (&training.options, process.rank, process.world_size);
    ensure!(rank < world_size, "--rank {rank} must be below --workers {world_size}");
    options.check(world_size)?;
    let started = Instant::now();
    let mut worker = build_worker(training, process, hooks)?;
    let timeout = Duration::from_secs(options.timeout_s);
    let store = Store::connect(&process.store.host, process.store.port, timeout)?;
    let group =
        connect(&process.interface, worker.device, &store.prefix("group")?, rank, world_size, timeout)
            .with_context(|| format!("waiting for the other {} workers to join", world_size - 1))?;
    let (workers, devices) = exchange_ids(&worker, &store, timeout)?;

    let (start, mut replicas) = begin(&mut worker, &group)?;
    if rank == 0 {
        worker.log = Some(start_log(&mut worker, &workers, &start, started, false)?);
    }
    let run_start = RunStart { iteration: start.iteration, resumed: options.resume, restarted: false };
    for replica in &mut replicas {
        let even = Plan::even(replica.global_batch, world_size, options.quantum);
        let even = even.at_rate(worker.rate(replica, start.rate));
        if !replica.policy.requests_allocations() {
            replica.planner = Planner::even(even, options.quantum, options.even_tail());
            continue;
        }
        let connected = worker.log.as_ref().map(|log| {
            let job = log.job(replica.policy)?;
            let registration = registration(&worker, job, &workers, &devices, run_start);
            let connected = connection(registration, job, &log.output).open();
            connected.with_context(|| format!("predictor {}", options.server))
        });
        replica.planner = Planner::with_predictor(connected.transpose()?, even);
        replica.planner.begin(start.iteration + 1, replica.cursor.size(replica.global_batch, 1));
    }
    // The first reading of a rate driver only starts its window. No worker starts before all are ready.
    worker.drivers.read(Instant::now());
    group.barrier().context("waiting for the other workers to be ready")?;
    Ok((worker, group, replicas))
}

/// Builds the state of a worker that needs no other worker.
///
/// # Errors
/// The device or a TLS file is unusable, or the driver does not name the GPU.
pub fn build_worker<'a>(
    training: &'a Training,
    process: &'a WorkerProcess,
    hooks: Hooks,
) -> Result<Worker<'a>> {
    let options = &training.options;
    let ChosenDevice { device, fallback } = choose(options.step.device, process.rank)?;
    let mut drivers = Boundary::new(std::process::id());
    if let Device::Cuda(index) = device {
        drivers = drivers.with_gpu(cuda::uuid(index)?.parse::<GpuId>()?);
    }
    let timeout = Duration::from_secs(options.timeout_s);
    Ok(Worker {
        training,
        process,
        device,
        dtype: String::new(),
        fallback,
        compute: Compute::new(options.micro_batch, hooks.pace),
        tls: client_tls()?,
        claims: Claims::new(process.store.clone(), timeout),
        drivers,
        flags: StopFlags::listen(options.elastic)?,
        called: false,
        leaving: false,
        observer: hooks.observer,
        log: None,
    })
}

/// Returns a replica at the start of the run, in a group of this size.
///
/// # Errors
/// The model cannot be created, or its parameters differ in element type or device, or are neither float32
/// nor float64.
pub fn replica(worker: &mut Worker<'_>, policy: Policy, world_size: usize) -> Result<Replica> {
    let options = &worker.training.options;
    let global_batch = options.whole_batch(world_size);
    let model = (worker.training.model)(worker.device)?;
    let parameters = model.parameters();
    let on = kind_of(&parameters);
    worker.dtype = Replica::dtype(on.0);
    ensure!(
        [Kind::Float, Kind::Double].contains(&on.0)
            && parameters.iter().all(|parameter| (parameter.kind(), parameter.device()) == on),
        "the model's parameters must be all float32 or all float64, and on one device; the first is {} on {}",
        worker.dtype,
        device_name(on.1)
    );
    let reduced_on = reduce_device(worker.device);
    Ok(Replica {
        policy,
        optimizer: Sgd::new(&parameters, MOMENTUM),
        bucket: Bucket::new(&parameters, world_size, reduced_on, options.rule.needs_norms()),
        model,
        parameters,
        cursor: Cursor::new(options.step.seed, worker.training.data.len()),
        iteration: 0,
        global_batch,
        planner: Planner::even(Plan::even(global_batch, world_size, options.quantum), options.quantum, None),
    })
}

/// Loads the replicas from the latest checkpoint. Returns `None` if the run does not resume.
///
/// # Errors
/// The checkpoint is missing or belongs to another run.
pub fn resume(worker: &Worker<'_>, replicas: &mut [Replica]) -> Result<Option<State>> {
    let options = &worker.training.options;
    let Some(folder) = options.checkpoint_dir.as_ref().filter(|_| options.resume) else { return Ok(None) };
    let (path, state) = checkpoint::latest(folder, &worker.identity())?;
    for replica in replicas {
        checkpoint::load(&path, replica.policy, &replica.parameters, replica.optimizer.velocity_mut())?;
    }
    Ok(Some(state))
}

/// Writes this worker's id and device to the store. Returns the ids and devices of all workers.
fn exchange_ids(
    worker: &Worker<'_>,
    store: &Store,
    timeout: Duration,
) -> Result<(Vec<WorkerId>, Vec<String>)> {
    let rank = worker.process.rank;
    let own = worker_id(worker.training.options.worker_id.as_deref(), rank)?;
    store.set(&format!("worker/{rank}"), own.as_str().as_bytes())?;
    store.set(&format!("device/{rank}"), device_name(worker.device).as_bytes())?;
    let (mut workers, mut devices) = (Vec::new(), Vec::new());
    for rank in 0..worker.process.world_size {
        let worker = String::from_utf8(store.get(&format!("worker/{rank}"), timeout)?)?;
        let worker = WorkerId::new(worker)?;
        ensure!(
            !workers.contains(&worker),
            "two workers have the id {worker}; set a different --worker-id for each"
        );
        workers.push(worker);
        devices.push(String::from_utf8(store.get(&format!("device/{rank}"), timeout)?)?);
    }
    Ok((workers, devices))
}

/// Returns the replicas at the start of the run or from the checkpoint, the same on all ranks.
fn begin(worker: &mut Worker<'_>, group: &Group) -> Result<(StartPoint, Vec<Replica>)> {
    let (process, options) = (worker.process, &worker.training.options);
    let each = options.policy.iter().map(|&policy| replica(worker, policy, process.world_size));
    let mut replicas: Vec<Replica> = each.collect::<Result<_>>()?;
    let mut start = StartPoint { job_id: options.job.clone(), ..StartPoint::default() };
    if process.rank == 0
        && let Some(state) = resume(worker, &mut replicas)?
    {
        let job_id = start.job_id.or(state.job_id);
        start = StartPoint {
            iteration: state.iteration,
            epoch: state.epoch,
            position: state.position,
            rate: state.rate,
            job_id,
        };
    }
    // Multipliers are never negative, so their bits are never a negative integer.
    let bits = |rate: f64| rate.to_bits() as i64;
    let mut whole = vec![start.iteration as i64, start.epoch as i64, start.position as i64];
    whole.extend(start.rate.map_or([-1; RATE_SLOTS], |rate| rate.encode().map(bits)));
    let mut position = Tensor::from_slice(&whole).to_device(reduce_device(worker.device));
    group.broadcast(&mut position, 0)?;
    let told = |index: i64| position.int64_value(&[index]) as u64;
    let said = |index: i64| (position.int64_value(&[index]) >= 0).then(|| f64::from_bits(told(index)));
    let slots: Vec<f64> = (3..3 + RATE_SLOTS as i64).filter_map(said).collect();
    let rate = <[f64; RATE_SLOTS]>::try_from(slots).ok().map(Rate::decode);
    start = StartPoint { iteration: told(0), epoch: told(1), position: told(2), rate, ..start };
    for replica in &mut replicas {
        replica.copy_state_from(group, 0, reduce_device(worker.device))?;
        replica.iteration = start.iteration;
        replica.cursor =
            Cursor::at(options.step.seed, worker.training.data.len(), start.epoch, start.position);
    }
    Ok((start, replicas))
}
