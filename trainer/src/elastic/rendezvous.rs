//! Rendezvous in the store: workers without a group, and new workers, meet in a numbered round and leave it
//! with the same list of members and a new group.
//!
//! All keys have one prefix in the store, which the launcher hosts:
//!
//! | key | |
//! |---|---|
//! | `round/N/arrivals/..` | arrivals in round N, in order |
//! | `round/N/members` | list of members, set once, by the first live worker that arrived |
//! | `round/N/ready` | number of members that have read the list |
//! | `group/N/..` | gloo's data for connecting the members |
//! | `gone/..` | lives that are over |
//! | `pulse/TOKEN` | heartbeat counter of a life |
//! | `begun` | set when training has begun: initial parameters are then obsolete |
//! | `ending` | how the run ended |
//!
//! All waits are bounded. If a member dies during the rendezvous, the others notice it by its missing
//! heartbeat, by the launcher's announcement or by a timeout, and continue with the next round.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenstep_c10d::{Group, Store};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::log::{self, Reader, arrivals_name};
use super::presence::{ENDED_LIVES, Heartbeats, Presence};
use super::round::{Arrival, Members, MembershipRules, Open, RoundDecision, Standing, Token};
use crate::progress::Output;
use crate::step::StopFlags;

/// Prefix of all keys.
pub const PREFIX: &str = "elastic";
/// Maximum number of rounds of a run.
const ROUNDS_MAX: u64 = 100_000;
/// Interval between reads of the store.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Interval between reads of the heartbeats.
const HEARTBEAT_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Base time limit for members to connect; each member adds [`CONNECT_WITHIN_EACH`].
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const CONNECT_WITHIN_EACH: Duration = Duration::from_millis(20);
/// Time that a worker with a stop signal waits for the others to regroup, so that it can stop after a step.
const STOP_WITHIN: Duration = Duration::from_secs(3);
/// Time limit for reading a key that is already set.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// How a run ended. The first announcement counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All iterations are done.
    Finished,
    /// A signal stopped it.
    Stopped,
    /// The run cannot continue.
    Failed(String),
}

/// Reads how the run ended, or `None` if it still runs.
///
/// # Errors
/// The store is unreachable.
pub fn ending(store: &Store) -> Result<Option<Ending>> {
    read(store, ENDING)
}

/// Announces how the run ended, unless an end was announced before. Returns the announcement that counts.
///
/// # Errors
/// The store is unreachable.
pub fn end(store: &Store, ending: &Ending) -> Result<Ending> {
    Ok(serde_json::from_slice(&store.set_once(ENDING, &serde_json::to_vec(ending)?)?)?)
}

/// Returns whether any round has begun to train.
///
/// # Errors
/// The store is unreachable.
pub fn has_begun(store: &Store) -> Result<bool> {
    Ok(store.check(BEGUN)?)
}

const ENDING: &str = "ending";
const BEGUN: &str = "begun";

/// Outcome of a rendezvous.
#[derive(Debug)]
pub enum RendezvousOutcome {
    /// A group was formed.
    Group(FormedGroup),
    /// The run is over.
    Over(Ending),
    /// A signal told this worker to leave.
    Left,
}

/// A group that was formed.
#[derive(Debug)]
pub struct FormedGroup {
    /// The round.
    pub round: u64,
    /// Its members.
    pub members: Members,
    /// The connected group.
    pub group: Group,
}

/// Function that connects the members.
pub type Connect<'a> = &'a dyn Fn(&Store, usize, usize, Duration) -> evenstep_c10d::Result<Group>;

/// This worker's rendezvous, round after round.
#[derive(Debug)]
pub struct Rendezvous {
    store: Store,
    presence: Presence,
    own: Arrival,
    membership_rules: MembershipRules,
    flags: StopFlags,
    wait_limits: Patience,
    next_round: u64,
    before: Option<Members>,
    gone: BTreeSet<Token>,
    ended_lives_reader: Reader,
    heartbeats: Heartbeats,
    output: Output,
}

/// Limits of the rendezvous waits.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Maximum wait for members that live but have not arrived.
    pub missing: Duration,
    /// Maximum wait for enough members.
    pub too_few: Duration,
}

