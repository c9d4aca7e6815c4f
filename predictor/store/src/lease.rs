//! Ownership of jobs when several predictors share a database.
//!
//! Each predictor has a row in `predictor` and renews its lease there. Each job names the row of its owner.
//! Any predictor removes the rows of predictors whose leases have expired, which releases their jobs. Two
//! mechanisms prevent two owners from serving the same job:
//!
//! - **The fence.** Every commit first locks the row of the predictor that sends it. The removal of that row waits for
//!   such a commit; a later commit finds no row and fails. So a new owner reads everything that the former
//!   owner wrote.
//! - **The clock.** A lease starts before its renewal is requested, by the monotonic clock of the requesting
//!   predictor, which also counts the time in which the machine is suspended. So it expires here before it
//!   expires in the database, and state in memory is no longer served. The clock of a virtual machine stops
//!   while its hypervisor pauses it. Then only the fence holds: after a long pause, this predictor may repeat
//!   responses from memory for the rest of its lease, but cannot commit.
//!
//! A predictor whose row was removed registers again. Registrations are numbered, and state from an earlier
//! registration is read again. An SQLite store has only one predictor, which a lock file enforces.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use evenstep_protocol::JobId;
use sqlx::PgPool;
use uuid::Uuid;

use crate::clock::Clock;
use crate::error::StoreError;

/// Number of renewals per lease duration.
const RENEWALS: u32 = 4;
/// Maximum number of queries for a job whose owner keeps changing.
const CLAIM_ATTEMPTS_MAX: u32 = 8;

/// Owner of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// This predictor, under this registration number.
    Us(u64),
    /// Another predictor.
    Other {
        /// URL at which clients reach it.
        url: String,
    },
}

/// Settings for sharing a database with other predictors.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// URL at which clients reach this predictor.
    pub url: String,
    /// Duration of the lease: how long this predictor keeps its jobs when it is unreachable.
    pub lease: Duration,
    /// Clock by which the lease expires here.
    pub clock: Clock,
}

impl Sharing {
    /// Returns the end of a lease that starts now, in milliseconds of the steady clock.
    fn lease_end_ms(&self) -> i64 {
        let lease_ms = i64::try_from(self.lease.as_millis()).unwrap_or(i64::MAX);
        self.clock.steady_ms().saturating_add(lease_ms)
    }
}

/// The lease of this predictor.
#[derive(Debug)]
pub(crate) struct Lease {
    /// The settings, and a separate connection pool, so that renewals never wait for readers. `None` if the
    /// database cannot be shared.
    shared: Option<(Sharing, PgPool)>,
    held: RwLock<Held>,
    /// Set at shutdown; the lease is not renewed afterwards.
    resigned: AtomicBool,
}

/// A registration and the end of its lease.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub number: u64,
    pub instance: String,
    /// End of the lease, in milliseconds of the steady clock; `None` if the registration was lost.
    until_ms: Option<i64>,
}

impl Lease {
    pub fn new(shared: Option<(Sharing, PgPool)>) -> Self {
        Self {
            shared,
            resigned: AtomicBool::new(false),
            held: RwLock::new(Held { number: 0, instance: String::new(), until_ms: None }),
        }
    }

