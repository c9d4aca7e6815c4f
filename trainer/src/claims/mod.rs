//! Claims: how a worker takes chunks of an iteration's tail, each exactly once over all workers.
//!
//! Each pool has a counter on the job's store, of one key for each round, policy and pool. It is never set back: what all
//! ranks added to it in an iteration they tell each other by the all-reduce, and from that everybody works out where it
//! stands when the next iteration begins.

mod connection;
mod mode;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenstep_c10d::Result;
use evenstep_core::hedge::{CLAIM, Counter, Judge, LEAVE};
use evenstep_protocol::TailReport;

use crate::collective::{Additions, HostPort, RankReport};
use crate::model::Computed;
use crate::plan::{Plan, Policy, Pool, Share};
use connection::Connection;
pub use mode::ClaimMode;

/// What the first claim is expected to take, in seconds.
const CLAIM_S: f64 = 5e-4;

/// Weight of the latest claim in what a claim is expected to take.
const LATEST: f64 = 0.2;

/// A claim is made ahead by so many times what it is expected to take. More would hide more of the late ones, and would have
/// a worker sit on a chunk that another one could have begun.
const AHEAD: f64 = 2.0;

/// The pools' counters, and this worker's connection to them.
#[derive(Debug)]
pub struct Claims {
    store: HostPort,
    mode: ClaimMode,
    timeout: Duration,
    /// Opened for the first tail.
    connection: Option<Connection>,
    round: u64,
    /// Where counters stand, by policy and pool; those that nobody added to yet stand at 0.
    stand: BTreeMap<(Policy, usize), i64>,
    /// What a claim takes, in seconds.
    claim_s: f64,
    /// This worker's time for a sample in the iteration before.
    pace_s: Option<f64>,
}

impl Claims {
    /// Of a worker that finds the store there, and gives up after `timeout`.
    pub fn new(store: HostPort, mode: ClaimMode, timeout: Duration) -> Self {
        Self {
            store,
            mode,
            timeout,
            connection: None,
            round: 0,
            stand: BTreeMap::new(),
            claim_s: CLAIM_S,
            pace_s: None,
        }
    }

    /// Begins a round with counters of its own: nobody knows what members that are gone added to those before.
    pub fn begin_round(&mut self, round: u64) {
        self.round = round;
        self.stand.clear();
        // An answer may still be on its way on the old connection.
        self.connection = None;
    }

    /// This worker's part in the tail of an iteration that began at `begun`; without a pool there is nothing to claim.
    ///
    /// # Errors
    /// The store is gone.
    pub fn turn<'a>(
        &'a mut self,
        policy: Policy,
        pool: Option<&'a Pool<'a>>,
        begun: Instant,
    ) -> Result<Turn<'a>> {
        let Some(pool) = pool else { return Ok(Turn { begun, at: None, base: None, did: Did::default() }) };
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::connect(&self.store, self.mode, self.timeout)?),
        };
        let began_at = self.stand.get(&(policy, pool.number)).copied().unwrap_or(0);
        let table = Table {
            key: format!("claims/{}/{policy}/{}", self.round, pool.number),
            counter: Counter::new(began_at, pool.chunks.len(), pool.members),
            judge: Judge::new(pool.chunks, &pool.peers),
            pool,
            connection,
            claim_s: &mut self.claim_s,
            last_pace_s: self.pace_s,
            on_its_way: None,
            bound: false,
        };
        Ok(Turn { begun, at: Some(table), base: None, did: Did::default() })
    }

    /// After an iteration's all-reduce: the counters stand where everybody's additions brought them. `computed` is what this
    /// worker computed.
    pub fn settle(&mut self, policy: Policy, plan: &Plan, reports: &[RankReport], computed: &Computed) {
        self.pace_s = computed.pace_s().or(self.pace_s);
        let Some(tail) = plan.tail() else { return };
        for pool in 0..tail.pools() {
            let stand = self.stand.entry((policy, pool)).or_insert(0);
            for (rank, _) in tail.members(pool) {
                let Additions { claims, leaves } = reports[rank].additions;
                *stand = Counter::settle(*stand, claims, leaves);
            }
        }
    }
}

/// A worker's part in one iteration's tail.
#[derive(Debug)]
pub struct Turn<'a> {
    begun: Instant,
    /// None once there is nothing more to claim.
    at: Option<Table<'a>>,
    /// What was computed before the first chunk.
    base: Option<Computed>,
    did: Did,
}

/// What a worker did at a tail.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Did {
    /// What it claimed and computed, and how long it waited for claims.
    pub tail: TailReport,
    /// What it added to its pool's counter.
    pub additions: Additions,
}

