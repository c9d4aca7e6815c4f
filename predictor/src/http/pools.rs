//! The pools that tokens share, apart from the bytes of bodies. A full one is 429.

use std::time::Duration;

use axum::http::StatusCode;
use evenstep_store::VIEWERS;

use super::problem::ErrorResponse;
use crate::access::{Auth, Caller, Full, Share, Shares};

/// Limit of open streams.
const STREAMS_MAX: usize = 256;
/// Limit of plans in progress. A plan takes seconds of processor time at most, and `/allocate` needs processors too.
const PLANS_MAX: usize = 2;
/// Limit of deletions of jobs in progress.
const DELETIONS_MAX: usize = 16;
/// Limit of scrapes in progress. They run one after the other.
const SCRAPES_MAX: usize = 1;
/// Time that a request waits where waiting holds no memory. Clients time out later, so they receive the error.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pools.
#[derive(Debug, Clone)]
pub struct Pools {
    /// Open event streams.
    pub streams: Pool,
    /// Burst-parallel plans in progress. They do not wait: that would keep the body in memory.
    pub plans: Pool,
    /// Requests that read the past with a connection of the store for views.
    pub views: Pool,
    /// Deletions of jobs.
    pub deletions: Pool,
    /// Scrapes of the metrics.
    pub scrapes: Pool,
}

/// A pool whose requests take one part each.
#[derive(Debug, Clone)]
pub struct Pool {
    parts: Shares,
    patience: Duration,
}

impl Pools {
    /// Pools of which nothing is used yet.
    pub fn new(auth: Auth) -> Self {
        let pool = |capacity, what, patience| Pool { parts: Shares::new(auth, capacity, what), patience };
        Self {
            streams: pool(STREAMS_MAX, "streams", Duration::ZERO),
            plans: pool(PLANS_MAX, "planners", Duration::ZERO),
            views: pool(VIEWERS as usize, "connections for views", PATIENCE),
            deletions: pool(DELETIONS_MAX, "places for deletions", PATIENCE),
            scrapes: pool(SCRAPES_MAX, "places for scrapes", PATIENCE),
        }
    }
}

impl Pool {
    /// Takes a part for a client, until the result is dropped. Waits for as long as the pool allows.
    ///
    /// # Errors
    /// 429. It names the limit.
    pub async fn take(&self, caller: &Caller) -> Result<Share, ErrorResponse> {
        Ok(self.parts.take(caller, 1, self.patience).await?)
    }
}

impl From<Full> for ErrorResponse {
    fn from(full: Full) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", "Too many requests", full.to_string()).retry_after(1)
    }
}
