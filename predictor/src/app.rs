//! The service: opens the store and the job registry, serves requests, and shuts down cleanly.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenstep_server::config::Secret;
use evenstep_server::local::Local;
use evenstep_server::{Connections, Limits, Options, Tls};
use evenstep_store::{Address, Sharing, Store};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::access::{self, Access, Auth, Hosts, Refresher};
use crate::clock::Clock;
use crate::config::Config;
use crate::http::{Api, Meter, Pools, Streams, router};
use crate::jobs::{Jobs, Pool};
use crate::metrics;
use crate::retention::{self, Keep, RetentionStats};
use crate::webhook::Webhook;

/// Interval at which leases are checked, in addition to the check in every request. A job whose state is not
/// checked for half a lease, at least 0.5 s, gives its workers new leases, so this must be shorter.
const LEASE_TICK: Duration = Duration::from_millis(200);
/// Interval at which the statistics of newly loaded or listed jobs are restored.
const RESTORE_TICK: Duration = Duration::from_millis(500);
/// Interval at which iterations are stored for charts. The fastest jobs complete fewer in it than are in memory.
const STEPS_TICK: Duration = Duration::from_millis(500);
/// Number of such intervals between two times at which the totals of jobs are stored. After a crash, the iterations of this
/// time are read again.
const TOTALS_TICKS: u32 = 20;
/// Time that a shutdown waits until totals are stored. Until it gives up its jobs, no other predictor serves them.
const TOTALS_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit for storing the models of all jobs at a shutdown.
const MODELS_TIMEOUT: Duration = Duration::from_secs(3);
/// Time that a shutdown waits for the store to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running service, see [`App::serve`].
pub type Serving = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// A service that is bound to its address.
///
/// Its entry points return boxed futures, so that the service is compiled once, in this crate. An `async fn`
/// and everything that it awaits would be compiled again in every program that awaits it.
#[derive(Debug)]
pub struct App {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Tls>,
    jobs: Arc<Jobs>,
    writer: JoinHandle<()>,
    refit_interval: Duration,
    clock: Clock,
    keep: Keep,
    access: Arc<Access>,
    limits: Arc<access::Limits>,
    hosts: Hosts,
    webhook: Option<Webhook>,
    reports: Option<Arc<Path>>,
    local: Option<(Local, Duration)>,
}

