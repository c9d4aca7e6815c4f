//! Configuration of the service, from four sources. In order of precedence: flags, `EVENSTEP_*` variables, a
//! TOML file, defaults.

mod amount;
mod list;
mod tls;
pub(crate) mod toml;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::{fmt, fs};

use clap::Args;
use evenstep_observability::logs::Format as LogFormat;
use figment::providers::{Env, Format, Serialized, Toml};
use figment::value::Dict;
use figment::{Figment, Source};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::access::{Auth, HostName};
use crate::retention::Keep;
pub use amount::{Size, Span};

/// The effective configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address to listen on. Default 127.0.0.1:7117, which only this machine can reach.
    #[serde(deserialize_with = "address")]
    pub listen: SocketAddr,
    /// Address of the store. Default `sqlite://evenstep.db`, in the working directory.
    pub store: String,
    /// URL at which clients reach this predictor. Other predictors on the same PostgreSQL redirect clients to
    /// it. Default: the address it listens on.
    #[serde(deserialize_with = "web_address")]
    pub url: Option<String>,
    /// Lease of this predictor, in seconds, 1 to 300. After it expires, other predictors on the same
    /// PostgreSQL take over its jobs. Default 5.
    #[serde(deserialize_with = "lease")]
    pub lease_s: f64,
    /// Age after which samples, reports and allocations are rolled up into minutes, unless the job options
    /// set another. Default 7d.
    pub keep_raw: Span,
    /// Age after which minutes are rolled up into hours. Default 90d.
    pub keep_minutes: Span,
    /// Age after which hours are deleted. Default 2y.
    pub keep_hours: Span,
    /// Size of the store above which the oldest raw rows are rolled up early. Default: no limit.
    pub keep_bytes: Option<Size>,
    /// Memory for the states of jobs and their responses, above which the least recently used are removed. They
    /// remain in the store. Default 1GiB.
    pub memory_budget: Size,
    /// Seconds between two refits. Each refit fits networks to new observations and stores the models. At
    /// least 1. Default 30.
    #[serde(deserialize_with = "at_least_1")]
    pub refit_interval_s: u64,
    /// Number of threads for refits. At least 1. Default 1.
    #[serde(deserialize_with = "at_least_1")]
    pub refit_threads: usize,
    /// Folder of HTML reports (backtests, simulations) that the service's page lists. Default: none.
    pub reports: Option<PathBuf>,
    /// Log filter: a level, or a list of `target=level`. Default `info`.
    pub log: String,
    /// Log format. Default `text`.
    pub log_format: LogFormat,
    /// Allows clients of other machines without TLS and tokens. Default: false.
    pub insecure_listen: bool,
    /// Names at which clients without TLS and token may reach the predictor, in addition to `localhost`, the name of the
    /// machine and the host of `url`. If other machines can connect, names of the local network are accepted too.
    #[serde(deserialize_with = "list::list")]
    pub allow_hosts: Vec<HostName>,
    /// Whether clients need tokens. Default: `required` for clients of other machines, unless `insecure_listen` is set,
    /// else `none`.
    pub auth: Option<Auth>,
    /// A token with the scope `operator`, in addition to those in the store. Without it and with `auth = "none"`, every
    /// client may override workers and delete jobs.
    #[serde(deserialize_with = "token")]
    pub operator_token: Option<Secret>,
    /// File with the limits of tokens, see [`Limits`](crate::access::Limits). Default: none, so that tokens have no
    /// limits.
    pub limits: Option<PathBuf>,
    /// URL that gets an event when a worker becomes a straggler and when it is none any more. Default: none.
    #[serde(deserialize_with = "secret_web_address")]
    pub webhook: Option<Secret>,
    /// Certificate chain for TLS, in PEM format. Default: none, so that connections are not encrypted.
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM format.
    pub tls_key: Option<PathBuf>,
    /// CAs of client certificates, in PEM format. If set, every client needs one. Default: none.
    pub tls_client_ca: Option<PathBuf>,
    /// Folder of a predictor that runs for the processes of one user, see [`evenstep_server::local`]. With port 0, it
    /// listens on the port of its predecessor if that is free. Default: none.
    pub local: Option<PathBuf>,
    /// Seconds without users after which a local predictor ends. At least 1. Default 300.
    #[serde(deserialize_with = "at_least_1")]
    pub linger_s: u64,
}

