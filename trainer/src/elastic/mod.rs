//! Elastic runs: workers join and leave, and the others regroup and continue from the last finished
//! iteration.
//!
//! An iteration is all or nothing: it is done when the optimizer has stepped after its all-reduce. If an
//! all-reduce fails, some members may have finished the iteration and others not. The member that is furthest
//! ahead then sends parameters, velocity and position to all, so that no sample is trained twice or omitted.
//!
//! Gloo cannot be aborted, so the survivors form a new group in the next round: see [`rendezvous`]. The
//! predictor's generation is not used for it, because training must continue without a predictor.

mod log;
mod presence;
pub mod rendezvous;
pub mod round;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use evenstep_c10d::{Error, Group, Store};
use evenstep_client::RunStart;
use evenstep_protocol::{JobId, WorkerId};
use tch::Device;

pub use rendezvous::{Ending, PREFIX, end, ending, has_begun};

use crate::collective::{Bucket, connect};
use crate::data::Cursor;
use crate::model::{device_name, reduce_device};
use crate::plan::{Plan, Planner, Policy};
use crate::progress::statistics::quantile;
use crate::progress::{Output, RegroupLine};
use crate::step::{
    Replica, StartPoint, Worker, build_worker, connection, default_job_id, life_token, registration, replica,
    resume, start_log, worker_id,
};
use crate::training::{Hooks, Training, WorkerProcess};
use rendezvous::{Patience, Rendezvous, RendezvousOutcome};
use round::{Arrival, Members, MembershipRules, Position, Standing};

/// Maximum time for regrouping, pauses below the minimum number of workers included; then the run ends.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Time limit for reading a key that is already set.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Announces that a life of a worker is over. The launcher calls this for its workers.
///
/// # Errors
/// The store is unreachable.
pub fn announce_end_of_life(store: &Store, slot: usize, life: u32) -> Result<()> {
    Ok(log::append(store, presence::ENDED_LIVES, format!("{slot}.{life}").as_bytes())?)
}

/// Trains as one worker of an elastic run, from its arrival to the end of the run. The loss of another worker
/// is not an error.
///
/// # Errors
/// Options contradict each other, the data is unusable, a gradient is wrong, or the run cannot continue.
pub fn run(training: &Training, process: &WorkerProcess, hooks: Hooks) -> Result<()> {
    let options = &training.options;
    options.check(process.world_size)?;
    let mut worker = build_worker(training, process, hooks)?;
    ensure!(
        reduce_device(worker.device) == Device::Cpu,
        "--elastic requires Gloo: NCCL cannot recover from a lost peer; build without --features nccl"
    );
    let own = worker_id(options.worker_id.as_deref(), process.rank)?;
    let output = Output::new(own.as_str());
    let timeout = Duration::from_secs(options.timeout_s);
    let token = life_token(&own, process.rank, process.life);
    let device = device_name(worker.device);
    let arrival = Arrival { token, worker: own, slot: process.rank, device, standing: Standing::Blank };
    let membership_rules = MembershipRules {
        initial_workers: process.world_size,
        min_workers: options.min_workers as usize,
        max_workers: options.max_workers(),
    };
    let wait_limits = Patience { missing: timeout, too_few: PAUSE_MAX };
    let connection = || Store::connect(&process.store.host, process.store.port, timeout);
    let rendezvous = Rendezvous::begin(
        connection,
        arrival,
        membership_rules,
        wait_limits,
        worker.flags.clone(),
        output.clone(),
    )?;
    let mut replica = replica(&mut worker, options.policy[0], process.world_size)?;
    let (standing, job_id) = initial_parameter_state(&worker, &mut replica, rendezvous.has_begun()?)?;
    // The first reading of a rate driver only starts its window.
    worker.drivers.read(Instant::now());
    let mut life = Life {
        worker,
        replica,
        rendezvous,
        output,
        standing,
        job_id,
        started: Instant::now(),
        trained_with: None,
        regrouping_since: Instant::now(),
        outdated: Arc::default(),
    };
    life.live()
}

