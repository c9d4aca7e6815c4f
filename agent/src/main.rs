//! The agent's command.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use evenstep_agent::config::{Config, Flags, state_directory};
use evenstep_agent::daemon;
use evenstep_agent::spool::Life;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let flags = Flags::parse();
    match start(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "evenstep-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(flags: &Flags) -> Result<(), Box<dyn std::error::Error>> {
    let filter = EnvFilter::try_new(&flags.log).map_err(|error| format!("--log {:?}: {error}", flags.log))?;
    let ansi = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(io::stderr).init();
    let config = Config::new(
        flags,
        sysinfo::System::host_name().ok(),
        state_directory(|name| std::env::var_os(name)),
    )?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("stopping: sending what is left");
        };
        Ok(daemon::run(config, uuid::Uuid::new_v4(), announce, shutdown).await?)
    })
}

/// One line of JSON for whoever started the agent: with port 0 only it says which one was taken.
fn announce(address: SocketAddr, life: &Life) {
    let line = serde_json::json!({ "listening": address, "node": life.node, "boot_id": life.boot_id });
    if let Err(error) = writeln!(io::stdout(), "{line}") {
        tracing::warn!(%error, "standard output is closed");
    }
}
