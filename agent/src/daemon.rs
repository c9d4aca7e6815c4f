//! The daemon: a sampling thread, a sending thread, and the local HTTP API.

use std::future::{self, Future};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenstep_client::{ClientTls, InvalidFile, TokenSource};
use evenstep_observability::Gather;
use evenstep_observability::serve::{self, Healthy};
use evenstep_sensors::host::Host;
use evenstep_server::local::{Local, LocalError};
use evenstep_server::{Limits, Listener, Options, Tls};

use crate::clock::unix_ms;
use crate::config::{Config, state_directory};
use crate::local::{self, SamplingState, Shared, lock};
use crate::metrics;
use crate::sampler::Sampler;
use crate::source::thread::SourceState;
use crate::sources::Sources;
use crate::spool::{SampleIdentity, Spool, SpoolError};
use crate::uplink::{Uplink, UplinkState};
use crate::watch::WatchList;

/// Maximum number of open connections to the local HTTP API.
const CONNECTIONS_MAX: usize = 256;
/// Maximum time that a shutdown waits for the sampler and the uplink.
pub const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// Maximum time between searches for GPUs.
const SEARCH_EVERY_MAX: Duration = Duration::from_secs(30);

/// An error that prevents the agent from starting, or ends it.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// An option breaks a rule.
    #[error("{0}")]
    Config(String),
    /// The spool cannot be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The agent cannot listen on an address.
    #[error("--{option} {address}: {source}")]
    Listen {
        /// The option that sets the address.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The Unix socket cannot be used.
    #[error("--socket {path}: {source}")]
    Socket {
        /// The file.
        path: PathBuf,
        /// Error of the operating system, or the rule.
        source: io::Error,
    },
    /// Another agent has its place in the folder, or the folder cannot be used.
    #[error("--local: {0}")]
    Local(#[from] LocalError),
    /// A file of TLS cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] InvalidFile),
    /// A part of the agent did not respond when it was stopped.
    #[error("stopped while a part of the agent hung: {0}; check the driver or the disk that it uses")]
    Hanging(String),
    /// A thread cannot be started, or the local HTTP API ended.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<String> for AgentError {
    fn from(rule: String) -> Self {
        Self::Config(rule)
    }
}

/// A thread of the agent that can be stopped.
struct StoppableThread {
    stop: Sender<()>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    thread: JoinHandle<()>,
}

impl StoppableThread {
    fn start(name: &str, run: impl FnOnce(&Receiver<()>) + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (running, ended) = mpsc::channel();
        let run = move || {
            let _running: Sender<()> = running;
            run(&stopped);
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop, ended, thread })
    }

    /// Signals the thread to stop, and returns whether it has ended before `due`.
    fn finish(self, due: Instant) -> bool {
        drop(self.stop);
        let wait = due.saturating_duration_since(Instant::now());
        if self.ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        if self.thread.join().is_err() {
            tracing::error!("an agent thread panicked");
        }
        true
    }
}

/// Addresses on which the agent listens.
#[derive(Debug, Clone, Copy)]
pub struct Listening {
    /// Local HTTP API.
    pub local: SocketAddr,
    /// Metrics for scrapers on other machines, if configured.
    pub metrics: Option<SocketAddr>,
}

