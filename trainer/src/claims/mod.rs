//! Claims: workers take chunks of an iteration's tail, each chunk exactly once.
//!
//! Each pool has a counter in the job's store, with one key per round, policy and pool. The counter is never
//! reset: that would need an order between two iterations, which the store does not provide. The all-reduce of
//! an iteration carries each rank's additions, from which every rank computes the counter at the start of the
//! next iteration.

mod connection;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenstep_c10d::Result;
use evenstep_protocol::TailReport;
use evenstep_rules::{CLAIM, ClaimPolicy, Counter, LEAVE};

use crate::collective::{Additions, HostPort, RankReport};
use crate::model::Computed;
use crate::plan::{Plan, Policy, Pool, Share};
use connection::Connection;

/// Expected duration of the first claim, in seconds.
const CLAIM_S: f64 = 5e-4;

/// Weight of the latest claim in the expected duration of a claim.
const LATEST_WEIGHT: f64 = 0.2;

/// A claim is made ahead of its need by this multiple of its expected duration. A larger multiple would hide
/// more late claims, but the worker would hold a chunk that another worker could already compute.
const AHEAD_FACTOR: f64 = 2.0;

/// The pools' counters, and this worker's connection to them.
#[derive(Debug)]
pub struct Claims {
    store: HostPort,
    timeout: Duration,
    /// Opened for the first tail.
    connection: Option<Connection>,
    round: u64,
    /// Counters by policy and pool; absent counters are 0.
    counters: BTreeMap<(Policy, usize), i64>,
    /// Expected duration of a claim, in seconds.
    claim_s: f64,
    /// This worker's time per sample in the previous iteration.
    pace_s: Option<f64>,
}

impl Claims {
    /// Creates the claims of a worker whose store is at `store`, with this timeout of its operations.
    pub fn new(store: HostPort, timeout: Duration) -> Self {
        Self {
            store,
            timeout,
            connection: None,
            round: 0,
            counters: BTreeMap::new(),
            claim_s: CLAIM_S,
            pace_s: None,
        }
    }

    /// Starts a round with new counters, because the additions of failed members to the old counters are
    /// unknown.
    pub fn begin_round(&mut self, round: u64) {
        self.round = round;
        self.counters.clear();
        // A response may still be in flight on the old connection.
        self.connection = None;
    }

    /// Returns this worker's part in the tail of an iteration that started at `begun`. Without a pool the
    /// worker claims nothing.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn turn<'a>(
        &'a mut self,
        policy: Policy,
        pool: Option<&'a Pool<'a>>,
        begun: Instant,
    ) -> Result<Turn<'a>> {
        let Some(pool) = pool else {
            return Ok(Turn { begun, at: None, base: None, summary: ClaimSummary::default() });
        };
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::connect(&self.store, self.timeout)?),
        };
        let began_at = self.counters.get(&(policy, pool.number)).copied().unwrap_or(0);
        let table = Table {
            key: format!("claims/{}/{policy}/{}", self.round, pool.number),
            counter: Counter::new(began_at, pool.chunks.len(), pool.members),
            policy: ClaimPolicy::new(pool.chunks, &pool.peers[..]),
            pool,
            connection,
            claim_s: &mut self.claim_s,
            last_pace_s: self.pace_s,
            in_flight: None,
            bound: false,
        };
        Ok(Turn { begun, at: Some(table), base: None, summary: ClaimSummary::default() })
    }

    /// After an iteration's all-reduce: advances the counters by the additions of all ranks. `computed` is
    /// this worker's result.
    pub fn settle(&mut self, policy: Policy, plan: &Plan, reports: &[RankReport], computed: &Computed) {
        self.pace_s = computed.pace_s().or(self.pace_s);
        let Some(tail) = plan.tail() else { return };
        for pool in 0..tail.pools() {
            let counters = self.counters.entry((policy, pool)).or_insert(0);
            for (rank, _) in tail.members(pool) {
                let Additions { claims, leaves } = reports[rank].additions;
                *counters = Counter::settle(*counters, claims, leaves);
            }
        }
    }
}

/// A worker's part in one iteration's tail.
#[derive(Debug)]
pub struct Turn<'a> {
    begun: Instant,
    /// `None` when no chunk is left to claim.
    at: Option<Table<'a>>,
    /// Result before the first chunk.
    base: Option<Computed>,
    summary: ClaimSummary,
}

/// A worker's claims in one iteration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClaimSummary {
    /// Claimed samples, and the wait for claims.
    pub tail: TailReport,
    /// Additions to the pool's counter.
    pub additions: Additions,
}

