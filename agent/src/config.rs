//! Configuration of the agent, validated once into a [`Config`]. In order of precedence: flags, `EVENSTEP_*`
//! environment variables, a TOML file, defaults.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use evenstep_client::servers::InvalidServers;
use evenstep_client::{ClientTlsFiles, Servers};
use evenstep_observability::logs::Format as LogFormat;
use evenstep_protocol::{DEFAULT_SERVER, InvalidId, NodeId};
use evenstep_server::TlsFiles;
use figment::Figment;
use figment::providers::{Format, Serialized, Toml};
use serde::{Deserialize, Serialize};

use crate::spool::SPOOL_BYTES_MIN;
use crate::watch::WATCHED_MAX;

const INTERVAL_MIN: Duration = Duration::from_millis(20);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
const SEND_EVERY_MIN: Duration = Duration::from_millis(20);

/// Samples CPU, memory, processes and NVIDIA GPUs of this machine and sends them to the evenstep predictor.
#[derive(Debug, Parser, Serialize)]
#[command(name = "evenstep-agent", version)]
pub struct Flags {
    /// TOML file with any of these options, under their long names with `_` for `-`.
    #[arg(long, value_name = "FILE", env = "EVENSTEP_AGENT_CONFIG")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Log filter for standard error: a level, or levels per module.
    #[arg(long, value_name = "FILTER", env = "EVENSTEP_LOG", default_value = "info")]
    #[serde(skip)]
    pub log: String,

    /// Log format: text, json or logfmt.
    #[arg(long, value_name = "FORMAT", env = "EVENSTEP_LOG_FORMAT", default_value_t = LogFormat::Text)]
    #[serde(skip)]
    pub log_format: LogFormat,

    /// Predictor URLs, comma-separated if several share a store; samples go to the first that responds. With
    /// `off`, samples are only read locally [default: http://127.0.0.1:7117].
    #[arg(long, value_name = "URL,..", env = "EVENSTEP_SERVER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,

    /// CAs (PEM) to trust for predictors with https:// [default: public CAs].
    #[arg(long, value_name = "FILE", env = "EVENSTEP_CA")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,

    /// Client certificate chain (PEM), for predictors with --tls-client-ca.
    #[arg(long, value_name = "FILE", env = "EVENSTEP_CLIENT_CERT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cert: Option<PathBuf>,

    /// Private key (PEM) of the client certificate.
    #[arg(long, value_name = "FILE", env = "EVENSTEP_CLIENT_KEY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key: Option<PathBuf>,

    /// Name of this node [default: its host name].
    #[arg(long, value_name = "NAME", env = "EVENSTEP_NODE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,

    /// Loopback address for readings, status and metrics; port 0 picks a free port and prints it [default:
    /// 127.0.0.1:7118].
    #[arg(long, value_name = "ADDRESS", env = "EVENSTEP_AGENT_LISTEN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,

    /// Unix socket that serves the same as --listen, for containers on this node, such as /run/evenstep/agent.sock
    /// [default: none].
    #[arg(long, value_name = "FILE", env = "EVENSTEP_AGENT_SOCKET")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,

    /// Additional address for only /metrics and /healthz, for a Prometheus on another machine, such as
    /// 0.0.0.0:7119 [default: none; --listen serves both].
    #[arg(long, value_name = "ADDRESS", env = "EVENSTEP_AGENT_METRICS_LISTEN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_listen: Option<String>,

    /// Certificate chain (PEM) for TLS at --metrics-listen; read again when it changes [default: no TLS].
    #[arg(long, value_name = "FILE", env = "EVENSTEP_AGENT_TLS_CERT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,

    /// Private key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", env = "EVENSTEP_AGENT_TLS_KEY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,

    /// CAs (PEM) of client certificates; if set, every scraper needs one [default: none].
    #[arg(long, value_name = "FILE", env = "EVENSTEP_AGENT_TLS_CLIENT_CA")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_client_ca: Option<PathBuf>,

    /// Time between samples, 20ms to 1h [default: 1s].
    #[arg(long, value_name = "TIME", env = "EVENSTEP_AGENT_INTERVAL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,