/// Runs an agent until `shutdown` completes. Calls `on_ready` with the addresses on which it listens.
///
/// At shutdown the last samples are written to the spool, and the uplink makes a final attempt to send them.
/// This takes at most [`SHUTDOWN_MAX`]; a part that hangs is left behind.
///
/// # Errors
/// If the agent cannot start, if the local HTTP API ends, or if a part hangs at shutdown.
pub async fn run(
    config: Config,
    boot: uuid::Uuid,
    on_ready: impl FnOnce(Listening, &SampleIdentity),
    shutdown: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    let node = config.node(Host::name())?;
    let spool_dir = config.spool_dir(state_directory(|name| std::env::var_os(name)))?;
    let watch = WatchList::new(config.watched()?);
    let tls = config.tls()?.map(Tls::load).transpose()?;
    let token = TokenSource::of_environment(|name| std::env::var_os(name))?;
    let client_tls = ClientTls::load(config.client_tls(token))?;
    let linger = Duration::from_secs(config.linger_s);
    let enter = |folder: &PathBuf| Local::enter(folder, "agent", env!("CARGO_PKG_VERSION"));
    let mut local = config.local.as_ref().map(enter).transpose()?;
    let known = local.as_ref().filter(|_| config.listen.port() == 0).and_then(Local::previous);
    let listener = known.and_then(|address| TcpListener::bind(address).ok());
    let listener = listener.map_or_else(|| listen("listen", config.listen), Ok)?;
    let scraped = config.metrics_listen.map(|address| listen("metrics-listen", address)).transpose()?;
    let socket = |path: &PathBuf| {
        Listener::unix(path).map_err(|source| AgentError::Socket { path: path.clone(), source })
    };
    let socket = config.socket.as_ref().map(socket).transpose()?;
    let listening = Listening {
        local: listener.local_addr()?,
        metrics: scraped.as_ref().map(TcpListener::local_addr).transpose()?,
    };
    let identity = SampleIdentity { node, boot_id: boot.to_string() };
    // Without a predictor, samples are not kept.
    let open = |_| Spool::open(&spool_dir, config.spool_max_bytes, identity.clone());
    let spool = config.server.as_ref().map(open).transpose()?;
    let spool_state = spool.as_ref().map(Spool::published).unwrap_or_default();
    let spool = spool.map(|spool| Arc::new(Mutex::new(spool)));
    let sources = Arc::new(Sources::start(search_every(config.interval))?);
    let uplink_state = Arc::new(Mutex::new(UplinkState::default()));
    let shared = Arc::new(Shared {
        identity,
        cores: Host::cores(),
        synthetic: config.demo_seed.is_some(),
        interval: config.interval,
        any_user: config.any_user,
        started: Instant::now(),
        sources: sources.clone(),
        spool: spool_state,
        uplink: uplink_state.clone(),
        watch: Mutex::new(watch),
        sampling: Mutex::new(SamplingState::default()),
    });

    let seed = boot.as_u64_pair().0;
    let uplink = spool.clone().zip(config.server.as_ref()).map(|(spool, servers)| {
        let uplink = Uplink::new(spool, uplink_state, servers, client_tls, config.interval, seed);
        StoppableThread::start("uplink", move |stop| uplink.run(stop))
    });
    let uplink = uplink.transpose()?;
    let (sampled, written) = (shared.clone(), spool.clone());
    let sampler =
        StoppableThread::start("sampler", move |stop| sample(&config, &sampled, written.as_deref(), stop))?;

    let gather = metrics::gather(shared.clone(), tls.clone());
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    if let Some(local) = &mut local {
        local.announce(&format!("http://{}", listening.local))?;
    }
    on_ready(listening, &shared.identity);
    let healthy: Healthy = Arc::new({
        let shared = shared.clone();
        move || shared.healthy()
    });
    // Ends without waiting for open requests: responses take no longer than a reading, and a client that
    // keeps a connection open must not delay the shutdown.
    let router = local::router(shared, gather.clone());
    let limits = Limits { per_address: CONNECTIONS_MAX, ..Limits::new(CONNECTIONS_MAX) };
    let serve_socket = async {
        match socket {
            Some(socket) => {
                evenstep_server::serve(socket, router.clone(), Options::new(limits), future::pending()).await;
            }
            None => future::pending().await,
        }
    };
    let serve_local =
        evenstep_server::serve(listener, router.clone(), Options::new(limits), future::pending());
    let unused = async {
        match &local {
            Some(local) => local.unused(linger).await,
            None => future::pending().await,
        }
    };
    let mut last_user = None;
    let served = tokio::select! {
        () = serve_local => Ok(()),
        () = serve_socket => Ok(()),
        served = serve_metrics(scraped, gather, healthy, tls) => served,
        () = shutdown => Ok(()),
        held = unused => {
            last_user = held;
            Ok(())
        }
    };
    // In the order of the data flow: the uplink still tries to send the sampler's last samples.
    let due = Instant::now() + SHUTDOWN_MAX;
    let mut hanging = Vec::new();
    if !sampler.finish(due) {
        hanging.push("the sampler".to_owned());
    }
    if uplink.is_none_or(|uplink| uplink.finish(due)) && hanging.is_empty() {
        if let Some(spool) = spool
            && !sync(spool, due)?
        {
            hanging.push("the disk of the spool".to_owned());
        }
    } else {
        tracing::warn!("stopped without waiting for the uplink; unsent samples stay in the spool");
    }
    let hangs =
        |state: SourceState| Some(format!("the {} source for {:.0} s", state.name(), state.hangs_for_s?));
    hanging.extend(sources.states().into_iter().filter_map(hangs));
    // Only now may another process take this one's place.
    drop((local, last_user));
    served?;
    if hanging.is_empty() { Ok(()) } else { Err(AgentError::Hanging(hanging.join(", "))) }
}