    /// Returns a value computed from the current registration, or [`StoreError::Fenced`] if its lease has
    /// expired.
    pub fn held<T>(&self, of: impl FnOnce(&Held) -> T) -> Result<T, StoreError> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let holds = self.shared.as_ref().is_none_or(|(sharing, _)| {
            held.until_ms.is_some_and(|until_ms| sharing.clock.steady_ms() < until_ms)
        });
        if holds { Ok(of(&held)) } else { Err(StoreError::Fenced) }
    }

    /// Marks a registration as lost. This predictor serves nothing until it has registered again.
    pub fn lost(&self, number: u64) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if held.number == number {
            held.until_ms = None;
            held.instance.clear();
        }
    }

    fn set(&self, renewed: Held) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if !self.resigned.load(Ordering::Relaxed) {
            *held = renewed;
        }
    }

    fn latest(&self) -> Held {
        self.held.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether other predictors may use the same database.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Claims a job that has no owner, and returns the job's owner; `None` if the job does not exist.
    /// Requires a shared database.
    ///
    /// # Errors
    /// If the database cannot be read, or this predictor's own lease has expired.
    pub async fn claim(&self, job_id: &JobId) -> Result<Option<Owner>, StoreError> {
        let held = self.held(Held::clone)?;
        let Some((_, pool)) = &self.shared else { return Ok(Some(Owner::Us(held.number))) };
        for _ in 0..CLAIM_ATTEMPTS_MAX {
            let found: Option<(Option<String>, Option<String>, bool)> = sqlx::query_as(
                "SELECT owner, url, coalesce(lease_until < clock_timestamp(), true)
                 FROM job LEFT JOIN predictor ON instance = owner WHERE job_id = $1",
            )
            .bind(job_id.as_str())
            .fetch_optional(pool)
            .await?;
            match found {
                None => return Ok(None),
                Some((Some(owner), _, _)) if owner == held.instance => {
                    return Ok(Some(Owner::Us(held.number)));
                }
                Some((Some(_), Some(url), false)) => return Ok(Some(Owner::Other { url })),
                Some((Some(_), ..)) => remove_expired(pool).await?,
                Some((None, ..)) => {
                    // The foreign key ensures that this predictor is still registered.
                    let taken = sqlx::query("UPDATE job SET owner = $2 WHERE job_id = $1 AND owner IS NULL");
                    taken.bind(job_id.as_str()).bind(&held.instance).execute(pool).await?;
                }
            }
            // The next query returns the owner, whichever predictor succeeded.
        }
        Err(StoreError::OwnerChanging)
    }

    /// Registers this predictor or renews its lease, and removes predictors whose leases have expired.
    ///
    /// # Errors
    /// If the database is unreachable; the lease then stays valid until it expires.
    pub async fn renew(&self) -> Result<(), StoreError> {
        let Some((sharing, pool)) = &self.shared else { return Ok(()) };
        if self.resigned.load(Ordering::Relaxed) {
            return Ok(());
        }
        let until_ms = Some(sharing.lease_end_ms());
        let held = self.latest();
        let renewed = sqlx::query(
            "UPDATE predictor SET lease_until = clock_timestamp() + make_interval(secs => $2) WHERE instance = $1",
        )
        .bind(&held.instance)
        .bind(sharing.lease.as_secs_f64())
        .execute(pool)
        .await?;
        if renewed.rows_affected() == 1 {
            self.set(Held { until_ms, ..held });
        } else {
            self.register(
                pool,
                sharing,
                Held { until_ms, number: held.number + 1, instance: Uuid::new_v4().to_string() },
            )
            .await?;
        }
        remove_expired(pool).await
    }

    /// Registers this predictor. An earlier process at the same address must be dead, since this one listens
    /// there, so its jobs are released at once.
    async fn register(&self, pool: &PgPool, sharing: &Sharing, held: Held) -> Result<(), StoreError> {
        if held.number > 1 {
            tracing::warn!(instance = %held.instance, "lease lost; registering again and reloading every job");
        }
        let mut transaction = pool.begin().await?;
        let before = sqlx::query("DELETE FROM predictor WHERE url = $1");
        before.bind(&sharing.url).execute(&mut *transaction).await?;
        sqlx::query(
            "INSERT INTO predictor VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3), $3)",
        )
        .bind(&held.instance)
        .bind(&sharing.url)
        .bind(sharing.lease.as_secs_f64())
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        self.set(held);
        Ok(())
    }

    /// Releases all jobs, so that other predictors can claim them at once. This predictor serves nothing
    /// afterwards.
    ///
    /// # Errors
    /// If the database is unreachable; the lease then expires.
    pub async fn resign(&self) -> Result<(), StoreError> {
        self.resigned.store(true, Ordering::Relaxed);
        let held = self.latest();
        self.lost(held.number);
        let Some((_, pool)) = &self.shared else { return Ok(()) };
        let row = sqlx::query("DELETE FROM predictor WHERE instance = $1");
        row.bind(&held.instance).execute(pool).await?;
        Ok(())
    }

    /// Renews the lease for as long as the future is polled.
    pub async fn keep(&self) {
        let Some((sharing, _)) = &self.shared else { return std::future::pending().await };
        let mut tick = tokio::time::interval(sharing.lease / RENEWALS);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            // A renewal that hangs must not prevent the next one.
            match tokio::time::timeout(sharing.lease / 2, self.renew()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "failed to renew the lease"),
                Err(_) => tracing::warn!("timed out while renewing the lease"),
            }
        }
    }
}

/// Removes predictors whose leases have expired, which releases their jobs. Skips a predictor whose commit is
/// in flight, and ends the commit if it is late.
async fn remove_expired(pool: &PgPool) -> Result<(), StoreError> {
    // A lease that ends later than a renewal can set it means that the database's clock was set back. Live
    // predictors renew such a lease. A dead one's ends one lease duration from now, which is not before it
    // ends by its owner's own clock.
    sqlx::query(
        "UPDATE predictor SET lease_until = clock_timestamp() + make_interval(secs => lease_s)
         WHERE lease_until > clock_timestamp() + make_interval(secs => lease_s)",
    )
    .execute(pool)
    .await?;
    let removed: Vec<String> = sqlx::query_scalar(
        "DELETE FROM predictor WHERE instance IN
             (SELECT instance FROM predictor WHERE lease_until < clock_timestamp() FOR UPDATE SKIP LOCKED)
         RETURNING url",
    )
    .fetch_all(pool)
    .await?;
    for url in removed {
        tracing::warn!(url, "predictor's lease expired; its jobs are released");
    }
    // A predictor that was stopped within a COPY keeps its row locked: PostgreSQL's limit for idle transactions does
    // not count the wait for the rest of the data. The last locker of a row is in xmax. The CTE comes first, so that
    // only these sessions are ended.
    let ended: Vec<String> = sqlx::query_scalar(
        "WITH late AS MATERIALIZED
             (SELECT pid, url FROM predictor JOIN pg_stat_activity ON backend_xid = predictor.xmax
              WHERE lease_until + interval '1 s' < clock_timestamp())
         SELECT url FROM late WHERE pg_terminate_backend(pid)",
    )
    .fetch_all(pool)
    .await?;
    for url in ended {
        tracing::warn!(url, "predictor's lease expired during a commit, which is ended");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

    use super::*;

    /// The pool is never used: the lease alone decides that it has expired.
    #[tokio::test]
    async fn a_lease_ends_by_the_injected_clock() {
        let (clock, now) = Clock::manual(0);
        let sharing = Sharing { url: "http://p".into(), lease: Duration::from_secs(5), clock };
        let pool = PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new_without_pgpass());
        let until_ms = Some(sharing.lease_end_ms());
        let lease = Lease::new(Some((sharing, pool)));
        lease.set(Held { number: 1, instance: "i".into(), until_ms });
        now.advance(4999);
        now.correct(86_400_000);
        assert!(lease.held(|_| ()).is_ok());
        now.advance(1);
        now.correct(-172_800_000);
        assert!(matches!(lease.held(|_| ()), Err(StoreError::Fenced)));
    }
}