    /// Time between batches sent to the predictor, at least 20ms [default: 5s].
    #[arg(long, value_name = "TIME", env = "EVENSTEP_AGENT_SEND_EVERY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_every: Option<String>,

    /// Process to sample as well; can be repeated. Processes that request `/sample?pid=` are added
    /// automatically for 1 h.
    #[arg(long = "watch-pid", value_name = "PID", env = "EVENSTEP_AGENT_WATCH_PID", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watch_pid: Vec<u32>,

    /// Directory for samples until the predictor acknowledges them [default: evenstep-agent in the user's
    /// state directory].
    #[arg(long, value_name = "DIRECTORY", env = "EVENSTEP_AGENT_SPOOL_DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spool_dir: Option<PathBuf>,

    /// Maximum size of the spool in bytes, at least 65536; if full, the oldest samples are dropped [default:
    /// 67108864].
    #[arg(long, value_name = "BYTES", env = "EVENSTEP_AGENT_SPOOL_MAX_BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spool_max_bytes: Option<u64>,

    /// Let each user of this machine read the processes of all users at --listen [default: only their own; root, all].
    #[arg(long, env = "EVENSTEP_AGENT_ANY_USER")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub any_user: bool,

    /// Folder in which processes of one user find this agent, by the file agent.json. It ends when no process holds
    /// a lock on the file users any more.
    #[arg(long, value_name = "FOLDER", env = "EVENSTEP_AGENT_LOCAL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<PathBuf>,

    /// With --local: seconds without users before it ends [default: 300].
    #[arg(long, env = "EVENSTEP_AGENT_LINGER_S", value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linger_s: Option<u64>,

    /// Send synthetic readings generated from this seed, marked as such, instead of real ones.
    #[arg(long, value_name = "SEED", env = "EVENSTEP_AGENT_DEMO_SEED")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demo_seed: Option<u64>,
}

/// All options as text, before validation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    server: String,
    ca: Option<PathBuf>,
    client_cert: Option<PathBuf>,
    client_key: Option<PathBuf>,
    node: Option<String>,
    listen: String,
    socket: Option<PathBuf>,
    metrics_listen: Option<String>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_client_ca: Option<PathBuf>,
    interval: String,
    send_every: String,
    watch_pid: Vec<u32>,
    spool_dir: Option<PathBuf>,
    spool_max_bytes: u64,
    any_user: bool,
    local: Option<PathBuf>,
    linger_s: u64,
    demo_seed: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            server: DEFAULT_SERVER.to_owned(),
            ca: None,
            client_cert: None,
            client_key: None,
            node: None,
            listen: "127.0.0.1:7118".to_owned(),
            socket: None,
            metrics_listen: None,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            interval: "1s".to_owned(),
            send_every: "5s".to_owned(),
            watch_pid: Vec::new(),
            spool_dir: None,
            spool_max_bytes: 64 << 20,
            any_user: false,
            local: None,
            linger_s: 300,
            demo_seed: None,
        }
    }
}

/// A validated configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Base URLs of the predictors; `None` if samples are not sent.
    pub servers: Option<Servers>,
    /// Files of the uplink's TLS.
    pub client_tls: ClientTlsFiles,
    /// Node name.
    pub node: NodeId,
    /// Loopback address of the local API.
    pub listen: SocketAddr,
    /// Unix socket of the local API.
    pub socket: Option<PathBuf>,
    /// Address of the metrics listener for scrapers on other machines.
    pub metrics_listen: Option<SocketAddr>,
    /// TLS of the metrics listener. The local API has none: its bytes do not leave the machine.
    pub tls: Option<TlsFiles>,
    /// Time between samples.
    pub interval: Duration,
    /// Time between batches.
    pub send_every: Duration,
    /// Processes to sample from the start.
    pub watch_pids: Vec<u32>,
    /// Directory of the spool.
    pub spool_dir: PathBuf,
    /// Maximum size of the spool, in bytes.
    pub spool_bytes_max: u64,
    /// Whether each user of the machine may read the processes of all users.
    pub any_user: bool,
    /// Folder of an agent that runs for the processes of one user, see [`evenstep_server::local`].
    pub local: Option<PathBuf>,
    /// Time without users after which a local agent ends.
    pub linger: Duration,
    /// Seed of synthetic readings; `None` for real readings.
    pub demo_seed: Option<u64>,
}

