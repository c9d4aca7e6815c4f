//! A run whose workers come and go: those who are left regroup and go on from the last finished iteration.
//!
//! Iterations are all or nothing: an iteration is done once the optimizer stepped after its all-reduce. Where an all-reduce
//! fails, some members may have finished it and others not; whoever stands furthest hands parameters, velocity and
//! position to all, so that nothing is trained twice and nothing left out. See [`rendezvous`] for how they meet.

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

pub use rendezvous::{Ending, PREFIX, Told, end, ending, has_begun};

use crate::arm::Arm;
use crate::cli::{JoinArgs, Policy};
use crate::collective::Bucket;
use crate::contend::clock_s;
use crate::data::Cursor;
use crate::device::{connect, reduce_device};
use crate::figures::quantile;
use crate::identity::{default_job_id, device_words, worker_id};
use crate::opening::{connection, narrate, registration};
use crate::output::Output;
use crate::plan::Plan;
use crate::planner::Planner;
use crate::record::RegroupLine;
use crate::setup::{Start, equip, replica, resume};
use crate::worker::{Worker, asks};
use rendezvous::{Met, Patience, Rendezvous};
use round::{Arrival, Members, Position, Standing, Terms};

/// What is set in the store can be read at once.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Says that a life which the launcher started is over.
///
/// # Errors
/// The store is gone.
pub fn declare_gone(store: &Store, slot: usize, life: u32) -> Result<()> {
    Ok(log::append(store, presence::GONE, launched_token(slot, life).as_bytes())?)
}

fn launched_token(slot: usize, life: u32) -> String {
    format!("{slot}.{life}")
}