/// Parses an address. The error names the value and the rule, which figment's own error does not.
fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let rule = || D::Error::custom(format!("{text:?} must be an address and a port, such as 127.0.0.1:7117"));
    text.parse().map_err(|_| rule())
}

fn web_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let url = Option::<String>::deserialize(deserializer)?;
    let host = |url: &String| {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        rest.is_some_and(|rest| {
            !rest.is_empty() && !rest.contains(|c: char| c.is_whitespace() || c.is_control())
        })
    };
    match url {
        Some(url) if !host(&url) => {
            Err(D::Error::custom(format!("{url:?} must be http:// or https:// and a host")))
        }
        url => Ok(url),
    }
}

/// Reads a [`web_address`] without the value in errors: a webhook's URL is often a secret.
fn secret_web_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    let rule = || D::Error::custom("must be http:// or https:// and a host");
    Ok(web_address(deserializer).map_err(|_| rule())?.map(Secret))
}

fn token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    // The errors do not repeat the value: it is a secret.
    let token = Option::<String>::deserialize(deserializer)
        .map_err(|_| D::Error::custom("must be text, in quotation marks"))?;
    let rule = "must be 8 to 256 printable ASCII characters without spaces";
    let is_one = |token: &String| {
        (8..=256).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match token {
        Some(token) if !is_one(&token) => Err(D::Error::custom(rule)),
        token => Ok(token.map(Secret)),
    }
}

fn lease<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    if (1.0..=300.0).contains(&seconds) {
        return Ok(seconds);
    }
    Err(D::Error::custom(format!("{seconds} s is out of range; must be 1 to 300 s")))
}

/// Rejects 0. The error names the rule.
fn at_least_1<'de, D: Deserializer<'de>, T: Deserialize<'de> + PartialEq + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = T::deserialize(deserializer)?;
    if value == T::default() { Err(D::Error::custom("must be at least 1, not 0")) } else { Ok(value) }
}

/// A secret that is never printed in a log or an error.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Returns the secret.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(secret: &str) -> Result<Self, Infallible> {
        Ok(Self(secret.to_owned()))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7117)),
            store: "sqlite://evenstep.db".into(),
            url: None,
            lease_s: 5.0,
            keep_raw: Span::days(7),
            keep_minutes: Span::days(90),
            keep_hours: Span::days(730),
            keep_bytes: None,
            memory_budget: Size::gib(1),
            refit_interval_s: 30,
            refit_threads: 1,
            reports: None,
            log: "info".into(),
            log_format: LogFormat::Text,
            insecure_listen: false,
            allow_hosts: Vec::new(),
            auth: None,
            operator_token: None,
            limits: None,
            webhook: None,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            local: None,
            linger_s: 300,
        }
    }
}

