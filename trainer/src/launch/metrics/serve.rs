//! Metrics of a run, served for Prometheus or sent over OTLP.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use evenstep_observability::logs;
use evenstep_observability::otlp::Otlp;
use evenstep_observability::serve::Server;

use super::RunMetrics;
use crate::progress::Output;
use crate::training::LaunchOptions;

/// Server or exporter of metrics, active until dropped.
#[derive(Debug)]
pub struct Exposition {
    /// The metrics.
    pub metrics: Arc<RunMetrics>,
    /// Socket for the metrics stream of the workers.
    writer: UnixStream,
    _server: Option<Server>,
    collector: Option<Otlp>,
}

impl Exposition {
    /// Serves or exports metrics, if the options require it.
    ///
    /// # Errors
    /// The address cannot be bound, or the collector's URL is invalid.
    pub fn start(args: &LaunchOptions, output: &Output) -> Result<Option<Self>> {
        if args.metrics_listen.is_none() && args.otlp.is_none() {
            return Ok(None);
        }
        logs::start("warn", logs::Format::Text, None)?;
        let metrics = Arc::new(RunMetrics::default());
        let (reader, writer) = UnixStream::pair().context("creating the metrics socket")?;
        let listening = metrics.clone();
        thread::Builder::new().name("metrics-stream".into()).spawn(move || listening.listen(reader))?;
        let gather = metrics.clone().gather();
        let serve = |address| {
            let server = Server::start(address, gather.clone(), Arc::new(|| Ok(())))
                .with_context(|| format!("--metrics-listen {address}"))?;
            output.say(&format!("metrics: http://{}/metrics", server.address()));
            anyhow::Ok(server)
        };
        let server = args.metrics_listen.map(serve).transpose()?;
        let instance = format!("launch-{}", std::process::id());
        let collect = |url: &String| {
            let mut collector = Otlp::new(url, "evenstep-trainer", env!("CARGO_PKG_VERSION"), &instance)?;
            collector.export(gather.clone(), unix_ms)?;
            anyhow::Ok(collector)
        };
        let collector = args.otlp.as_ref().map(collect).transpose()?;
        Ok(Some(Self { metrics, writer, _server: server, collector }))
    }

    /// Returns the standard input of a worker that writes the metrics stream.
    ///
    /// # Errors
    /// The socket cannot be duplicated.
    pub fn worker_input(&self) -> Result<Stdio> {
        Ok(Stdio::from(OwnedFd::from(self.writer.try_clone().context("duplicating the metrics socket")?)))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "exported metrics have wall-clock time; no decision depends on it"
)]
fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Drop for Exposition {
    fn drop(&mut self) {
        self.collector.take().into_iter().for_each(Otlp::end);
    }
}