/// Returns the contribution of a worker that has not trained yet.
fn initial_parameter_state(
    worker: &Worker<'_>,
    replica: &mut Replica,
    begun: bool,
) -> Result<(Standing, Option<JobId>)> {
    let options = &worker.training.options;
    let job_id = options.job.clone();
    if begun {
        return Ok((Standing::Blank, job_id));
    }
    let mut position =
        Position { iteration: 0, epoch: 0, done: 0, local_batch: None, rate: None, elapsed_s: 0.0 };
    if !options.resume {
        return Ok((Standing::Fresh(position), job_id));
    }
    // As in a run without --elastic, rank 0 has the checkpoints.
    if worker.process.rank != 0 {
        return Ok((Standing::Blank, job_id));
    }
    let state = resume(worker, std::slice::from_mut(replica))?.context("--resume requires a checkpoint")?;
    position = Position {
        iteration: state.iteration,
        epoch: state.epoch,
        done: state.position,
        rate: state.rate,
        ..position
    };
    Ok((Standing::Fresh(position), job_id.or(state.job_id)))
}

/// One life of a worker.
struct Life<'a> {
    worker: Worker<'a>,
    replica: Replica,
    rendezvous: Rendezvous,
    output: Output,
    standing: Standing,
    job_id: Option<JobId>,
    /// Start of the run.
    started: Instant,
    /// Members of the last group that finished an iteration.
    trained_with: Option<Members>,
    /// Time at which the last group was lost or left.
    regrouping_since: Instant,
    /// Set when the connection to the predictor is registered for former members.
    outdated: Arc<AtomicBool>,
}

/// Next step after a group has ended.
enum Next {
    /// Form another group.
    Regroup,
    /// End the run: all iterations are done, or a signal stopped it.
    End { stopped: bool },
    /// Leave: the others continue without this worker.
    Left,
}