/// A configuration error: the option, its value and the rule.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("--config {path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        message: String,
    },
    /// The file has an unknown option, or an option of the wrong type.
    #[error("configuration: {0}")]
    Invalid(#[from] Box<figment::Error>),
    /// An option violates a rule.
    #[error("--{option} {value:?}: {rule}")]
    Option {
        /// Long name of the option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The rule.
        rule: String,
    },
    /// An option requires another one.
    #[error("{0}")]
    Requires(String),
    /// The node name violates the rules for ids.
    #[error("{0}; set a node name with --node")]
    Node(#[from] InvalidId),
    /// The default directory of the spool cannot be determined.
    #[error(
        "no directory for the spool: none of $STATE_DIRECTORY, $XDG_STATE_HOME and $HOME is set; set --spool-dir"
    )]
    NoSpoolDirectory,
}

impl Config {
    /// Combines flags (which include environment variables), the configuration file and defaults, and
    /// validates the result. `host_name` and `state_directory` are this machine's, used if the configuration
    /// does not set them.
    ///
    /// # Errors
    /// The first option that violates its rule.
    pub fn new(
        flags: &Flags,
        host_name: Option<String>,
        state_directory: Option<PathBuf>,
    ) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(Settings::default()));
        if let Some(path) = &flags.config {
            let text = std::fs::read_to_string(path)
                .map_err(|error| ConfigError::File { path: path.clone(), message: error.to_string() })?;
            figment = figment.merge(Toml::string(&text));
        }
        let settings: Settings = figment.merge(Serialized::defaults(flags)).extract().map_err(Box::new)?;
        Self::check(settings, host_name, state_directory)
    }

    fn check(
        settings: Settings,
        host_name: Option<String>,
        state_directory: Option<PathBuf>,
    ) -> Result<Self, ConfigError> {
        let node = NodeId::new(settings.node.or(host_name).unwrap_or_default())?;
        let spool_dir = settings.spool_dir.or(state_directory).ok_or(ConfigError::NoSpoolDirectory)?;
        if settings.spool_max_bytes < SPOOL_BYTES_MIN {
            let rule = format!("must be at least {SPOOL_BYTES_MIN} bytes");
            return Err(wrong("spool-max-bytes", &settings.spool_max_bytes, rule));
        }
        if settings.watch_pid.len() > WATCHED_MAX {
            let rule = format!("must be at most {WATCHED_MAX} processes");
            return Err(wrong("watch-pid", &format!("{} values", settings.watch_pid.len()), rule));
        }
        if settings.linger_s == 0 {
            return Err(wrong("linger-s", &settings.linger_s, "must be at least 1"));
        }
        let tls = TlsFiles::of_options(settings.tls_cert, settings.tls_key, settings.tls_client_ca);
        let tls = tls.map_err(ConfigError::Requires)?;
        if let Some(tls) = tls.as_ref().filter(|_| settings.metrics_listen.is_none()) {
            let rule = "requires --metrics-listen; --listen is for this machine only and has no TLS";
            return Err(wrong("tls-cert", &tls.certificate.display(), rule));
        }
        let client_tls = ClientTlsFiles {
            ca: settings.ca,
            certificate: settings.client_cert,
            key: settings.client_key,
            token: None,
        };
        let servers = || settings.server.parse::<Servers>();
        let servers = (settings.server != "off").then(servers).transpose();
        Ok(Self {
            servers: servers.map_err(|error: InvalidServers| wrong("server", &error.value, error.rule))?,
            client_tls,
            node,
            listen: check_listen(&settings.listen)?,
            socket: settings.socket,
            metrics_listen: settings.metrics_listen.as_deref().map(check_metrics_listen).transpose()?,
            tls,
            interval: check_time("interval", &settings.interval, INTERVAL_MIN)?,
            send_every: check_time("send-every", &settings.send_every, SEND_EVERY_MIN)?,
            watch_pids: settings.watch_pid,
            spool_dir,
            spool_bytes_max: settings.spool_max_bytes,
            any_user: settings.any_user,
            local: settings.local,
            linger: Duration::from_secs(settings.linger_s),
            demo_seed: settings.demo_seed,
        })
    }
}

