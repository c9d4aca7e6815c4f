//! Logs on standard error, filtered by level, in a human-readable or structured format.

use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
    /// One line of `key=value` pairs per event.
    Logfmt,
}

/// Names of the formats.
const NAMES: [(&str, Format); 3] =
    [("text", Format::Text), ("json", Format::Json), ("logfmt", Format::Logfmt)];

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format);
        known.ok_or_else(|| format!("{name:?} must be text, json or logfmt"))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, format)| format == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// The reason why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is invalid.
    #[error("log {filter:?}: {source}")]
    Filter {
        /// The given filter.
        filter: String,
        /// The parse error.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging was started before.
    #[error("logging: {0}")]
    Started(#[from] tracing_subscriber::util::TryInitError),
}

/// Starts logging. `filter` is a level or a list of `target=level`.
///
/// # Errors
/// [`LogError::Filter`] if the filter is invalid, [`LogError::Started`] if logging was started before.
pub fn start(filter: &str, format: Format) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|source| LogError::Filter { filter: filter.to_owned(), source })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
        Format::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        Format::Json => lines.json().boxed(),
        Format::Logfmt => lines
            .fmt_fields(tracing_logfmt::FieldsFormatter::default())
            .event_format(tracing_logfmt::EventsFormatter::default())
            .boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).try_init()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_named() {
        for (name, format) in NAMES {
            assert_eq!(name.parse(), Ok(format));
            assert_eq!(format.to_string(), name);
        }
        assert!("xml".parse::<Format>().is_err_and(|error| error.contains("\"xml\" must be text")));
    }

    #[test]
    fn a_wrong_filter_is_named() {
        let error = start("evenstep=loud", Format::Text).unwrap_err().to_string();
        assert!(error.contains("evenstep=loud"), "{error}");
    }
}