/// State of a worker's claims in one iteration.
#[derive(Debug)]
struct Table<'a> {
    pool: &'a Pool<'a>,
    key: String,
    counter: Counter,
    policy: ClaimPolicy<'a>,
    connection: &'a mut Connection,
    claim_s: &'a mut f64,
    last_pace_s: Option<f64>,
    /// An addition whose result has not arrived yet.
    in_flight: Option<i64>,
    /// Whether the worker wanted to leave as the last member of its pool: it claims until no chunk is left.
    bound: bool,
}

impl Turn<'_> {
    /// Requests the next chunk while the worker computes its last `samples` samples, so that the response
    /// arrives when they are about done. `computed` is the result before these samples.
    ///
    /// # Errors
    /// The store is unreachable.
    pub fn request_ahead(&mut self, computed: &Computed, samples: u64) -> Result<()> {
        let now_s = self.begun.elapsed().as_secs_f64();
        match &mut self.at {
            Some(table) => {
                let pace_s = table.pace_s(computed);
                let left_s = pace_s * samples as f64;
                let due = Duration::from_secs_f64((left_s - AHEAD_FACTOR * *table.claim_s).max(0.0));
                table.request(now_s + left_s, pace_s, 0.0, Instant::now() + due)
            }
            None => Ok(()),
        }
    }

    /// Returns the next samples to compute, or `None` if no chunk is left or the other workers should compute
    /// the rest. `computed` is this worker's result in the iteration.
    ///
    /// # Errors
    /// The store is unreachable.
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
            table.request(now_s, table.pace_s(computed), claim_s, Instant::now())?;
            let Some(answer) = table.answer(self.begun, &mut self.summary.additions)? else {
                self.at = None;
                break;
            };
            claimed = answer;
        }
        if let Some(share) = claimed {
            self.summary.tail.chunks += 1;
            self.summary.tail.samples += share.local_batch;
        }
        self.summary.tail.claim_time_s += began.elapsed().as_secs_f64();
        Ok(claimed)
    }

    /// Returns the claims of the iteration; `computed` is this worker's result in it.
    pub fn end(self, computed: &Computed) -> ClaimSummary {
        let base_s = self.base.map_or(computed.compute_time_s, |base| base.compute_time_s);
        let tail = TailReport { compute_time_s: computed.compute_time_s - base_s, ..self.summary.tail };
        ClaimSummary { tail, ..self.summary }
    }
}

impl Table<'_> {
    /// Returns this worker's time per sample in this iteration. Before its first sample, this is the forecast
    /// or the time in the previous iteration. If it is unknown, returns 0, so that the worker declines
    /// nothing.
    fn pace_s(&self, computed: &Computed) -> f64 {
        let expected = self.pool.speed.map(f64::recip).or(self.last_pace_s);
        computed.pace_s().or(expected).unwrap_or(0.0)
    }

    /// Claims a chunk, or announces that the worker leaves, unless an addition is in flight or no chunk is
    /// left.
    fn request(&mut self, at_s: f64, pace_s: f64, claim_s: f64, due: Instant) -> Result<()> {
        if self.in_flight.is_some() || self.policy.is_empty() {
            return Ok(());
        }
        let leaves = !self.bound && self.policy.should_leave(at_s, pace_s, claim_s);
        let amount = if leaves { LEAVE } else { CLAIM };
        self.connection.add(&self.key, amount, due)?;
        self.in_flight = Some(amount);
        Ok(())
    }

    /// Returns the result of a claim: a chunk; nothing yet, because the last member must stay; or `None` if
    /// this worker is done.
    fn answer(&mut self, begun: Instant, additions: &mut Additions) -> Result<Option<Option<Share>>> {
        let Some(amount) = self.in_flight.take() else { return Ok(None) };
        let total = self.connection.total()?;
        *self.claim_s += LATEST_WEIGHT * (total.took.as_secs_f64() - *self.claim_s);
        if amount == LEAVE {
            additions.leaves += 1;
            self.bound = true;
            return Ok((!self.counter.may_leave(total.total)).then_some(None));
        }
        additions.claims += 1;
        let Some(chunk) = self.counter.claimed(total.total) else { return Ok(None) };
        self.policy.record_claim(chunk, (total.at - begun).as_secs_f64());
        let offset = self.pool.offset + self.pool.chunks[..chunk].iter().sum::<u64>();
        Ok(Some(Some(Share { local_batch: self.pool.chunks[chunk], offset })))
    }
}