/// Returns the directory for a service's state, following the conventions of systemd and XDG.
pub fn state_directory(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let given = |name: &str| variable(name).filter(|value| Path::new(value).is_absolute()).map(PathBuf::from);
    given("STATE_DIRECTORY")
        .or_else(|| given("XDG_STATE_HOME").map(|state| state.join("evenstep-agent")))
        .or_else(|| given("HOME").map(|home| home.join(".local/state/evenstep-agent")))
}

fn wrong(option: &'static str, value: &(impl ToString + ?Sized), rule: impl Into<String>) -> ConfigError {
    ConfigError::Option { option, value: value.to_string(), rule: rule.into() }
}

fn check_listen(listen: &str) -> Result<SocketAddr, ConfigError> {
    match listen.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(address),
        Ok(_) => {
            Err(wrong("listen", listen, "must be a loopback address; --metrics-listen serves other machines"))
        }
        Err(_) => Err(wrong("listen", listen, "must be a loopback address such as 127.0.0.1:7118")),
    }
}

fn check_metrics_listen(listen: &str) -> Result<SocketAddr, ConfigError> {
    listen.parse().map_err(|_| wrong("metrics-listen", listen, "must be an address such as 0.0.0.0:7119"))
}

fn check_time(option: &'static str, time: &str, least: Duration) -> Result<Duration, ConfigError> {
    match humantime::parse_duration(time) {
        Ok(duration) if (least..=INTERVAL_MAX).contains(&duration) => Ok(duration),
        Ok(_) => Err(wrong(option, time, format!("must be between {} ms and 1 h", least.as_millis()))),
        Err(_) => Err(wrong(option, time, "must be a duration such as 20ms, 1s or 1m")),
    }
}

#[cfg(test)]
mod tests {
    use evenstep_fuzz::{arbitrary, damaged};
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn config(arguments: &[&str]) -> Result<Config, ConfigError> {
        let flags = Flags::parse_from(std::iter::once(&"evenstep-agent").chain(arguments));
        Config::new(&flags, Some("node-a".to_owned()), Some("/state".into()))
    }