/// Flags of `serve`. A missing flag is read from the environment, then the file, then the defaults.
#[derive(Debug, Default, Args, Serialize)]
pub struct Flags {
    /// TOML configuration file; keys are the flags' names [env: EVENSTEP_CONFIG]
    #[arg(long, env = "EVENSTEP_CONFIG", hide_env = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Address to listen on; port 0 picks a free port and prints it [env: EVENSTEP_LISTEN] [default:
    /// 127.0.0.1:7117]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Store: sqlite://FILE or postgres://USER@HOST/DATABASE [env: EVENSTEP_STORE] [default:
    /// sqlite://evenstep.db]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// URL at which clients reach this predictor, if several share a PostgreSQL [env: EVENSTEP_URL] [default:
    /// the listen address]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Lease in seconds, 1 to 300; after it expires another predictor takes over the jobs [env:
    /// EVENSTEP_LEASE_S] [default: 5]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<f64>,
    /// Age at which samples, reports and allocations are rolled up into minutes, such as 12h or 7d [env:
    /// EVENSTEP_KEEP_RAW] [default: 7d]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_raw: Option<Span>,
    /// Age at which minutes are rolled up into hours [env: EVENSTEP_KEEP_MINUTES] [default: 90d]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_minutes: Option<Span>,
    /// Age at which hours are deleted [env: EVENSTEP_KEEP_HOURS] [default: 2y]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_hours: Option<Span>,
    /// Store size, such as 20GiB, above which the oldest raw rows are rolled up early [env:
    /// EVENSTEP_KEEP_BYTES] [default: no limit]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_bytes: Option<Size>,
    /// Memory for the states of jobs and their responses, such as 1GiB; above it the least recently used are
    /// removed and read from the store again when needed [env: EVENSTEP_MEMORY_BUDGET] [default: 1GiB]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_budget: Option<Size>,
    /// Seconds between two refits of the models [env: EVENSTEP_REFIT_INTERVAL_S] [default: 30]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refit_interval_s: Option<u64>,
    /// Number of threads for refits [env: EVENSTEP_REFIT_THREADS] [default: 1]
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refit_threads: Option<usize>,
    /// Folder of *.html reports of backtest and simulate, listed on the page at / [env: EVENSTEP_REPORTS]
    /// [default: none]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reports: Option<PathBuf>,
    /// Log filter: error, warn, info, debug, trace, or target=level,.. [env: EVENSTEP_LOG] [default: info]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Log format: text, json or logfmt [env: EVENSTEP_LOG_FORMAT] [default: text]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// Listen on an address that other machines can reach although clients need no TLS or no token [env:
    /// EVENSTEP_INSECURE_LISTEN] [default: false]
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_listen: bool,
    /// More host names of this predictor for clients without TLS and token, comma-separated [env:
    /// EVENSTEP_ALLOW_HOSTS] [default: localhost, the host of --url]
    #[arg(long = "allow-host", value_name = "NAME,..", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_hosts: Vec<HostName>,
    /// Whether clients need tokens (evenstep-predictor token): none, optional (a token that is sent must be
    /// valid) or required [env: EVENSTEP_AUTH] [default: required
    /// if other machines can reach it, unless --insecure-listen is given; else none]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// Token required to override workers and delete jobs; other users of the machine can see flags, so prefer
    /// the environment or the file [env: EVENSTEP_OPERATOR_TOKEN] [default: none]
    #[arg(long, value_name = "TOKEN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_token: Option<Secret>,
    /// Limits of tokens (TOML); read again when it changes [env: EVENSTEP_LIMITS] [default: none]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<PathBuf>,
    /// URL that gets a POST when a worker becomes a straggler, and when it is none any more. Other users of the
    /// machine can see flags, so prefer the environment or the file for URLs with a secret [env: EVENSTEP_WEBHOOK]
    /// [default: none]
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Secret>,
    /// Certificate chain (PEM) for TLS; read again when it changes [env: EVENSTEP_TLS_CERT] [default: no TLS]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM) of the certificate [env: EVENSTEP_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// CAs (PEM) of client certificates; if set, every client needs one [env: EVENSTEP_TLS_CLIENT_CA] [default:
    /// none]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_client_ca: Option<PathBuf>,
    /// Folder in which processes of one user find this predictor, by the file predictor.json. It ends when no
    /// process holds a lock on the file users any more [env: EVENSTEP_LOCAL] [default: none]
    #[arg(long, value_name = "FOLDER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<PathBuf>,
    /// With --local: seconds without users before it ends [env: EVENSTEP_LINGER_S] [default: 300]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linger_s: Option<u64>,
}

/// Environment variables of the predictor. Other programs of evenstep use other variables with the same
/// prefix.
const VARIABLES: [&str; 25] = [
    "listen",
    "store",
    "url",
    "lease_s",
    "keep_raw",
    "keep_minutes",
    "keep_hours",
    "keep_bytes",
    "memory_budget",
    "refit_interval_s",
    "refit_threads",
    "reports",
    "log",
    "log_format",
    "insecure_listen",
    "allow_hosts",
    "auth",
    "operator_token",
    "limits",
    "webhook",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "local",
    "linger_s",
];