/// What it takes to claim.
#[derive(Debug)]
struct Table<'a> {
    pool: &'a Pool<'a>,
    key: String,
    counter: Counter,
    judge: Judge<'a>,
    connection: &'a mut Connection,
    claim_s: &'a mut f64,
    last_pace_s: Option<f64>,
    /// What was added and has not come to a total yet.
    on_its_way: Option<i64>,
    /// It wanted to leave and was the last: it claims until the chunks are used up.
    bound: bool,
}

impl Turn<'_> {
    /// Asks for the next chunk beside the computing of the last `samples` of what this worker has, so late that the answer
    /// comes when these are about done; `computed` is what it had computed before. Where claims are made at need this does
    /// nothing.
    ///
    /// # Errors
    /// The store is gone.
    pub fn ask_ahead(&mut self, computed: &Computed, samples: u64) -> Result<()> {
        let now_s = self.begun.elapsed().as_secs_f64();
        match &mut self.at {
            Some(table) if table.connection.is_ahead() => {
                let pace_s = table.pace_s(computed);
                let left_s = pace_s * samples as f64;
                let due = Duration::from_secs_f64((left_s - AHEAD * *table.claim_s).max(0.0));
                table.ask(now_s + left_s, pace_s, 0.0, Instant::now() + due)
            }
            _ => Ok(()),
        }
    }

    /// The next samples to compute; none where the chunks are used up or better left to the others. `computed` is what this
    /// worker has computed of the iteration.
    ///
    /// # Errors
    /// The store is gone.
    pub fn next(&mut self, computed: &Computed) -> Result<Option<Share>> {
        self.base.get_or_insert(*computed);
        if self.at.is_none() {
            return Ok(None);
        }
        let began = Instant::now();
        let mut claimed = None;
        while claimed.is_none()
            && let Some(table) = &mut self.at
        {
            let (now_s, claim_s) = (self.begun.elapsed().as_secs_f64(), *table.claim_s);
            table.ask(now_s, table.pace_s(computed), claim_s, Instant::now())?;
            let Some(answer) = table.answer(self.begun, &mut self.did.additions)? else {
                self.at = None;
                break;
            };
            claimed = answer;
        }
        if let Some(share) = claimed {
            self.did.tail.chunks += 1;
            self.did.tail.samples += share.local_batch;
        }
        self.did.tail.claim_time_s += began.elapsed().as_secs_f64();
        Ok(claimed)
    }

    /// What came of it; `computed` is all that this worker computed of the iteration.
    pub fn end(self, computed: &Computed) -> Did {
        let base_s = self.base.map_or(computed.compute_time_s, |base| base.compute_time_s);
        let tail = TailReport { compute_time_s: computed.compute_time_s - base_s, ..self.did.tail };
        Did { tail, ..self.did }
    }
}

impl Table<'_> {
    /// This worker's time for a sample in this iteration; before it computed any, by forecast or as in the one before. 0 where
    /// that is unknown: then it declines nothing.
    fn pace_s(&self, computed: &Computed) -> f64 {
        let expected = self.pool.speed.map(f64::recip).or(self.last_pace_s);
        computed.pace_s().or(expected).unwrap_or(0.0)
    }

    /// Claims, or says that it leaves, unless that is on its way or nothing is left.
    fn ask(&mut self, at_s: f64, pace_s: f64, claim_s: f64, due: Instant) -> Result<()> {
        if self.on_its_way.is_some() || self.judge.is_empty() {
            return Ok(());
        }
        let leaves = !self.bound && self.judge.declines(at_s, pace_s, claim_s);
        let amount = if leaves { LEAVE } else { CLAIM };
        self.connection.add(&self.key, amount, due)?;
        self.on_its_way = Some(amount);
        Ok(())
    }

    /// What came of asking: a chunk; nothing yet, as the last must stay; or none where this worker is done.
    fn answer(&mut self, begun: Instant, additions: &mut Additions) -> Result<Option<Option<Share>>> {
        let Some(amount) = self.on_its_way.take() else { return Ok(None) };
        let total = self.connection.total()?;
        *self.claim_s += LATEST * (total.took.as_secs_f64() - *self.claim_s);
        if amount == LEAVE {
            additions.leaves += 1;
            self.bound = true;
            return Ok((!self.counter.may_leave(total.total)).then_some(None));
        }
        additions.claims += 1;
        let Some(chunk) = self.counter.claimed(total.total) else { return Ok(None) };
        self.judge.saw(chunk, (total.at - begun).as_secs_f64());
        let offset = self.pool.offset + self.pool.chunks[..chunk].iter().sum::<u64>();
        Ok(Some(Some(Share { local_batch: self.pool.chunks[chunk], offset })))
    }
}