    #[test]
    fn omitted_options_have_their_defaults() {
        let config = config(&[]).unwrap();
        assert_eq!(config.servers.unwrap().to_string(), DEFAULT_SERVER);
        assert_eq!((config.node.as_str(), config.interval), ("node-a", Duration::from_secs(1)));
        assert_eq!((config.listen.port(), config.spool_bytes_max), (7118, 64 << 20));
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "interval = \"100ms\"\nnode = \"from-file\"\nwatch_pid = [7]\n").unwrap();
        let path = file.path().to_str().unwrap();
        let config = config(&["--config", path, "--node", "from-flag"]).unwrap();
        assert_eq!((config.node.as_str(), config.interval), ("from-flag", Duration::from_millis(100)));
        assert_eq!(config.watch_pids, [7]);
    }

    #[test]
    fn an_unknown_option_in_the_file_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "intervall = \"1s\"\n").unwrap();
        let error = config(&["--config", file.path().to_str().unwrap()]).unwrap_err().to_string();
        assert!(error.contains("intervall"), "{error}");
        let error = config(&["--config", "/no/such.toml"]).unwrap_err().to_string();
        assert!(error.contains("/no/such.toml"), "{error}");
    }

    #[test]
    fn a_bad_value_is_named_with_its_option() {
        for (option, value) in [
            ("--interval", "19ms"),
            ("--interval", "fast"),
            ("--interval", "2h"),
            ("--send-every", "0s"),
            ("--listen", "0.0.0.0:7118"),
            ("--listen", "here"),
            ("--metrics-listen", "0.0.0.0"),
            ("--server", "127.0.0.1:7117"),
            ("--server", "ftp://predictor"),
            ("--server", "http://a:1;http://b:1"),
            ("--spool-max-bytes", "1000"),
            ("--node", "a b"),
        ] {
            let error = config(&[option, value]).unwrap_err().to_string();
            assert!(error.contains(option) && error.contains(value), "{option} {value}: {error}");
        }
    }

    /// Files with any of the options and any values.
    fn files() -> impl Strategy<Value = Vec<u8>> {
        let keys = [
            "server",
            "node",
            "listen",
            "metrics_listen",
            "socket",
            "interval",
            "send_every",
            "watch_pid",
            "spool_dir",
            "spool_max_bytes",
            "local",
            "linger_s",
            "demo_seed",
            "x",
        ];
        let values = [
            "0",
            "-1",
            "1.5",
            "inf",
            "nan",
            "65536",
            "9223372036854775807",
            "18446744073709551616",
            "true",
            "[]",
            "[1]",
            "[-1, 4294967296]",
            "{}",
            "1979-05-27",
            "\"\"",
            "\"off\"",
            "\"http://a:1,\"",
            "\"[::1]:99999\"",
            "\"127.0.0.1:0\"",
            "\"1s\"",
            "\"99999999999999999999y\"",
            "\"1ms 1ms\"",
            "\"\\u0000\"",
            "\"/\"",
        ];
        let line = (select(keys.to_vec()), select(values.to_vec()))
            .prop_map(|(key, value)| format!("{key} = {value}\n"));
        let text = prop::collection::vec(line, 0..8).prop_map(|lines| lines.concat().into_bytes());
        let whole = keys[..6].iter().map(|key| format!("{key} = \"1s\"\n")).collect::<String>().into_bytes();
        prop_oneof![1 => arbitrary(), 2 => damaged(vec![whole]), 6 => text]
    }

    proptest! {
        #![proptest_config(evenstep_fuzz::config(256))]

        /// Whatever a file contains: an error that names the value, or a configuration within all rules.
        #[test]
        fn any_file_is_a_configuration_or_an_error(bytes in files()) {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            match config(&["--config", file.path().to_str().unwrap()]) {
                Ok(config) => {
                    prop_assert!((INTERVAL_MIN..=INTERVAL_MAX).contains(&config.interval));
                    prop_assert!((SEND_EVERY_MIN..=INTERVAL_MAX).contains(&config.send_every));
                    prop_assert!(config.listen.ip().is_loopback() && config.spool_bytes_max >= SPOOL_BYTES_MIN);
                    prop_assert!(config.watch_pids.len() <= WATCHED_MAX && !config.linger.is_zero());
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn an_option_that_requires_another_is_named() {
        let complete = ["--tls-cert=a.pem", "--tls-key=a.key", "--metrics-listen=127.0.0.1:0"];
        assert_eq!(config(&complete).unwrap().tls.unwrap().certificate, Path::new("a.pem"));
        for (lacking, named) in [
            (&["--tls-cert=a.pem"][..], "--tls-cert a.pem: requires --tls-key"),
            (&["--tls-key=a.key"], "--tls-key a.key: requires --tls-cert"),
            (&["--tls-client-ca=ca.pem"], "--tls-client-ca ca.pem: requires --tls-cert and --tls-key"),
            (&complete[..2], "--tls-cert \"a.pem\": requires --metrics-listen"),
        ] {
            let error = config(lacking).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn servers_are_a_list() {
        let servers = config(&["--server", "http://a:1, http://b:1/"]).unwrap().servers;
        assert_eq!(servers.unwrap().to_string(), "http://a:1,http://b:1");
        let error = config(&["--server", "http://a:1,b:1"]).unwrap_err().to_string();
        assert!(error.contains("--server \"b:1\": must be like http://host:port"), "{error}");
    }

    #[test]
    fn the_state_folder_follows_custom() {
        let variables = |name: &str| match name {
            "XDG_STATE_HOME" => Some("relative".into()),
            "HOME" => Some("/home/u".into()),
            _ => None,
        };
        assert_eq!(state_directory(variables), Some("/home/u/.local/state/evenstep-agent".into()));
        assert_eq!(state_directory(|_| None), None);
    }
}