/// Returns the time between searches for GPUs: ten samples, within limits.
fn search_every(interval: Duration) -> Duration {
    (interval * 10).min(SEARCH_EVERY_MAX)
}

/// Syncs the spool on a separate thread, and returns whether that has ended before `due`.
fn sync(spool: Arc<Mutex<Spool>>, due: Instant) -> Result<bool, AgentError> {
    let (ended, synced) = mpsc::channel();
    let run = move || drop(ended.send(lock(&spool).sync()));
    thread::Builder::new().name("sync".to_owned()).spawn(run)?;
    match synced.recv_timeout(due.saturating_duration_since(Instant::now())) {
        Ok(synced) => Ok(synced.map(|()| true)?),
        Err(_) => Ok(false),
    }
}

fn listen(option: &'static str, address: SocketAddr) -> Result<TcpListener, AgentError> {
    TcpListener::bind(address).map_err(|source| AgentError::Listen { option, address, source })
}

/// Serves scrapers if a metrics listener is configured.
async fn serve_metrics(
    listener: Option<TcpListener>,
    gather: Gather,
    healthy: Healthy,
    tls: Option<Tls>,
) -> io::Result<()> {
    match listener {
        Some(listener) => serve::serve(listener, gather, healthy, tls, std::future::pending()).await,
        None => std::future::pending().await,
    }
}

/// Samples at a fixed rate. If a sample takes longer than the interval, the samples due meanwhile are skipped
/// and counted.
fn sample(config: &Config, shared: &Shared, spool: Option<&Mutex<Spool>>, stop: &Receiver<()>) {
    let mut sampler = match config.demo_seed {
        Some(seed) => Sampler::for_synthetic(seed, Instant::now()),
        None => match Sampler::for_machine(shared.sources.clone()) {
            Ok(sampler) => sampler,
            Err(error) => return tracing::error!(%error, "cannot sample this machine"),
        },
    };
    let mut due = Instant::now();
    loop {
        let sample = {
            // Reading sources is slow, so the lock is released meanwhile.
            let mut watch = {
                let mut watch = lock(&shared.watch);
                watch.expire(Instant::now());
                watch.clone()
            };
            let before: Vec<u32> = watch.pids().collect();
            let sample = sampler.sample(Instant::now(), unix_ms(), &mut watch);
            let ended = before.into_iter().filter(|pid| !watch.contains(*pid));
            ended.for_each(|pid| lock(&shared.watch).remove(pid));
            sample
        };
        if let Some(spool) = spool
            && let Err(error) = lock(spool).append(&sample)
        {
            tracing::error!(%error, "failed to write a sample to the spool; it is lost");
        }
        due += config.interval;
        let late = Instant::now().saturating_duration_since(due);
        let skipped = skipped(late, config.interval);
        due += config.interval * skipped;
        {
            let mut sampling = lock(&shared.sampling);
            sampling.taken += 1;
            sampling.last = Some(Instant::now());
            sampling.skipped += u64::from(skipped);
            sampling.missing.clone_from(sampler.missing());
            sampling.latest = Some(Arc::new(sample));
        }
        let wait = due.saturating_duration_since(Instant::now());
        if stop.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Returns the number of samples that were due while a sample was late.
fn skipped(late: Duration, interval: Duration) -> u32 {
    u32::try_from(late.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_intervals_are_skipped() {
        let second = Duration::from_secs(1);
        assert_eq!(skipped(Duration::ZERO, second), 0);
        assert_eq!(skipped(Duration::from_millis(999), second), 0);
        assert_eq!(skipped(Duration::from_millis(2500), second), 2);
    }
}