impl App {
    /// Binds the address and opens the store.
    ///
    /// # Errors
    /// An error that names the store or the address that cannot be used.
    pub fn open(config: &Config, clock: Clock) -> Pin<Box<dyn Future<Output = anyhow::Result<Self>> + '_>> {
        Box::pin(Self::open_store(config, clock))
    }

    async fn open_store(config: &Config, clock: Clock) -> anyhow::Result<Self> {
        let place: Address = config.store.parse()?;
        if let Some(folder) = config.reports.as_ref().filter(|folder| !folder.is_dir()) {
            anyhow::bail!("reports: {}: no such folder; create it or change --reports", folder.display());
        }
        let tls = config.load_tls().context("TLS")?;
        let limits = access::Limits::load(config.limits.as_deref());
        let limits = limits.map_err(anyhow::Error::msg).context("limits")?;
        let local =
            config.local.as_ref().map(|folder| Local::enter(folder, "predictor", env!("CARGO_PKG_VERSION")));
        let mut local = local.transpose().context("local")?;
        // Bound before the store is opened: a bound address proves that an earlier process no longer serves,
        // so this one can take over.
        let known = local.as_ref().filter(|_| config.listen.port() == 0).and_then(Local::previous);
        let listener = known.and_then(|address| evenstep_server::bind(address).ok());
        let listener = listener.map_or_else(|| evenstep_server::bind(config.listen), Ok);
        let listener = listener.with_context(|| format!("listening on {}", config.listen))?;
        let address = listener.local_addr()?;
        if config.url.is_none() && matches!(place, Address::Postgres(_)) && address.ip().is_unspecified() {
            anyhow::bail!(
                "url: must be set to the URL at which clients reach this predictor: it listens on {address}, and other predictors on the same PostgreSQL redirect clients to it"
            );
        }
        let webhook = config.webhook.as_ref().map(|url| Webhook::start(url.reveal().to_owned()));
        let webhook = webhook.transpose().context("webhook")?;
        let listening = url(address, tls.as_ref());
        let url = config.url.clone().unwrap_or_else(|| listening.clone());
        let lease = Duration::from_secs_f64(config.lease_s);
        let sharing = Sharing { url, lease, clock: clock.clone() };
        let store = Store::open(&place, Some(sharing)).await;
        let (store, writer) = store.with_context(|| format!("store {place}"))?;
        if let Some(local) = &mut local {
            local.announce(&listening).with_context(|| format!("local {:?}", config.local))?;
        }
        let operator = config.operator_token.as_ref().map(Secret::reveal);
        let access = Arc::new(Access::new(config.auth(), operator, clock.clone()));
        if access.auth() != Auth::None {
            let tokens = store.tokens().await.context("tokens of the store")?;
            if tokens.is_empty() && operator.is_none() {
                tracing::warn!(
                    "no client has access: there are no tokens; create one with evenstep-predictor token create"
                );
            }
            access.replace(tokens);
        }
        let hosts = if tls.is_some() || access.auth() == Auth::Required {
            Hosts::any()
        } else {
            Hosts::new(&config.allow_hosts, config.url.as_deref(), !address.ip().is_loopback())
        };
        tracing::info!(%address, store = %place, version = env!("CARGO_PKG_VERSION"), "listening");
        Ok(Self {
            listener,
            address,
            tls,
            jobs: Arc::new(Jobs::new(store, clock.clone(), config.memory_budget)),
            writer,
            refit_interval: Duration::from_secs(config.refit_interval_s),
            clock,
            keep: config.keep(),
            access,
            limits: Arc::new(limits),
            hosts,
            webhook,
            reports: config.reports.as_deref().map(Arc::from),
            local: local.map(|local| (local, Duration::from_secs(config.linger_s))),
        })
    }

    /// The address that the service listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of that address.
    pub fn url(&self) -> String {
        url(self.address, self.tls.as_ref())
    }

    /// Serves until `stop` completes, then finishes the requests in flight and closes the store.
    ///
    /// # Errors
    /// An error if the listener fails.
    pub fn serve(self, stop: impl Future<Output = ()> + Send + 'static) -> Serving {
        self.serve_until(Box::pin(stop))
    }

    fn serve_until(self, stop: Pin<Box<dyn Future<Output = ()> + Send>>) -> Serving {
        Box::pin(self.run(stop))
    }

    async fn run(self, stop: Pin<Box<dyn Future<Output = ()> + Send>>) -> anyhow::Result<()> {
        let (drain, draining) = watch::channel(false);
        let record = RetentionStats::new(&self.keep);
        let (pool, meter) = (Pool::default(), Meter::new(self.access.auth()));
        let connections = Connections::default();
        let tls = self.tls.as_ref();
        let gather =
            metrics::gather(&self.jobs, &pool, &meter, &connections, &self.access, &self.limits, tls);
        let api = Api {
            jobs: self.jobs.clone(),
            retention: record.clone(),
            streams: Streams::new(self.access.clone(), draining.clone()),
            draining,
            meter,
            gather,
            access: self.access.clone(),
            refresher: Arc::new(Refresher::new(self.access.clone(), self.jobs.store().clone())),
            limits: self.limits.clone(),
            hosts: Arc::new(self.hosts),
            is_secure: self.tls.is_some(),
            pools: Pools::new(self.access.auth()),
            reports: self.reports,
        };
        if let Err(error) = self.jobs.load_nodes().await {
            tracing::warn!(%error, "cannot read the newest samples of nodes from the store");
        }
        if let Err(error) = self.jobs.start_leases().await {
            tracing::warn!(%error, "cannot start the leases of workers; the leases of a job start with its first request");
        }
        let retention = tokio::spawn(retention::run(self.jobs.clone(), self.clock, self.keep, record));
        let leases = tokio::spawn(watch_leases(self.jobs.clone()));
        let lease = self.jobs.clone();
        let lease = tokio::spawn(async move { lease.keep_lease().await });
        let tokens = tokio::spawn(access::follow(self.access.clone(), self.jobs.store().clone()));
        let limits = access::follow_limits(self.limits, self.access.clone(), self.jobs.store().clone());
        let limits = tokio::spawn(limits);
        let restoring = tokio::spawn(restore(self.jobs.clone()));
        let statistics = tokio::spawn(store_statistics(self.jobs.clone()));
        let refits = tokio::spawn(refit(self.jobs.clone(), self.refit_interval, pool));
        let stragglers = tokio::spawn(self.jobs.clone().watch_stragglers(self.webhook));
        let leaving = self.jobs.clone();
        let local = self.local;
        let unused = async {
            match &local {
                Some((local, linger)) => local.unused(*linger).await,
                None => std::future::pending().await,
            }
        };
        let mut last_user = None;
        let stopping = async {
            tokio::select! {
                () = stop => {}
                held = unused => last_user = held,
            }
            tracing::info!("stopping: finishing requests in flight");
            drain.send_replace(true);
            // The lease is needed for this. What requests still report is read from the history.
            let stored = async { leaving.store_steps().await.and(leaving.store_totals().await) };
            match tokio::time::timeout(TOTALS_TIMEOUT, stored).await {
                Ok(Ok(())) => {}
                _ => tracing::warn!("cannot store the totals of jobs; they continue from the history"),
            }
            // Without them, the next owner learns again from a part of the history.
            if tokio::time::timeout(MODELS_TIMEOUT, leaving.store_models()).await.is_err() {
                tracing::warn!("cannot store all models in time; jobs learn again from their reports");
            }
            // Before anything else, so that other predictors serve the jobs while this one shuts down.
            leaving.resign().await;
            // The writer ends with the last registry.
            drop(leaving);
        };
        let options = Options { limits: Limits::of_process(), connections, tls: self.tls };
        evenstep_server::serve(self.listener, router(api), options, stopping).await;
        for task in [leases, refits, restoring, statistics, retention, lease, tokens, limits, stragglers] {
            task.abort();
            drop(task.await);
        }
        // No client waits for these loads any more. Changes that have begun end.
        self.jobs.stop_loads();
        access::store_uses(&self.access, self.jobs.store(), 0).await;
        // The last registry owns the last sender of the writer's queue. Dropping it makes the writer commit
        // its queue and close the file.
        drop(self.jobs);
        if tokio::time::timeout(CLOSE_TIMEOUT, self.writer).await.is_err() {
            tracing::warn!("the store did not close in time; all allocations that were returned are durable");
        }
        // Only now may another process take this one's place.
        drop((local, last_user));
        Ok(())
    }
}

