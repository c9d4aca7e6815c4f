//! Configuration of the service, see [`evenstep_server::config`] for its sources.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use evenstep_observability::logs::Format as LogFormat;
use evenstep_server::config::{Secret, at_least_1};
use evenstep_server::{Tls, TlsFiles};

use crate::access::{Auth, HostName};
use crate::amount::{keep_time, size};
use crate::retention::Keep;

/// Options of `serve`.
#[derive(Debug, Clone, PartialEq, Parser)]
pub struct Config {
    /// TOML configuration file; keys are the flags' names
    #[arg(long, env = "EVENSTEP_CONFIG")]
    pub config: Option<PathBuf>,
    /// Address to listen on; port 0 picks a free port and prints it
    #[arg(long, env = "EVENSTEP_LISTEN", default_value = "127.0.0.1:7117", value_parser = address)]
    pub listen: SocketAddr,
    /// Store: sqlite://FILE or postgres://USER@HOST/DATABASE
    #[arg(long, env = "EVENSTEP_STORE", default_value = "sqlite://evenstep.db")]
    pub store: String,
    /// URL at which clients reach this predictor, if several share a PostgreSQL [default: the listen address]
    #[arg(long, env = "EVENSTEP_URL", value_parser = web_address)]
    pub url: Option<String>,
    /// Lease in seconds, 1 to 300; after it expires another predictor takes over the jobs
    #[arg(long, env = "EVENSTEP_LEASE_S", default_value = "5", value_parser = lease)]
    pub lease_s: f64,
    /// Age at which samples, reports and allocations are rolled up into minutes, such as 12h or 7d
    #[arg(long, env = "EVENSTEP_KEEP_RAW", default_value = "7d", value_parser = keep_time)]
    pub keep_raw: Duration,
    /// Age at which minutes are rolled up into hours
    #[arg(long, env = "EVENSTEP_KEEP_MINUTES", default_value = "90d", value_parser = keep_time)]
    pub keep_minutes: Duration,
    /// Age at which hours are deleted
    #[arg(long, env = "EVENSTEP_KEEP_HOURS", default_value = "2y", value_parser = keep_time)]
    pub keep_hours: Duration,
    /// Store size, such as 20GiB, above which the oldest raw rows are rolled up early [default: no limit]
    #[arg(long, env = "EVENSTEP_KEEP_BYTES", value_parser = size)]
    pub keep_bytes: Option<u64>,
    /// Memory for the states of jobs and their responses, such as 1GiB; above it those of inactive jobs are
    /// removed and read from the store again when needed
    #[arg(long, env = "EVENSTEP_MEMORY_BUDGET", default_value = "1GiB", value_parser = size)]
    pub memory_budget: u64,
    /// Seconds between two refits of the models
    #[arg(long, env = "EVENSTEP_REFIT_INTERVAL_S", default_value = "30", value_parser = at_least_1::<u64>)]
    pub refit_interval_s: u64,
    /// Folder of *.html reports of backtest and simulate, listed on the page at / [default: none]
    #[arg(long, env = "EVENSTEP_REPORTS")]
    pub reports: Option<PathBuf>,
    /// Log filter: error, warn, info, debug, trace, or target=level,..
    #[arg(long, env = "EVENSTEP_LOG", default_value = "info")]
    pub log: String,
    /// Log format: text, json or logfmt
    #[arg(long, env = "EVENSTEP_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Listen on an address that other machines can reach although clients need no TLS or no token [default: false]
    #[arg(long, env = "EVENSTEP_INSECURE_LISTEN")]
    pub insecure_listen: bool,
    /// More host names of this predictor for clients without TLS and token, comma-separated [default: localhost,
    /// the host of --url]
    #[arg(long = "allow-host", env = "EVENSTEP_ALLOW_HOSTS", value_name = "NAME,..", value_delimiter = ',')]
    pub allow_hosts: Vec<HostName>,
    /// Whether clients need tokens (evenstep-predictor token): none, optional (a token that is sent must be
    /// valid) or required [default: required if other machines can reach it, unless --insecure-listen is given;
    /// else none]
    #[arg(long, env = "EVENSTEP_AUTH")]
    pub auth: Option<Auth>,
    /// Token required to override workers and delete jobs; other users of the machine can see flags, so prefer
    /// the environment or the file [default: none]
    #[arg(long, env = "EVENSTEP_OPERATOR_TOKEN", value_name = "TOKEN", value_parser = token)]
    pub operator_token: Option<Secret>,
    /// Limits of tokens (TOML); read again when it changes [default: none]
    #[arg(long, env = "EVENSTEP_LIMITS", value_name = "FILE")]
    pub limits: Option<PathBuf>,
    /// URL that gets a POST when a worker becomes a straggler, and when it is none any more. Other users of the
    /// machine can see flags, so prefer the environment or the file for URLs with a secret [default: none]
    #[arg(long, env = "EVENSTEP_WEBHOOK", value_name = "URL", value_parser = secret_web_address)]
    pub webhook: Option<Secret>,
    /// Certificate chain (PEM) for TLS; read again when it changes [default: no TLS]
    #[arg(long, env = "EVENSTEP_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM) of the certificate
    #[arg(long, env = "EVENSTEP_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// CAs (PEM) of client certificates; if set, every client needs one [default: none]
    #[arg(long, env = "EVENSTEP_TLS_CLIENT_CA", value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Folder in which processes of one user find this predictor, by the file predictor.json. It ends when no
    /// process holds a lock on the file users any more [default: none]
    #[arg(long, env = "EVENSTEP_LOCAL", value_name = "FOLDER")]
    pub local: Option<PathBuf>,
    /// With --local: seconds without users before it ends
    #[arg(long, env = "EVENSTEP_LINGER_S", default_value = "300", value_parser = at_least_1::<u64>)]
    pub linger_s: u64,
}

