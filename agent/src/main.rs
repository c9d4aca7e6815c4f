//! Command-line program of the agent.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use evenstep_agent::config::Config;
use evenstep_agent::daemon::{self, Listening};
use evenstep_agent::spool::SampleIdentity;
use evenstep_observability::logs;
use evenstep_server::config;
use nix::sys::signal::{Signal, raise};
use tokio::signal::unix::{SignalKind, signal};

/// Time after which a shutdown that hangs ends with SIGKILL; longer than [`daemon::SHUTDOWN_MAX`].
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let config = config::parse(None, std::env::args_os()).unwrap_or_else(|wrong| wrong.exit());
    match start(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "evenstep-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    logs::start(&config.log, config.log_format)?;
    limit_shutdown()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("shutting down: sending the remaining samples");
        };
        let boot = uuid::Uuid::new_v4();
        Ok(daemon::run(config, boot, announce, shutdown).await?)
    })
}

/// Ends the process if the shutdown takes too long. A driver that hangs can also block the handlers that run at
/// the exit of a process, and a disk that hangs the last write. A driver's library that hangs while it is loaded blocks
/// threads that start, and first uses of thread-local values, so this thread starts first and has its own runtime.
fn limit_shutdown() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt) = {
        let _context = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let (ready, is_ready) = mpsc::channel();
    let end = move || {
        runtime.block_on(async {
            let _ = ready.send(());
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        thread::park_timeout(SHUTDOWN_LIMIT);
        // Without the log, whose first use on a thread waits for the loader.
        let _ = writeln!(io::stderr(), "evenstep-agent: the shutdown hangs; ending the process with SIGKILL");
        let _ = raise(Signal::SIGKILL);
    };
    thread::Builder::new().name("shutdown".to_owned()).spawn(end)?;
    is_ready.recv().map_err(io::Error::other)
}

/// Prints one line of JSON for the program that started the agent. With port 0 it is the only place that
/// names the port.
fn announce(listening: Listening, identity: &SampleIdentity) {
    let mut line = serde_json::json!({ "listening": listening.local, "node": identity.node, "boot_id": identity.boot_id });
    if let Some(address) = listening.metrics {
        line["metrics"] = serde_json::json!(address);
    }
    if let Err(error) = writeln!(io::stdout(), "{line}") {
        tracing::warn!(%error, "standard output is closed");
    }
}
