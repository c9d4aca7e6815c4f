//! The service: opens the store and the job registry, serves, and goes down cleanly.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenstep_observability::otlp::Otlp;
use evenstep_store::{Address, Sharing, Store};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::config::Config;
use crate::http::{Api, Meter, Plans, Streams, Token, router};
use crate::jobs::{Jobs, Pool};
use crate::metrics;
use crate::retention::{self, Keep, Record};

/// How often leases are looked at, besides at every request.
const LEASE_TICK: Duration = Duration::from_secs(1);
/// What a stop waits for requests under way.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A service at work, see [`App::serve`].
pub type Serving = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// A service that listens.
///
/// Its entry points return boxed futures, so that the service is compiled once, in this crate: an `async fn` and all that
/// it awaits is compiled again in every program that awaits it.
#[derive(Debug)]
pub struct App {
    listener: TcpListener,
    address: SocketAddr,
    jobs: Arc<Jobs>,
    writer: JoinHandle<()>,
    refit_interval: Duration,
    refit_threads: usize,
    clock: Clock,
    keep: Keep,
    operator: Option<Token>,
    otlp: Option<Otlp>,
    reports: Option<Arc<Path>>,
}

impl App {
    /// Listens, and opens the store.
    ///
    /// # Errors
    /// Where the store or the address cannot be used; the error names it.
    pub fn open(config: &Config, clock: Clock) -> Pin<Box<dyn Future<Output = anyhow::Result<Self>> + '_>> {
        Box::pin(Self::open_store(config, clock))
    }

    async fn open_store(config: &Config, clock: Clock) -> anyhow::Result<Self> {
        let place: Address = config.store.parse()?;
        if let Some(folder) = config.reports.as_ref().filter(|folder| !folder.is_dir()) {
            anyhow::bail!("reports: {}: no such folder", folder.display());
        }
        // Bound first: that nobody else listens there is what lets us take over from a process before us.
        let listener = TcpListener::bind(config.listen).await;
        let listener = listener.with_context(|| format!("listening on {}", config.listen))?;
        let address = listener.local_addr()?;
        if config.url.is_none() && matches!(place, Address::Postgres(_)) && address.ip().is_unspecified() {
            anyhow::bail!(
                "url: must say where clients reach this predictor: it listens on {address}, and others on the same PostgreSQL send them here"
            );
        }
        let url = config.url.clone().unwrap_or_else(|| format!("http://{address}"));
        let sharing = Sharing { url, lease: Duration::from_secs_f64(config.lease_s) };
        let store = Store::open(&place, Some(sharing)).await;
        let (store, writer) = store.with_context(|| format!("store {place}"))?;
        tracing::info!(%address, store = %place, version = env!("CARGO_PKG_VERSION"), "listening");
        Ok(Self {
            listener,
            address,
            jobs: Arc::new(Jobs::new(store, clock.clone())),
            writer,
            refit_interval: Duration::from_secs(config.refit_interval_s),
            refit_threads: config.refit_threads,
            clock,
            keep: config.keep(),
            operator: config.operator_token.as_ref().map(|token| Token::new(token.reveal())),
            otlp: None,
            reports: config.reports.as_deref().map(Arc::from),
        })
    }

    /// Sends metrics to a collector too.
    pub fn with_otlp(self, otlp: Option<Otlp>) -> Self {
        Self { otlp, ..self }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is done; then finishes what was begun, and closes the store.
    ///
    /// # Errors
    /// Where the listener fails.
    pub fn serve(self, stop: impl Future<Output = ()> + Send + 'static) -> Serving {
        self.serve_until(Box::pin(stop))
    }

    fn serve_until(self, stop: Pin<Box<dyn Future<Output = ()> + Send>>) -> Serving {
        Box::pin(self.run(stop))
    }

    async fn run(self, stop: Pin<Box<dyn Future<Output = ()> + Send>>) -> anyhow::Result<()> {
        let (drain, draining) = watch::channel(false);
        let (drained, mut drain_begun) = watch::channel(false);
        let record = Record::new(&self.keep);
        let (pool, meter) = (Pool::new(self.refit_threads), Meter::default());
        let gather = metrics::gather(&self.jobs, &pool, &meter);
        let mut otlp = self.otlp;
        if let Some(otlp) = &mut otlp {
            let clock = self.clock.clone();
            otlp.export(gather.clone(), move || clock.now_unix_ms())?;
        }
        let api = Api {
            jobs: self.jobs.clone(),
            retention: record.clone(),
            streams: Streams::new(draining.clone()),
            draining,
            meter,
            gather,
            operator: self.operator,
            scraping: Arc::default(),
            plans: Plans::default(),
            reports: self.reports,
        };
        if let Err(error) = self.jobs.load_nodes().await {
            tracing::warn!(%error, "nodes that fell silent before now are not known");
        }
        let retention = tokio::spawn(retention::run(self.jobs.clone(), self.clock, self.keep, record));
        let leases = tokio::spawn(watch_leases(self.jobs.clone()));
        let lease = self.jobs.clone();
        let lease = tokio::spawn(async move { lease.keep_lease().await });
        let refits = tokio::spawn(refit(self.jobs.clone(), self.refit_interval, pool));
        let leaving = self.jobs.clone();
        let stopping = async move {
            stop.await;
            tracing::info!("stopping: finishing what was begun");
            drain.send_replace(true);
            // First of all: from here on other predictors answer for the jobs, while this one ends at its leisure.
            leaving.resign().await;
            drained.send_replace(true);
        };
        let serving = axum::serve(self.listener, router(api)).with_graceful_shutdown(stopping);
        let timed_out = async {
            // The sender lives in `stopping`: an error here means that serving has ended by itself.
            let _ = drain_begun.wait_for(|drained| *drained).await;
            tokio::time::sleep(DRAIN_TIMEOUT).await;
        };
        tokio::select! {
            served = serving => served?,
            () = timed_out => tracing::warn!(?DRAIN_TIMEOUT, "requests still under way were cut off"),
        }
        for task in [leases, refits, retention, lease] {
            task.abort();
            drop(task.await);
        }
        if let Some(otlp) = otlp {
            drop(tokio::task::spawn_blocking(|| otlp.end()).await);
        }
        // With the last registry the last sender of the writer's queue goes: it commits what waits and closes the file.
        drop(self.jobs);
        if tokio::time::timeout(DRAIN_TIMEOUT, self.writer).await.is_err() {
            tracing::warn!("the store did not close in time; what was answered is durable all the same");
        }
        Ok(())
    }
}

async fn refit(jobs: Arc<Jobs>, every: Duration, pool: Pool) {
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        jobs.refit(&pool).await;
    }
}

async fn watch_leases(jobs: Arc<Jobs>) {
    let mut tick = tokio::time::interval(LEASE_TICK);
    loop {
        tick.tick().await;
        jobs.expire_leases().await;
    }
}