impl Life<'_> {
    fn live(&mut self) -> Result<()> {
        loop {
            let (training, process, device) = (self.worker.training, self.worker.process, self.worker.device);
            let timeout = Duration::from_secs(training.options.timeout_s);
            let connect = |store: &Store, rank, world_size, within| {
                connect(&process.interface, device, store, rank, world_size, within)
                    .map(|group| group.with_timeout(timeout))
            };
            let (round, members, group) = match self.rendezvous.meet(self.standing, &connect)? {
                RendezvousOutcome::Group(meeting) => (meeting.round, meeting.members, meeting.group),
                RendezvousOutcome::Over(ending) => return self.over(&ending),
                RendezvousOutcome::Left => return self.left(),
            };
            match self.copy_state_from(&group, &members) {
                Ok(()) => {}
                Err(error) if is_lost(&error) => continue,
                Err(error) => return Err(error),
            }
            self.take_place(&group, &members)?;
            self.worker.observer.round_started(round);
            self.worker.claims.begin_round(round);
            let next = self.train(&group, round, &members)?;
            self.regrouping_since = Instant::now();
            self.standing = Standing::Trained(self.position(group.rank()));
            // The other workers must notice at once that this worker has left the group.
            drop(group);
            match next {
                Next::Regroup => {}
                Next::Left => {
                    self.rendezvous.leave()?;
                    return self.left();
                }
                Next::End { stopped } => {
                    if let Some(ending) = self.end(round, &members, stopped)? {
                        return self.over(&ending);
                    }
                }
            }
        }
    }

    /// Copies the state of the member that is furthest ahead to all members; all or nothing.
    fn copy_state_from(&mut self, group: &Group, members: &Members) -> Result<()> {
        let (options, on) = (&self.worker.training.options, reduce_device(self.worker.device));
        let position =
            members.position().context("reading the position of the source: it has no parameters")?;
        self.replica.copy_state_from(group, members.source, on)?;
        let replica = &mut self.replica;
        replica.iteration = position.iteration;
        if (replica.cursor.epoch(), replica.cursor.position()) != (position.epoch, position.done) {
            replica.cursor =
                Cursor::at(options.step.seed, self.worker.training.data.len(), position.epoch, position.done);
        }
        if self.standing == Standing::Blank {
            let elapsed = Duration::from_secs_f64(position.elapsed_s);
            self.started = Instant::now().checked_sub(elapsed).unwrap_or(self.started);
        }
        let shares: Vec<Option<u64>> = members
            .members
            .iter()
            .map(|member| match member.standing {
                Standing::Trained(position) => position.local_batch,
                Standing::Fresh(_) | Standing::Blank => None,
            })
            .collect();
        let world_size = shares.len();
        replica.bucket = Bucket::new(&replica.parameters, world_size, on, options.rule.needs_norms());
        replica.global_batch = options.whole_batch(world_size);
        let rate = self.worker.rate(replica, position.rate);
        let plan = Plan::regrouped(&shares, replica.global_batch, options.quantum, rate);
        self.outdated.store(true, Ordering::Relaxed);
        replica.planner = match replica.policy {
            Policy::Even => {
                let even = Plan::even(replica.global_batch, world_size, options.quantum);
                Planner::even(even.at_rate(rate), options.quantum, options.even_tail())
            }
            Policy::Base | Policy::Evenstep => Planner::with_predictor(None, plan),
        };
        self.standing = Standing::Trained(self.position(group.rank()));
        Ok(())
    }

    /// Rank 0 keeps the progress log and the connection to the predictor. A former rank 0 closes both.
    fn take_place(&mut self, group: &Group, members: &Members) -> Result<()> {
        if group.rank() != 0 {
            if self.worker.log.take().is_some() {
                self.worker.observer.flush()?;
            }
            return Ok(());
        }
        let begun = self.rendezvous.has_begun()?;
        let workers = members.workers();
        if self.replica.policy.requests_allocations() {
            self.job_id = Some(self.agree_on_job()?);
        }
        if let Some(log) = &mut self.worker.log {
            log.workers.clone_from(&workers);
            log.pace_missed.clear();
        } else {
            let start = StartPoint {
                iteration: self.replica.iteration,
                epoch: self.replica.cursor.epoch(),
                position: self.replica.cursor.position(),
                rate: Some(self.replica.planner.in_force().rate()),
                job_id: self.job_id.clone(),
            };
            self.worker.log = Some(start_log(&mut self.worker, &workers, &start, self.started, begun)?);
        }
        self.connect_predictor(members, begun)?;
        self.rendezvous.begin_training()
    }

    /// Returns one job id for every worker that will ever be rank 0.
    fn agree_on_job(&self) -> Result<JobId> {
        let own = self.job_id.clone().map_or_else(default_job_id, Ok)?;
        let agreed = self.rendezvous.store().set_once("job", own.as_str().as_bytes())?;
        Ok(JobId::new(String::from_utf8(agreed).context("the job id in the store")?)?)
    }

    /// Opens the connection to the predictor. At the start of the run the predictor may reject the run. Later
    /// the current members are registered in the background.
    fn connect_predictor(&mut self, members: &Members, begun: bool) -> Result<()> {
        let options = &self.worker.training.options;
        let Some(log) = self.worker.log.as_ref().filter(|_| self.replica.policy.requests_allocations())
        else {
            return Ok(());
        };
        let job = log.job(self.replica.policy)?;
        let devices: Vec<String> = members.members.iter().map(|member| member.device.clone()).collect();
        let start = RunStart {
            iteration: self.replica.iteration,
            resumed: options.resume || begun,
            restarted: false,
        };
        let registration = registration(&self.worker, job, &log.workers, &devices, start)
            .with_former_workers(members.ever.clone());
        self.outdated = registration.superseded();
        let builder = connection(registration, job, &log.output);
        let connection = if begun {
            builder.reopen()
        } else {
            match builder.open() {
                Ok(connection) => connection,
                Err(error) => {
                    let why = format!("predictor {}: {error}", options.server);
                    end(self.rendezvous.store(), &Ending::Failed(why.clone()))?;
                    bail!(why);
                }
            }
        };
        self.replica.planner.connect(connection);
        self.replica
            .planner
            .begin(self.replica.iteration + 1, self.replica.cursor.size(self.replica.global_batch, 1));
        Ok(())
    }

    /// Trains until the group is lost or left, or the run is done.
    fn train(&mut self, group: &Group, round: u64, members: &Members) -> Result<Next> {
        while !self.worker.is_done(&self.replica) {
            self.worker.called = self.rendezvous.is_worker_waiting();
            let begun = self.replica.iteration;
            let request_counts = match self.worker.step(group, &mut self.replica) {
                Ok(request_counts) => request_counts,
                Err(error) if is_lost(&error) => return Ok(Next::Regroup),
                Err(error) => return Err(error),
            };
            if self.trained_with.as_ref() != Some(members) {
                self.report_regrouping(round, begun, members)?;
                self.trained_with = Some(members.clone());
            }
            // The next rank 0 continues the record from the file.
            self.worker.observer.flush()?;
            self.worker.checkpoint_since(begun, std::slice::from_ref(&self.replica))?;
            if request_counts.stop > 0 || request_counts.leave == group.world_size() {
                return Ok(Next::End { stopped: true });
            }
            if request_counts.leave > 0 || request_counts.regroup > 0 {
                return Ok(if self.worker.leaving { Next::Left } else { Next::Regroup });
            }
        }
        Ok(Next::End { stopped: false })
    }

    fn report_regrouping(&mut self, round: u64, iteration: u64, members: &Members) -> Result<()> {
        let (Some(log), Some(before)) = (&mut self.worker.log, &self.trained_with) else {
            return Ok(());
        };
        let (gone, joined) = members.changes(before);
        let regroup_s = self.regrouping_since.elapsed().as_secs_f64();
        self.rendezvous.store().set(&took_key(round), regroup_s.to_string().as_bytes())?;
        let happened: Vec<String> = [(&gone, "disconnected"), (&joined, "connected")]
            .into_iter()
            .filter(|(workers, _)| !workers.is_empty())
            .map(|(workers, what)| format!("{} {what}", names(workers)))
            .collect();
        log.output.say(&format!(
            "{} at iteration {iteration}; {} workers continue in round {round} after {regroup_s:.2} s{}",
            if happened.is_empty() { "no worker joined or left".to_owned() } else { happened.join(", ") },
            members.members.len(),
            match self.worker.training.options.per_worker_batch {
                Some(_) => format!(", with a global batch of {}", self.replica.global_batch),
                None => String::new(),
            }
        ));
        let at_s = log.started.elapsed().as_secs_f64();
        let workers = members.workers();
        self.worker.observer.regrouped(RegroupLine {
            round,
            iteration,
            at_s,
            regroup_s,
            gone,
            joined,
            workers,
        })
    }

    /// Ends the run: rank 0 announces the end and the others wait for it. Returns `None` if rank 0 died
    /// before.
    fn end(&mut self, round: u64, members: &Members, stopped: bool) -> Result<Option<Ending>> {
        if self.worker.log.is_none() {
            return self.rendezvous.await_end(&members.members[0].token);
        }
        if stopped {
            self.worker.checkpoint(std::slice::from_ref(&self.replica))?;
        }
        self.report_all_regroupings(round)?;
        self.worker.conclude(std::slice::from_ref(&self.replica), stopped)?;
        let ending = if stopped { Ending::Stopped } else { Ending::Finished };
        let ending = end(self.rendezvous.store(), &ending)?;
        self.replica.planner.close(self.replica.cursor.size(self.replica.global_batch, 0));
        Ok(Some(ending))
    }

    fn report_all_regroupings(&self, round: u64) -> Result<()> {
        let Some(log) = &self.worker.log else { return Ok(()) };
        let store = self.rendezvous.store();
        let mut took_s = Vec::new();
        for round in 1..=round {
            if store.check(&took_key(round))? {
                let said = String::from_utf8(store.get(&took_key(round), READ_WITHIN)?)?;
                took_s.push(said.parse::<f64>().context("reading a duration from the store")?);
            }
        }
        if let (Some(median), Some(max)) = (quantile(&took_s, 0.5), quantile(&took_s, 1.0)) {
            log.output.say(&format!(
                "regrouped {} times; time to the next finished iteration: {median:.2} s (median), {max:.2} s (maximum)",
                took_s.len()
            ));
        }
        Ok(())
    }

    fn position(&self, rank: usize) -> Position {
        let in_force = self.replica.planner.in_force();
        Position {
            iteration: self.replica.iteration,
            epoch: self.replica.cursor.epoch(),
            done: self.replica.cursor.position(),
            local_batch: in_force.expected_batches().get(rank).copied(),
            rate: Some(in_force.rate()),
            elapsed_s: self.started.elapsed().as_secs_f64(),
        }
    }

    fn over(&mut self, ending: &Ending) -> Result<()> {
        self.worker.observer.flush()?;
        match ending {
            Ending::Finished | Ending::Stopped => Ok(()),
            Ending::Failed(why) => bail!("{why}"),
        }
    }

    fn left(&mut self) -> Result<()> {
        self.worker.observer.flush()?;
        self.output.say("left the run after a signal; the others continue");
        Ok(())
    }
}

/// Returns whether an operation failed because a member of the group died or left.
fn is_lost(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::C10d { .. }))
}

fn took_key(round: u64) -> String {
    format!("round/{round}/took")
}

fn names(workers: &[WorkerId]) -> String {
    let names: Vec<&str> = workers.iter().map(WorkerId::as_str).collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}
