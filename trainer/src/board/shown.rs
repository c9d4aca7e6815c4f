//! The board where others see it.

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

use super::Board;
use crate::cli::LaunchArgs;
use crate::output::Output;

/// A board that is served or exported, as long as this lives.
#[derive(Debug)]
pub struct Shown {
    /// It.
    pub board: Arc<Board>,
    /// What workers speak into.
    mouth: UnixStream,
    _server: Option<Server>,
    collector: Option<Otlp>,
}

impl Shown {
    /// Shows a board, where that was asked for.
    ///
    /// # Errors
    /// The address cannot be listened on, or the collector's is none.
    pub fn start(args: &LaunchArgs, output: &Output) -> Result<Option<Self>> {
        if args.metrics_listen.is_none() && args.otlp.is_none() {
            return Ok(None);
        }
        logs::start("warn", logs::Format::Text, None)?;
        let board = Arc::new(Board::default());
        let (ear, mouth) = UnixStream::pair().context("a socket for the workers")?;
        let listening = board.clone();
        thread::Builder::new().name("news".into()).spawn(move || listening.listen(ear))?;
        let gather = board.clone().gather();
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
        Ok(Some(Self { board, mouth, _server: server, collector }))
    }

    /// The standard input of a worker that speaks to the board.
    ///
    /// # Errors
    /// The system gives no handle.
    pub fn voice(&self) -> Result<Stdio> {
        Ok(Stdio::from(OwnedFd::from(self.mouth.try_clone().context("a socket for a worker")?)))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "what is exported carries the wall clock's time; nothing is decided by it"
)]
fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.collector.take().into_iter().for_each(Otlp::end);
    }
}
