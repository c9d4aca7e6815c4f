//! Who may answer for a job, where several predictors share a database.
//!
//! Each predictor has a row in `predictor` and renews its lease there; each job names the row of its owner. A predictor
//! whose lease ran out is removed by any other, which frees its jobs. Two things keep two owners from ever answering:
//!
//! - **The fence.** Every commit first locks the row of its own predictor. Removing that row waits for such a commit, and
//!   a commit that comes after finds no row and fails. So what a former owner wrote is complete when the next one reads.
//! - **The clock.** A lease counts from before its renewal was asked for, by the monotonic clock of whoever asked. By then
//!   it is over here before it is over in the database, and what is in memory is not answered any more.
//!
//! A predictor that was removed registers anew. Its registrations are numbered: what it knew under an earlier number is
//! read again. On SQLite there is one predictor, held to that by a lock on a file.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use evenstep_protocol::JobId;
use sqlx::PgPool;
use uuid::Uuid;

use crate::error::StoreError;

/// Renewals in the time of one lease.
const RENEWALS: u32 = 4;
/// Looks at a job whose owner changes under our eyes.
const LOOKS_MAX: u32 = 8;

/// Who answers for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// This predictor, in this registration.
    Us(u64),
    /// Another one.
    Other {
        /// Where it is reached.
        url: String,
    },
}

/// How a predictor shares a database with others.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// Where clients reach this predictor.
    pub url: String,
    /// How long its jobs stay its own when it falls silent.
    pub lease: Duration,
}

/// The lease of this predictor.
#[derive(Debug)]
pub(crate) struct Lease {
    /// How, and over which connections: renewals never wait for readers. `None` where no other predictor can be.
    shared: Option<(Sharing, PgPool)>,
    held: RwLock<Held>,
    /// Set at the end: it is not renewed any more.
    given_up: AtomicBool,
}

/// A registration, and until when it is good for answers.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub number: u64,
    pub instance: String,
    until: Option<Instant>,
}

impl Lease {
    pub fn new(shared: Option<(Sharing, PgPool)>) -> Self {
        Self {
            shared,
            given_up: AtomicBool::new(false),
            held: RwLock::new(Held { number: 0, instance: String::new(), until: None }),
        }
    }

    /// Something of the registration in force. Fails with [`StoreError::Fenced`] where its time is over.
    pub fn held<T>(&self, of: impl FnOnce(&Held) -> T) -> Result<T, StoreError> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let holds = self.shared.is_none() || held.until.is_some_and(|until| Instant::now() < until);
        if holds { Ok(of(&held)) } else { Err(StoreError::Fenced) }
    }

    /// The registration is gone: nothing is answered until there is another.
    pub fn lost(&self, number: u64) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if held.number == number {
            held.until = None;
            held.instance.clear();
        }
    }

    fn set(&self, renewed: Held) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if !self.given_up.load(Ordering::Relaxed) {
            *held = renewed;
        }
    }

    fn latest(&self) -> Held {
        self.held.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether other predictors may be on the same database.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Takes a job that has no owner, and returns its owner; `None` if there is no such job. Only for a shared database.
    ///
    /// # Errors
    /// If the database cannot be read, or this predictor's own lease is over.
    pub async fn claim(&self, job_id: &JobId) -> Result<Option<Owner>, StoreError> {
        let held = self.held(Held::clone)?;
        let Some((_, pool)) = &self.shared else { return Ok(Some(Owner::Us(held.number))) };
        for _ in 0..LOOKS_MAX {
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
                Some((Some(_), ..)) => remove_silent(pool).await?,
                Some((None, ..)) => {
                    // The foreign key sees to it that we are still registered.
                    let taken = sqlx::query("UPDATE job SET owner = $2 WHERE job_id = $1 AND owner IS NULL");
                    taken.bind(job_id.as_str()).bind(&held.instance).execute(pool).await?;
                }
            }
            // Whoever won, the next look says so.
        }
        Err(StoreError::Unsettled)
    }

    /// Registers this predictor, or renews its lease, and removes those whose leases ran out.
    ///
    /// # Errors
    /// Where the database cannot be reached; the lease goes on until it is over.
    pub async fn renew(&self) -> Result<(), StoreError> {
        let Some((sharing, pool)) = &self.shared else { return Ok(()) };
        if self.given_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        let asked = Instant::now();
        let until = Some(asked + sharing.lease);
        let held = self.latest();
        let renewed = sqlx::query(
            "UPDATE predictor SET lease_until = clock_timestamp() + make_interval(secs => $2) WHERE instance = $1",
        )
        .bind(&held.instance)
        .bind(sharing.lease.as_secs_f64())
        .execute(pool)
        .await?;
        if renewed.rows_affected() == 1 {
            self.set(Held { until, ..held });
        } else {
            self.register(
                pool,
                sharing,
                Held { until, number: held.number + 1, instance: Uuid::new_v4().to_string() },
            )
            .await?;
        }
        remove_silent(pool).await
    }

    /// A process before us at the same address is dead: we listen there. Its jobs need not wait for its lease to end.
    async fn register(&self, pool: &PgPool, sharing: &Sharing, held: Held) -> Result<(), StoreError> {
        if held.number > 1 {
            tracing::warn!(instance = %held.instance, "the lease was lost: registering anew, and reading every job again");
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

    /// Gives all jobs up: another predictor may take them at once. Nothing is answered any more.
    ///
    /// # Errors
    /// Where the database cannot be reached; the lease ends by itself then.
    pub async fn resign(&self) -> Result<(), StoreError> {
        self.given_up.store(true, Ordering::Relaxed);
        let held = self.latest();
        self.lost(held.number);
        let Some((_, pool)) = &self.shared else { return Ok(()) };
        let row = sqlx::query("DELETE FROM predictor WHERE instance = $1");
        row.bind(&held.instance).execute(pool).await?;
        Ok(())
    }

    /// Renews the lease for as long as it is polled.
    pub async fn keep(&self) {
        let Some((sharing, _)) = &self.shared else { return std::future::pending().await };
        let mut tick = tokio::time::interval(sharing.lease / RENEWALS);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            // One that hangs must not keep the next from its turn.
            match tokio::time::timeout(sharing.lease / 2, self.renew()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the lease was not renewed"),
                Err(_) => tracing::warn!("the lease was not renewed in time"),
            }
        }
    }
}

/// Removes predictors whose leases ran out; their jobs are free then. One whose commit is under way is left for the next time.
async fn remove_silent(pool: &PgPool) -> Result<(), StoreError> {
    // Further ahead than a renewal ever sets it: the database's clock was set back. Whoever lives renews it; it ends for the
    // dead one lease from now, which is not before its owner's own clock says so.
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
        tracing::warn!(url, "a predictor fell silent: its jobs are free");
    }
    Ok(())
}
