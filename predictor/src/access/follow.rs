//! Keeps the known tokens and the store in step, and follows the file of limits.

use std::sync::Arc;
use std::time::Duration;

use evenstep_server::{HANGS_AFTER, read_files};
use evenstep_store::access::AccessChange;
use evenstep_store::{Change, Store};
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior};

use super::known::{Access, Auth};
use super::limits::Limits;

/// Interval at which tokens are read, and so the time after which a revoked token is rejected.
const READ_EVERY: Duration = Duration::from_secs(2);
/// Shortest time between two reads because of unknown tokens.
const PAUSE: Duration = Duration::from_millis(250);
/// Number of the intervals after which the times of the latest use are stored.
const STORE_EVERY: u32 = 30;

/// Reads tokens that are not known yet.
#[derive(Debug)]
pub struct Refresher {
    access: Arc<Access>,
    store: Store,
    /// Beginning of the latest read.
    latest: Mutex<Option<Instant>>,
}

impl Refresher {
    /// Reads tokens from this store.
    pub fn new(access: Arc<Access>, store: Store) -> Self {
        Self { access, store, latest: Mutex::default() }
    }

    /// Reads the tokens, unless this one is known. So a new token works at once. The store is read at most every
    /// 250 ms, and clients with unknown tokens wait for that.
    pub async fn know(&self, bearer: &str) {
        if self.access.auth() == Auth::None || self.access.knows(bearer) {
            return;
        }
        let arrived = Instant::now();
        let mut latest = self.latest.lock().await;
        if let Some(began) = *latest {
            if began >= arrived {
                return;
            }
            tokio::time::sleep_until(began + PAUSE).await;
        }
        *latest = Some(Instant::now());
        read(&self.access, &self.store).await;
    }
}

async fn read(access: &Access, store: &Store) {
    match store.tokens().await {
        Ok(tokens) => access.replace(tokens),
        // Those that are known stay valid: a store that does not respond must not stop training.
        Err(error) => tracing::warn!(%error, "cannot read the tokens; changes take effect later"),
    }
}

/// Reads the tokens at an interval, and stores the times of their latest use. Never completes.
pub async fn follow(access: Arc<Access>, store: Store) {
    if access.auth() == Auth::None {
        return std::future::pending().await;
    }
    let mut tick = tokio::time::interval(READ_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stored_unix_ms = 0;
    for round in 1_u32.. {
        tick.tick().await;
        read(&access, &store).await;
        if round.is_multiple_of(STORE_EVERY) {
            let now_unix_ms = access.now_unix_ms();
            if store_uses(&access, &store, stored_unix_ms).await {
                stored_unix_ms = now_unix_ms;
            }
        }
    }
}

/// Stores the times of the latest use since a time, in milliseconds since 1970. Returns whether they are stored.
pub async fn store_uses(access: &Access, store: &Store, since_unix_ms: i64) -> bool {
    let used = access.used_since(since_unix_ms);
    if used.is_empty() {
        return true;
    }
    let stored = store.write(vec![Change::Access(AccessChange::Used(used))], access.now_unix_ms()).await;
    stored.inspect_err(|error| tracing::warn!(%error, "cannot store when tokens were used")).is_ok()
}

/// Reads the file of limits at an interval, and counts the jobs and workers of each token. Never completes.
pub async fn follow_limits(limits: Arc<Limits>, access: Arc<Access>, store: Store) {
    if !limits.has_file() {
        return std::future::pending().await;
    }
    tokio::join!(reload(&limits), count(&limits, &access, &store));
}

async fn reload(limits: &Arc<Limits>) {
    let mut tick = tokio::time::interval(READ_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let read = limits.clone();
        if let Err(error) = read_files(move || read.reload(), HANGS_AFTER, || limits.hangs()).await {
            tracing::error!(%error, "reading the limits failed");
        }
    }
}

async fn count(limits: &Arc<Limits>, access: &Access, store: &Store) {
    let mut tick = tokio::time::interval(READ_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        limits.keep(|token_id| access.has(token_id));
        if !limits.count_jobs() {
            continue;
        }
        let counted = match store.live_workers().await {
            Ok(workers) => {
                let limits = limits.clone();
                tokio::task::spawn_blocking(move || limits.counted(&workers))
                    .await
                    .map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = counted {
            tracing::warn!(error, "cannot count jobs and workers; their metrics do not change");
        }
    }
}
