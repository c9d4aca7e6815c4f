//! Logs of the service itself: to standard error, filtered by level, as text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging. `filter` is a level or a list of `target=level`.
///
/// # Errors
/// Where the filter cannot be understood, or logging was started before.
pub fn start(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).map_err(|error| anyhow::anyhow!("log {filter:?}: {error}"))?;
    let colours = std::io::stderr().is_terminal();
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    let started = match format {
        LogFormat::Text => subscriber.try_init(),
        LogFormat::Json => subscriber.json().try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("logging: {error}"))
}
