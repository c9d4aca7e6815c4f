//! Configuration of the service: flags over `EVENSTEP_*` over a TOML file over defaults.

mod amount;

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use evenstep_observability::logs::Format as LogFormat;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::retention::Keep;
pub use amount::{Size, Span};

/// The configuration in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address to listen on. Default 127.0.0.1:7117: this machine only.
    #[serde(deserialize_with = "address")]
    pub listen: SocketAddr,
    /// Where everything is kept. Default `sqlite://evenstep.db`, in the working folder.
    pub store: String,
    /// Where clients reach this predictor, for others on the same PostgreSQL to send them here. Default: where it listens.
    #[serde(deserialize_with = "web_address")]
    pub url: Option<String>,
    /// Seconds after which others on the same PostgreSQL take the jobs of a predictor that fell silent, 1 to 300. Default 5.
    #[serde(deserialize_with = "lease")]
    pub lease_s: f64,
    /// Samples, reports and answers older than this become minutes, unless a job says otherwise. Default 7d.
    pub keep_raw: Span,
    /// Minutes older than this become hours. Default 90d.
    pub keep_minutes: Span,
    /// Hours older than this go. Default 2y.
    pub keep_hours: Span,
    /// Where the store holds more, the oldest raw rows become minutes early. Default: no bound.
    pub keep_bytes: Option<Size>,
    /// Seconds between two looks at what models have learned: to fit networks and to store models. At least 1. Default 30.
    #[serde(deserialize_with = "at_least_1")]
    pub refit_interval_s: u64,
    /// Threads that fits may take. At least 1. Default 1.
    #[serde(deserialize_with = "at_least_1")]
    pub refit_threads: usize,
    /// Folder whose pages (backtests, simulations) can be opened from the service's own page. Default: none.
    pub reports: Option<PathBuf>,
    /// What is logged: a level, or a list of `target=level`. Default `info`.
    pub log: String,
    /// How it is logged. Default `text`.
    pub log_format: LogFormat,
    /// What operators must show to override what workers get. Default: everybody may.
    #[serde(deserialize_with = "token")]
    pub operator_token: Option<Secret>,
    /// A collector of OTLP (HTTP) that spans and metrics are sent to. Default: none.
    #[serde(deserialize_with = "web_address")]
    pub otlp: Option<String>,
}

/// Says the value and the rule, which figment's own error does not.
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

fn token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    let token = Option::<String>::deserialize(deserializer)?;
    // What is wrong with it is not repeated: it is a secret.
    let rule = "must be 8 to 256 letters, digits or signs, without spaces";
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
    Err(D::Error::custom(format!("{seconds} must be 1 to 300 seconds")))
}

/// Says the rule where a count is 0.
fn at_least_1<'de, D: Deserializer<'de>, T: Deserialize<'de> + PartialEq + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = T::deserialize(deserializer)?;
    if value == T::default() { Err(D::Error::custom("0 must be at least 1")) } else { Ok(value) }
}

/// Something that no log and no error shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// What it is.
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
            refit_interval_s: 30,
            refit_threads: 1,
            reports: None,
            log: "info".into(),
            log_format: LogFormat::Text,
            operator_token: None,
            otlp: None,
        }
    }
}

/// Flags of `serve`; what is not given comes from the environment, the file or the defaults.
#[derive(Debug, Default, Args, Serialize)]
pub struct Flags {
    /// TOML file with the same names as the flags [env: EVENSTEP_CONFIG]
    #[arg(long, env = "EVENSTEP_CONFIG", hide_env = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Address to listen on; port 0 lets the system choose [env: EVENSTEP_LISTEN] [default: 127.0.0.1:7117]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Where everything is kept: sqlite://FILE or postgres://USER@HOST/DATABASE [env: EVENSTEP_STORE] [default: sqlite://evenstep.db]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Where clients reach this predictor, where several share a PostgreSQL [env: EVENSTEP_URL] [default: where it listens]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Seconds after which another predictor takes the jobs of one that fell silent, 1 to 300 [env: EVENSTEP_LEASE_S] [default: 5]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<f64>,
    /// Samples, reports and answers older than this become minutes, such as 12h or 7d [env: EVENSTEP_KEEP_RAW] [default: 7d]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_raw: Option<Span>,
    /// Minutes older than this become hours [env: EVENSTEP_KEEP_MINUTES] [default: 90d]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_minutes: Option<Span>,
    /// Hours older than this go [env: EVENSTEP_KEEP_HOURS] [default: 2y]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_hours: Option<Span>,
    /// Where the store holds more, such as 20GiB, the oldest raw rows become minutes early [env: EVENSTEP_KEEP_BYTES]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_bytes: Option<Size>,
    /// Seconds between two looks at what models have learned [env: EVENSTEP_REFIT_INTERVAL_S] [default: 30]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refit_interval_s: Option<u64>,
    /// Threads that fits of models may take [env: EVENSTEP_REFIT_THREADS] [default: 1]
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refit_threads: Option<usize>,
    /// Folder whose *.html, as backtest and simulate write them, can be opened from the page at / [env: EVENSTEP_REPORTS]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reports: Option<PathBuf>,
    /// What is logged: error, warn, info, debug, trace, or target=level,.. [env: EVENSTEP_LOG] [default: info]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// How it is logged: text, json or logfmt [env: EVENSTEP_LOG_FORMAT] [default: text]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// What operators must show to override what workers get; better in the environment or the file than here, where others on
    /// the machine see it [env: EVENSTEP_OPERATOR_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_token: Option<Secret>,
    /// Collector that spans and metrics are sent to over OTLP (HTTP), such as http://127.0.0.1:4318 [env: EVENSTEP_OTLP]
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp: Option<String>,
}

/// Variables of the environment that are ours; others of the same prefix belong to other programs of evenstep.
const VARIABLES: [&str; 15] = [
    "listen",
    "store",
    "url",
    "lease_s",
    "keep_raw",
    "keep_minutes",
    "keep_hours",
    "keep_bytes",
    "refit_interval_s",
    "refit_threads",
    "reports",
    "log",
    "log_format",
    "operator_token",
    "otlp",
];

impl Config {
    /// Puts the configuration together.
    ///
    /// # Errors
    /// Where a file cannot be read or a value breaks its rule; the error names where it came from.
    pub fn load(flags: &Flags) -> anyhow::Result<Self> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(file) = &flags.config {
            if !file.is_file() {
                anyhow::bail!("config {}: no such file", file.display());
            }
            figment = figment.merge(Toml::file_exact(file));
        }
        figment =
            figment.merge(Env::prefixed("EVENSTEP_").only(&VARIABLES)).merge(Serialized::globals(flags));
        let config: Self = figment.extract().map_err(|error| anyhow::anyhow!("configuration: {error}"))?;
        let [raw, minutes, hours] = [config.keep_raw, config.keep_minutes, config.keep_hours];
        if minutes < raw {
            anyhow::bail!("configuration: keep_minutes: {minutes} must not be under keep_raw, {raw}");
        }
        if hours < minutes {
            anyhow::bail!("configuration: keep_hours: {hours} must not be under keep_minutes, {minutes}");
        }
        Ok(config)
    }

    /// How long things are kept.
    pub fn keep(&self) -> Keep {
        Keep {
            raw_s: self.keep_raw.seconds(),
            minutes_s: self.keep_minutes.seconds(),
            hours_s: self.keep_hours.seconds(),
            bytes: self.keep_bytes.map(Size::bytes),
        }
    }
}