fn url(address: SocketAddr, tls: Option<&Tls>) -> String {
    format!("{}://{address}", if tls.is_some() { "https" } else { "http" })
}

/// Frees memory, and restores the statistics of jobs that were loaded or listed since the last look.
async fn restore(jobs: Arc<Jobs>) {
    let mut tick = tokio::time::interval(RESTORE_TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        jobs.review_room().await;
        jobs.restore().await;
    }
}

/// Stores iterations for charts, and totals.
async fn store_statistics(jobs: Arc<Jobs>) {
    let mut tick = tokio::time::interval(STEPS_TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for count in (0..TOTALS_TICKS).cycle() {
        tick.tick().await;
        let mut stored = jobs.store_steps().await;
        if count == 0 {
            stored = stored.and(jobs.store_totals().await);
        }
        if let Err(error) = stored {
            tracing::debug!(%error, "cannot store the statistics of jobs; trying again");
        }
    }
}

/// Fits networks, and in parallel stores models, so that models never wait for the fits of all workers.
async fn refit(jobs: Arc<Jobs>, every: Duration, pool: Pool) {
    let tick = || {
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tick
    };
    let (mut fits, mut stores) = (tick(), tick());
    let fit = async {
        loop {
            fits.tick().await;
            jobs.fit_networks(&pool).await;
        }
    };
    let store = async {
        loop {
            stores.tick().await;
            jobs.store_models().await;
        }
    };
    tokio::join!(fit, store);
}

async fn watch_leases(jobs: Arc<Jobs>) {
    let mut tick = tokio::time::interval(LEASE_TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        jobs.expire_leases();
    }
}
