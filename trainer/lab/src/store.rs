//! Hosting the store for workers that join by hand.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use evenstep_c10d::Store;
use evenstep_trainer::collective::HostPort;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// `store`
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Where to listen: host:port; port 0 takes a free one, which is printed
    #[arg(long, default_value = "127.0.0.1:29500")]
    pub bind: HostPort,
}

/// Hosts the store until told to stop.
///
/// # Errors
/// The address cannot be bound.
pub fn run(args: &StoreArgs) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listening for signals")?;
    let store = Store::host(&args.bind.host, args.bind.port, Duration::from_secs(30))?;
    // The one line that a script may wait for and read.
    writeln!(io::stdout().lock(), "store {}:{}", args.bind.host, store.port())?;
    signals.forever().next();
    Ok(())
}
