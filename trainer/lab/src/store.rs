//! `store`: hosts the store for workers that are started manually.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use evenstep_c10d::Store;
use evenstep_trainer::collective::HostPort;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Arguments of `store`.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Address to listen on: host:port; port 0 picks a free port and prints it
    #[arg(long, default_value = "127.0.0.1:29500")]
    pub bind: HostPort,
}

/// Hosts the store until it receives SIGINT or SIGTERM.
///
/// # Errors
/// Fails if the address cannot be bound.
pub fn run(args: &StoreArgs) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listening for signals")?;
    let store = Store::host(&args.bind.host, args.bind.port, Duration::from_secs(30))?;
    // Scripts wait for this line and parse it.
    writeln!(io::stdout().lock(), "store {}:{}", args.bind.host, store.port())?;
    signals.forever().next();
    Ok(())
}