/// Trains as one worker of an elastic run, from its arrival to the end of the run.
///
/// # Errors
/// Values that do not go together, data that cannot be used, a gradient that is wrong, a run that cannot go on. That
/// another worker is gone is none.
pub fn run(args: &JoinArgs) -> Result<()> {
    let train = &args.train;
    train.check(args.world_size)?;
    let mut worker = equip(args)?;
    ensure!(
        reduce_device(worker.device) == Device::Cpu,
        "--elastic reduces over Gloo: a lost peer is no clean error under NCCL; build without --features nccl"
    );
    let own = worker_id(train.worker_id.as_deref(), args.rank)?;
    let output = Output::new(own.as_str());
    let timeout = Duration::from_secs(train.timeout_s);
    let token = match args.life {
        Some(life) => launched_token(args.rank, life),
        None => format!("{own}.{}.{}", std::process::id(), clock_s()),
    };
    let device = device_words(worker.device);
    let arrival = Arrival { token, worker: own, slot: args.rank, device, standing: Standing::Blank };
    let terms = Terms {
        begin_with: args.world_size,
        min_workers: train.min_workers as usize,
        max_workers: train.max_workers(),
    };
    let patience = Patience { missing: timeout, too_few: Duration::from_secs(train.pause_timeout_s) };
    let connection = || Store::connect(&args.store.host, args.store.port, timeout);
    let rendezvous =
        Rendezvous::begin(connection, arrival, terms, patience, worker.told.clone(), output.clone())?;
    let mut arm = replica(&worker, train.policy[0], args.world_size);
    let (standing, job_id) = first_standing(&worker, &mut arm, rendezvous.has_begun()?)?;
    // The first reading of a rate only opens its window.
    worker.drivers.read(Instant::now());
    let mut life = Life {
        worker,
        arm,
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

/// What a worker brings that has trained nothing yet.
fn first_standing(worker: &Worker<'_>, arm: &mut Arm, begun: bool) -> Result<(Standing, Option<JobId>)> {
    let train = &worker.args.train;
    let job_id = train.job.clone();
    if begun {
        return Ok((Standing::Blank, job_id));
    }
    let mut position = Position {
        iteration: 0,
        epoch: 0,
        done: 0,
        local_batch: None,
        rate: None,
        learning_rate: None,
        elapsed_s: 0.0,
    };
    if !train.resume {
        return Ok((Standing::Fresh(position), job_id));
    }
    // As without --elastic: rank 0 has the checkpoints.
    if worker.args.rank != 0 {
        return Ok((Standing::Blank, job_id));
    }
    let state = resume(worker, std::slice::from_mut(arm))?.context("--resume needs a checkpoint")?;
    position = Position {
        iteration: state.iteration,
        epoch: state.epoch,
        done: state.position,
        learning_rate: state.learning_rate,
        rate: state.rate,
        ..position
    };
    Ok((Standing::Fresh(position), job_id.or(state.job_id)))
}

/// One life of a worker.
struct Life<'a> {
    worker: Worker<'a>,
    arm: Arm,
    rendezvous: Rendezvous,
    output: Output,
    standing: Standing,
    job_id: Option<JobId>,
    /// When the run began.
    started: Instant,
    /// Members of the last group that finished an iteration.
    trained_with: Option<Members>,
    /// When the last group was lost or left.
    regrouping_since: Instant,
    /// Set when the line to the predictor speaks for members of the past.
    outdated: Arc<AtomicBool>,
}

/// What comes after a group.
enum Next {
    /// Another one.
    Regroup,
    /// The end: all iterations are done, or it was told to stop.
    End { stopped: bool },
    /// The others go on without this worker.
    Left,
}

impl Life<'_> {
    fn live(&mut self) -> Result<()> {
        loop {
            let (args, device) = (self.worker.args, self.worker.device);
            let timeout = Duration::from_secs(args.train.timeout_s);
            let connect = |store: &Store, rank, world_size, within| {
                connect(&args.interface, device, store, rank, world_size, within)
                    .map(|group| group.with_timeout(timeout))
            };
            let (round, members, group) = match self.rendezvous.meet(self.standing, &connect)? {
                Met::Group(meeting) => (meeting.round, meeting.members, meeting.group),
                Met::Over(ending) => return self.over(&ending),
                Met::Left => return self.left(),
            };
            match self.align(&group, &members) {
                Ok(()) => {}
                Err(error) if is_lost(&error) => continue,
                Err(error) => return Err(error),
            }
            self.take_place(&group, &members)?;
            if let Some(log) = &mut self.worker.sample_log {
                log.round = round;
            }
            self.worker.claims.begin_round(round);
            let next = self.train(&group, round, &members)?;
            self.regrouping_since = Instant::now();
            self.standing = Standing::Trained(self.position(group.rank()));
            // The others must see at once that this worker has left the group.
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

    /// Takes over from the member that stands furthest; all or nothing.
    fn align(&mut self, group: &Group, members: &Members) -> Result<()> {
        let (train, on) = (&self.worker.args.train, reduce_device(self.worker.device));
        let position = members.position().context("a list whose source holds no parameters")?;
        self.arm.align(group, members.source, on)?;
        let arm = &mut self.arm;
        arm.iteration = position.iteration;
        if (arm.cursor.epoch(), arm.cursor.position()) != (position.epoch, position.done) {
            arm.cursor =
                Cursor::at(train.task.seed, self.worker.data.train.len(), position.epoch, position.done);
        }
        arm.optimizer.set_last_rate(position.learning_rate);
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
        arm.bucket = Bucket::new(&arm.model, world_size, on, train.rule.needs_norms());
        arm.global_batch = train.whole_batch(world_size);
        let rate = self.worker.rate(arm, position.rate);
        let plan = Plan::regrouped(&shares, arm.global_batch, train.quantum, train.max_local_batch, rate);
        self.outdated.store(true, Ordering::Relaxed);
        arm.planner = match arm.policy {
            Policy::Even => {
                let even = Plan::even(arm.global_batch, world_size, train.quantum);
                Planner::even(even.at_rate(rate), train.quantum, train.even_tail())
            }
            Policy::Base | Policy::Evenstep => Planner::asking(train.ask, None, plan, on),
        };
        self.standing = Standing::Trained(self.position(group.rank()));
        Ok(())
    }

    /// Rank 0 keeps the account and talks to the predictor; whoever was rank 0 and is so no more stops both.
    fn take_place(&mut self, group: &Group, members: &Members) -> Result<()> {
        if group.rank() != 0 {
            if let Some(mut narrator) = self.worker.narrator.take() {
                narrator.flush()?;
            }
            return Ok(());
        }
        let begun = self.rendezvous.has_begun()?;
        let workers = members.workers();
        if asks(&self.worker.args.train.policy) {
            self.job_id = Some(self.agree_on_job()?);
        }
        if let Some(narrator) = &mut self.worker.narrator {
            narrator.workers.clone_from(&workers);
            narrator.pace_missed.clear();
        } else {
            let start = Start {
                iteration: self.arm.iteration,
                epoch: self.arm.cursor.epoch(),
                position: self.arm.cursor.position(),
                learning_rate: self.arm.optimizer.last_rate(),
                rate: Some(self.arm.planner.in_force().rate()),
                job_id: self.job_id.clone(),
            };
            self.worker.narrator = Some(narrate(&self.worker, &workers, &start, self.started, begun)?);
        }
        self.ask(members, begun)?;
        self.rendezvous.begin_training()
    }

    /// One job id for all who will ever be rank 0.
    fn agree_on_job(&self) -> Result<JobId> {
        let own = self.job_id.clone().map_or_else(default_job_id, Ok)?;
        let agreed = self.rendezvous.store().set_once("job", own.as_str().as_bytes())?;
        Ok(JobId::new(String::from_utf8(agreed).context("the job id in the store")?)?)
    }

    /// Opens the line to the predictor: at the begin of the run it may refuse the run, later it is told in the background
    /// who takes part now.
    fn ask(&mut self, members: &Members, begun: bool) -> Result<()> {
        let train = &self.worker.args.train;
        let Some(narrator) = self.worker.narrator.as_ref().filter(|_| self.arm.policy.asks()) else {
            return Ok(());
        };
        let asking = narrator.asking(self.arm.policy)?;
        let devices: Vec<String> = members.members.iter().map(|member| member.device.clone()).collect();
        let start = RunStart { iteration: self.arm.iteration, resumed: train.resume || begun };
        let registration = registration(&self.worker, asking, &narrator.workers, &devices, start)
            .with_former_workers(members.ever.clone());
        self.outdated = registration.superseded();
        let builder = connection(registration, asking, &narrator.output);
        let connection = if begun {
            builder.reopen()
        } else {
            match builder.open() {
                Ok(connection) => connection,
                Err(error) => {
                    let why = format!("predictor {}: {error}", train.server);
                    end(self.rendezvous.store(), &Ending::Failed(why.clone()))?;
                    bail!(why);
                }
            }
        };
        self.arm.planner.connect(connection);
        self.arm.planner.begin(self.arm.iteration + 1, self.arm.cursor.size(self.arm.global_batch, 1));
        Ok(())
    }

    /// Trains until the group is lost or left, or the run is done.
    fn train(&mut self, group: &Group, round: u64, members: &Members) -> Result<Next> {
        while !self.worker.is_done(&self.arm) {
            self.worker.called = self.rendezvous.is_called();
            let begun = self.arm.iteration;
            let wished = match self.worker.step(group, &mut self.arm) {
                Ok(wished) => wished,
                Err(error) if is_lost(&error) => return Ok(Next::Regroup),
                Err(error) => return Err(error),
            };
            if self.trained_with.as_ref() != Some(members) {
                self.tell_of_regrouping(round, begun, members)?;
                self.trained_with = Some(members.clone());
            }
            if let Some(narrator) = &mut self.worker.narrator {
                // Whoever is rank 0 next goes on with the record as it is.
                narrator.flush()?;
            }
            self.worker.checkpoint_since(begun, std::slice::from_ref(&self.arm))?;
            if wished.stop > 0 || wished.leave == group.world_size() {
                return Ok(Next::End { stopped: true });
            }
            if wished.leave > 0 || wished.regroup > 0 {
                return Ok(if self.worker.leaving { Next::Left } else { Next::Regroup });
            }
        }
        Ok(Next::End { stopped: false })
    }

    fn tell_of_regrouping(&mut self, round: u64, iteration: u64, members: &Members) -> Result<()> {
        let (Some(narrator), Some(before)) = (&mut self.worker.narrator, &self.trained_with) else {
            return Ok(());
        };
        let (gone, joined) = members.changes(before);
        let regroup_s = self.regrouping_since.elapsed().as_secs_f64();
        self.rendezvous.store().set(&took_key(round), regroup_s.to_string().as_bytes())?;
        let happened: Vec<String> = [(&gone, "gone"), (&joined, "here")]
            .into_iter()
            .filter(|(workers, _)| !workers.is_empty())
            .map(|(workers, what)| format!("{} {what}", names(workers)))
            .collect();
        narrator.output.say(&format!(
            "{} at iteration {iteration}; {} go on in round {round} after {regroup_s:.2} s{}",
            if happened.is_empty() { "nobody came or went".to_owned() } else { happened.join(", ") },
            members.members.len(),
            match self.worker.args.train.per_worker_batch {
                Some(_) => format!(", with a global batch of {}", self.arm.global_batch),
                None => String::new(),
            }
        ));
        let at_s = narrator.started.elapsed().as_secs_f64();
        let workers = members.workers();
        narrator.regrouped(
            self.arm.policy,
            RegroupLine { round, iteration, at_s, regroup_s, gone, joined, workers },
        )
    }

    /// The end of the run, as rank 0 declares it and the others wait for it; none where rank 0 died before it did.
    fn end(&mut self, round: u64, members: &Members, stopped: bool) -> Result<Option<Ending>> {
        if self.worker.narrator.is_none() {
            return self.rendezvous.await_end(&members.members[0].token);
        }
        let arms = std::slice::from_ref(&self.arm);
        if stopped {
            self.worker.checkpoint(arms)?;
        }
        self.tell_of_all_regroupings(round)?;
        self.worker.conclude(std::slice::from_ref(&self.arm), stopped)?;
        let ending = if stopped { Ending::Stopped } else { Ending::Finished };
        let ending = end(self.rendezvous.store(), &ending)?;
        self.arm.planner.close(self.arm.cursor.size(self.arm.global_batch, 0));
        Ok(Some(ending))
    }

    fn tell_of_all_regroupings(&self, round: u64) -> Result<()> {
        let Some(narrator) = &self.worker.narrator else { return Ok(()) };
        let store = self.rendezvous.store();
        let mut took_s = Vec::new();
        for round in 1..=round {
            if store.check(&took_key(round))? {
                let said = String::from_utf8(store.get(&took_key(round), READ_WITHIN)?)?;
                took_s.push(said.parse::<f64>().context("a duration in the store")?);
            }
        }
        if let (Some(median), Some(max)) = (quantile(&took_s, 0.5), quantile(&took_s, 1.0)) {
            narrator.output.say(&format!(
                "regrouped {} times; to the next finished iteration it took {median:.2} s (median), at most {max:.2} s",
                took_s.len()
            ));
        }
        Ok(())
    }

    fn position(&self, rank: usize) -> Position {
        let in_force = self.arm.planner.in_force();
        Position {
            iteration: self.arm.iteration,
            epoch: self.arm.cursor.epoch(),
            done: self.arm.cursor.position(),
            local_batch: in_force.expected_batches().get(rank).copied(),
            rate: Some(in_force.rate()),
            learning_rate: self.arm.optimizer.last_rate(),
            elapsed_s: self.started.elapsed().as_secs_f64(),
        }
    }

    fn over(&mut self, ending: &Ending) -> Result<()> {
        if let Some(narrator) = &mut self.worker.narrator {
            narrator.flush()?;
        }
        match ending {
            Ending::Finished | Ending::Stopped => Ok(()),
            Ending::Failed(why) => bail!("{why}"),
        }
    }

    fn left(&mut self) -> Result<()> {
        if let Some(narrator) = &mut self.worker.narrator {
            narrator.flush()?;
        }
        self.output.say("left as told; the others go on");
        Ok(())
    }
}

/// Whether something failed because some member of the group is gone, or has left it.
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