impl Rendezvous {
    /// Joins the first open round. `connection` connects to the store; each user of the store needs a
    /// separate connection.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn begin(
        connection: impl Fn() -> evenstep_c10d::Result<Store>,
        own: Arrival,
        membership_rules: MembershipRules,
        wait_limits: Patience,
        flags: StopFlags,
        output: Output,
    ) -> Result<Self> {
        let store = connection()?.prefix(PREFIX)?;
        let presence = Presence::begin(connection()?.prefix(PREFIX)?, &own.token);
        Ok(Self {
            store,
            presence,
            own,
            membership_rules,
            flags,
            wait_limits,
            next_round: 0,
            before: None,
            gone: BTreeSet::new(),
            ended_lives_reader: Reader::new(ENDED_LIVES.to_owned()),
            heartbeats: Heartbeats::default(),
            output,
        })
    }

    /// Returns the store, under its prefix.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns whether a worker waits in the next round.
    pub fn is_worker_waiting(&self) -> bool {
        self.presence.is_worker_waiting()
    }

    /// Announces that training begins. From now on the parameters come from a worker that has trained.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn begin_training(&self) -> Result<()> {
        Ok(self.store.set(BEGUN, b"1")?)
    }

    /// Returns whether training has begun.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn has_begun(&self) -> Result<bool> {
        has_begun(&self.store)
    }

    /// Announces that this life is over.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn leave(&self) -> Result<()> {
        Ok(log::append(&self.store, ENDED_LIVES, self.own.token.as_bytes())?)
    }

    /// Waits for the end of the run, which `rank0` announces. Returns `None` if rank 0 died before, or if a
    /// worker waits in the next round.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn await_end(&mut self, rank0: &Token) -> Result<Option<Ending>> {
        let mut heartbeat_check_due = Instant::now();
        loop {
            if let Some(ending) = ending(&self.store)? {
                return Ok(Some(ending));
            }
            self.read_ended_lives()?;
            let now = Instant::now();
            let mut silent = false;
            if now >= heartbeat_check_due {
                heartbeat_check_due = now + HEARTBEAT_CHECK_INTERVAL;
                silent = self.heartbeats.has_timed_out(&self.store, rank0, now)?;
            }
            if silent || self.gone.contains(rank0) || self.is_worker_waiting() {
                return Ok(None);
            }
            pause();
        }
    }

    /// Runs rounds until a group is formed or the run is over.
    ///
    /// # Errors
    /// This worker is rejected, the store is unreachable, too few workers arrive, or no live worker has the
    /// parameters.
    pub fn meet(&mut self, standing: Standing, connect: Connect<'_>) -> Result<RendezvousOutcome> {
        self.own.standing = standing;
        let started = Instant::now();
        while self.next_round < ROUNDS_MAX {
            let round = self.next_round;
            let members = match self.close(round, started)? {
                Closing::Closed(members) => members,
                Closing::Over(ending) => return Ok(RendezvousOutcome::Over(ending)),
                Closing::Left => return Ok(RendezvousOutcome::Left),
            };
            self.next_round += 1;
            self.presence.watch(self.next_round);
            self.before = Some(members.clone());
            if let Some((_, why)) = members.refused.iter().find(|(token, _)| *token == self.own.token) {
                bail!("the other workers rejected this worker: {why}");
            }
            let Some(rank) = members.rank(&self.own.token) else { continue };
            if !self.all_ready(round, &members)? {
                continue;
            }
            let world_size = members.members.len();
            let within = CONNECT_WITHIN + CONNECT_WITHIN_EACH * u32::try_from(world_size).unwrap_or(u32::MAX);
            match connect(&self.store.prefix(&format!("group/{round}"))?, rank, world_size, within) {
                Ok(group) => return Ok(RendezvousOutcome::Group(FormedGroup { round, members, group })),
                Err(error) => {
                    self.output.say(&format!("round {round}: {error}; starting the next round"));
                }
            }
        }
        bail!("the run has regrouped {ROUNDS_MAX} times, the maximum; resume from a checkpoint")
    }

    /// Arrives in a round and waits until its list is closed. Closes the list if this worker is the closer.
    fn close(&mut self, round: u64, started: Instant) -> Result<Closing> {
        let mut waiting = Waiting::begin(round);
        loop {
            if let Some(ending) = ending(&self.store)? {
                return Ok(Closing::Over(ending));
            }
            if let Some(members) = read(&self.store, &members_key(round))? {
                return Ok(Closing::Closed(members));
            }
            if self.flags.leave() {
                self.leave()?;
                return Ok(Closing::Left);
            }
            if !std::mem::replace(&mut waiting.arrived, true) {
                log::append(&self.store, &arrivals_name(round), &serde_json::to_vec(&self.own)?)?;
            }
            for entry in waiting.reader.new_entries(&self.store)? {
                waiting.arrivals.push(serde_json::from_slice(&entry)?);
            }
            self.read_ended_lives()?;
            if let Some(closing) = self.decide(&mut waiting, started)? {
                return Ok(closing);
            }
            pause();
        }
    }

    /// Closes the list if it is complete and this worker is the closer. Gives up if the wait was too long.
    fn decide(&mut self, waiting: &mut Waiting, started: Instant) -> Result<Option<Closing>> {
        let gone: BTreeSet<Token> = self.gone.union(&waiting.silent).cloned().collect();
        let open = Open {
            arrivals: &waiting.arrivals,
            before: self.before.as_ref(),
            gone: &gone,
            begun: self.has_begun()?,
            overdue: waiting.opened.elapsed() >= self.wait_limits.missing,
        };
        let live = open.live().count();
        if open.closer() == Some(&self.own.token) {
            match open.verdict(self.membership_rules) {
                RoundDecision::Close(members) => {
                    let own = serde_json::to_vec(&members)?;
                    let held = self.store.set_once(&members_key(waiting.round), &own)?;
                    return Ok(Some(Closing::Closed(serde_json::from_slice(&held)?)));
                }
                RoundDecision::Lost => {
                    let why =
                        "no worker with the parameters is left: continue from a checkpoint with --resume";
                    return self.give_up(why.to_owned());
                }
                RoundDecision::Paused { live } if waiting.reported_pause != Some(live) => {
                    waiting.reported_pause = Some(live);
                    self.output.say(&format!(
                        "paused: live workers {live}, --min-workers {}; waiting up to {} s",
                        self.membership_rules.min_workers,
                        self.wait_limits.too_few.as_secs()
                    ));
                }
                RoundDecision::Paused { .. } | RoundDecision::Wait => {}
            }
        }
        if started.elapsed() >= self.wait_limits.too_few {
            return self.give_up(format!(
                "regrouping took longer than {} s (--pause-timeout-s): live workers {live}, --min-workers {}",
                self.wait_limits.too_few.as_secs(),
                self.membership_rules.min_workers
            ));
        }
        if self.flags.stop() && started.elapsed() >= STOP_WITHIN {
            return Ok(Some(Closing::Over(end(&self.store, &Ending::Stopped)?)));
        }
        let now = Instant::now();
        if now >= waiting.heartbeat_check_due {
            waiting.heartbeat_check_due = now + HEARTBEAT_CHECK_INTERVAL;
            let arrived = waiting.arrivals.iter().map(|arrival| &arrival.token);
            let watched: Vec<Token> = arrived.chain(open.missing()).cloned().collect();
            waiting.silent.clear();
            for token in watched.into_iter().filter(|token| *token != self.own.token) {
                if self.heartbeats.has_timed_out(&self.store, &token, now)? {
                    waiting.silent.insert(token);
                }
            }
        }
        Ok(None)
    }

    /// Waits until all members have read the list. Returns false if one of them died before.
    fn all_ready(&mut self, round: u64, members: &Members) -> Result<bool> {
        let key = format!("round/{round}/ready");
        let all = members.members.len() as i64;
        let mut ready = self.store.add(&key, 1)?;
        let (opened, mut heartbeat_check_due) = (Instant::now(), Instant::now() + HEARTBEAT_CHECK_INTERVAL);
        while ready < all {
            self.read_ended_lives()?;
            let now = Instant::now();
            let mut lost = members.members.iter().any(|member| self.gone.contains(&member.token));
            if now >= heartbeat_check_due {
                heartbeat_check_due = now + HEARTBEAT_CHECK_INTERVAL;
                for member in members.members.iter().filter(|member| member.token != self.own.token) {
                    lost |= self.heartbeats.has_timed_out(&self.store, &member.token, now)?;
                }
            }
            ready = self.store.add(&key, 0)?;
            if ready < all && (lost || opened.elapsed() >= self.wait_limits.missing) {
                return Ok(false);
            }
            pause();
        }
        Ok(true)
    }

    fn read_ended_lives(&mut self) -> Result<()> {
        for token in self.ended_lives_reader.new_entries(&self.store)? {
            self.gone.insert(String::from_utf8(token).context("reading a token from the store")?);
        }
        Ok(())
    }

    fn give_up(&self, why: String) -> Result<Option<Closing>> {
        Ok(Some(Closing::Over(end(&self.store, &Ending::Failed(why))?)))
    }
}