impl Config {
    /// Checks options that depend on each other.
    ///
    /// # Errors
    /// The option, its value and the rule.
    pub fn check(&self) -> Result<(), String> {
        let [raw, minutes, hours] = [self.keep_raw, self.keep_minutes, self.keep_hours];
        if minutes < raw {
            return Err(format!(
                "configuration: keep_minutes: {minutes:?} must be at least keep_raw ({raw:?})"
            ));
        }
        if hours < minutes {
            return Err(format!(
                "configuration: keep_hours: {hours:?} must be at least keep_minutes ({minutes:?})"
            ));
        }
        if let Some(file) = self.limits.as_ref().filter(|_| self.auth() == Auth::None) {
            return Err(format!(
                "configuration: limits: {} has no effect, because clients send no tokens; set auth to required or optional",
                file.display()
            ));
        }
        self.check_listen()
    }

    /// Whether clients need tokens.
    pub fn auth(&self) -> Auth {
        let is_open = self.listen.ip().is_loopback() || self.insecure_listen;
        self.auth.unwrap_or(if is_open { Auth::None } else { Auth::Required })
    }

    /// Rejects to serve clients of other machines without TLS or without tokens, unless the user insists.
    fn check_listen(&self) -> Result<(), String> {
        let is_safe = self.tls_cert.is_some() && self.auth() == Auth::Required;
        if self.listen.ip().is_loopback() || self.insecure_listen || is_safe {
            return Ok(());
        }
        Err(format!(
            "configuration: listen: other machines can reach {}, so clients need TLS (tls_cert, tls_key) and tokens (auth = \"required\"); set them, or insecure_listen to allow everyone in the network to use this predictor",
            self.listen
        ))
    }

    /// Retention periods.
    pub fn keep(&self) -> Keep {
        Keep {
            raw_s: self.keep_raw.as_secs(),
            minutes_s: self.keep_minutes.as_secs(),
            hours_s: self.keep_hours.as_secs(),
            bytes: self.keep_bytes,
        }
    }

    /// Reads the TLS files, if any are configured.
    ///
    /// # Errors
    /// An option that requires another one, or a file that cannot be used.
    pub fn load_tls(&self) -> anyhow::Result<Option<Tls>> {
        let Self { tls_cert, tls_key, tls_client_ca, .. } = self;
        let files = TlsFiles::of_options(tls_cert.clone(), tls_key.clone(), tls_client_ca.clone());
        Ok(files.map_err(anyhow::Error::msg)?.map(Tls::load).transpose()?)
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?} must be an address and a port, such as 127.0.0.1:7117"))
}

fn web_address(url: &str) -> Result<String, String> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or_default();
    if rest.is_empty() || rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("must be http:// or https:// and a host".to_owned());
    }
    Ok(url.to_owned())
}

/// A webhook's URL is often a secret.
fn secret_web_address(url: &str) -> Result<Secret, String> {
    web_address(url).map(Secret::new)
}

fn token(token: &str) -> Result<Secret, String> {
    if !(8..=256).contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("must be 8 to 256 printable ASCII characters without spaces".to_owned());
    }
    Ok(Secret::new(token))
}

fn lease(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1.0..=300.0).contains(seconds));
    seconds.ok_or_else(|| "must be 1 to 300 s".to_owned())
}

#[cfg(test)]
mod fuzz;