impl Config {
    /// Reads the configuration from all sources.
    ///
    /// # Errors
    /// An error that names the source if a file cannot be read or a value breaks its rule.
    pub fn load(flags: &Flags) -> anyhow::Result<Self> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(file) = &flags.config {
            if !file.is_file() {
                anyhow::bail!("config {}: no such file; check --config or EVENSTEP_CONFIG", file.display());
            }
            if let Ok(text) = fs::read_to_string(file) {
                toml::parse::<Dict>(&text)
                    .map_err(|error| anyhow::anyhow!("configuration: {}: {error}", file.display()))?;
            }
            figment = figment.merge(Toml::file_exact(file));
        }
        figment =
            figment.merge(Env::prefixed("EVENSTEP_").only(&VARIABLES)).merge(Serialized::globals(flags));
        let config: Self =
            figment.extract().map_err(|error| anyhow::anyhow!("configuration: {}", in_words(error)))?;
        let [raw, minutes, hours] = [config.keep_raw, config.keep_minutes, config.keep_hours];
        if minutes < raw {
            anyhow::bail!("configuration: keep_minutes: {minutes} must be at least keep_raw ({raw})");
        }
        if hours < minutes {
            anyhow::bail!("configuration: keep_hours: {hours} must be at least keep_minutes ({minutes})");
        }
        if let Some(file) = config.limits.as_ref().filter(|_| config.auth() == Auth::None) {
            anyhow::bail!(
                "configuration: limits: {} has no effect, because clients send no tokens; set auth to required or optional",
                file.display()
            );
        }
        config.check_listen()?;
        Ok(config)
    }

    /// Whether clients need tokens.
    pub fn auth(&self) -> Auth {
        let is_open = self.listen.ip().is_loopback() || self.insecure_listen;
        self.auth.unwrap_or(if is_open { Auth::None } else { Auth::Required })
    }

    /// Rejects to serve clients of other machines without TLS or without tokens, unless the user insists.
    fn check_listen(&self) -> anyhow::Result<()> {
        let has_tls = self.tls_cert.is_some();
        if self.listen.ip().is_loopback()
            || self.insecure_listen
            || (has_tls && self.auth() == Auth::Required)
        {
            return Ok(());
        }
        anyhow::bail!(
            "configuration: listen: other machines can reach {}, so clients need TLS (tls_cert, tls_key) and tokens (auth = \"required\"); set them, or insecure_listen to allow everyone in the network to use this predictor",
            self.listen
        );
    }

    /// Retention periods.
    pub fn keep(&self) -> Keep {
        Keep {
            raw_s: self.keep_raw.seconds(),
            minutes_s: self.keep_minutes.seconds(),
            hours_s: self.keep_hours.seconds(),
            bytes: self.keep_bytes.map(Size::bytes),
        }
    }
}

/// Names the flag, the variable or the file of each wrong value, and the rule.
fn in_words(errors: figment::Error) -> String {
    let place = |error: &figment::Error| {
        let key = error.path.join(".");
        match error.metadata.as_ref().and_then(|source| Some((source.source.as_ref()?, &source.name))) {
            Some((Source::File(file), _)) => format!("{}: {key}", file.display()),
            Some((Source::Code(_), _)) => format!("--{}", key.replace('_', "-")),
            _ => format!("EVENSTEP_{}", key.to_uppercase()),
        }
    };
    let words = |error: figment::Error| {
        if error.path.is_empty() {
            return without_source(&error.to_string());
        }
        format!("{}: {}", place(&error), without_source(&error.kind.to_string()))
    };
    errors.into_iter().map(words).collect::<Vec<_>>().join("; ")
}

/// An error of the TOML parser without the quoted line, which may have a secret.
fn without_source(error: &str) -> String {
    let is_quoted = |line: &&str| {
        line.trim_start_matches([' ', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']).starts_with('|')
    };
    error.lines().filter(|line| !is_quoted(line)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod fuzz;