/// A round in which this worker waits.
#[derive(Debug)]
struct Waiting {
    round: u64,
    arrived: bool,
    arrivals: Vec<Arrival>,
    reader: Reader,
    /// Lives whose heartbeats were missing at the last read.
    silent: BTreeSet<Token>,
    heartbeat_check_due: Instant,
    opened: Instant,
    reported_pause: Option<usize>,
}

impl Waiting {
    fn begin(round: u64) -> Self {
        Self {
            round,
            arrived: false,
            arrivals: Vec::new(),
            reader: Reader::new(arrivals_name(round)),
            silent: BTreeSet::new(),
            heartbeat_check_due: Instant::now(),
            opened: Instant::now(),
            reported_pause: None,
        }
    }
}

/// Outcome of closing a round.
enum Closing {
    Closed(Members),
    Over(Ending),
    Left,
}
fn members_key(round: u64) -> String {
    format!("round/{round}/members")
}

fn read<T: DeserializeOwned>(store: &Store, key: &str) -> Result<Option<T>> {
    if !store.check(key)? {
        return Ok(None);
    }
    let value = store.get(key, READ_WITHIN)?;
    Ok(Some(serde_json::from_slice(&value).with_context(|| format!("reading the key {key} of the store"))?))
}

#[expect(clippy::disallowed_methods, reason = "yields the processor between two reads of the store")]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}
