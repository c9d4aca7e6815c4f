//! Configuration of the agent, see [`evenstep_server::config`] for its sources.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use evenstep_client::{ClientTlsFiles, Servers, TokenSource};
use evenstep_observability::logs::Format as LogFormat;
use evenstep_protocol::{DEFAULT_SERVER, NodeId};
use evenstep_server::TlsFiles;
use evenstep_server::config::{at_least_1, duration};

use crate::spool::SPOOL_BYTES_MIN;
use crate::watch::WATCHED_MAX;

const INTERVAL_MIN_MS: u64 = 20;
const TIME_MAX: Duration = Duration::from_secs(3600);

/// Predictors; `None` if samples are only read locally.
pub type Destination = Option<Servers>;

/// Samples CPU, memory, processes and NVIDIA GPUs of this machine and sends them to the evenstep predictor.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(name = "evenstep-agent", version)]
pub struct Config {
    /// TOML file with any of these options, under their long names with `_` for `-`.
    #[arg(long, value_name = "FILE", env = "EVENSTEP_AGENT_CONFIG")]
    pub config: Option<PathBuf>,
    /// Log filter for standard error: a level, or levels per module.
    #[arg(long, value_name = "FILTER", env = "EVENSTEP_LOG", default_value = "info")]
    pub log: String,
    /// Log format: text, json or logfmt.
    #[arg(long, value_name = "FORMAT", env = "EVENSTEP_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Predictor URLs, comma-separated if several share a store; samples go to the first that responds. With
    /// `off`, samples are only read locally.
    #[arg(long, value_name = "URL,..", env = "EVENSTEP_SERVER", default_value = DEFAULT_SERVER, value_parser = destination)]
    pub server: Destination,
    /// CAs (PEM) to trust for predictors with https:// [default: public CAs].
    #[arg(long, value_name = "FILE", env = "EVENSTEP_CA")]
    pub ca: Option<PathBuf>,
    /// Client certificate chain (PEM), for predictors with --tls-client-ca.
    #[arg(long, value_name = "FILE", env = "EVENSTEP_CLIENT_CERT")]
    pub client_cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate.
    #[arg(long, value_name = "FILE", env = "EVENSTEP_CLIENT_KEY")]
    pub client_key: Option<PathBuf>,
    /// Name of this node [default: its host name].
    #[arg(long, value_name = "NAME", env = "EVENSTEP_NODE")]
    pub node: Option<NodeId>,
    /// Loopback address for readings, status and metrics; port 0 picks a free port and prints it.
    #[arg(long, value_name = "ADDRESS", env = "EVENSTEP_AGENT_LISTEN", default_value = "127.0.0.1:7118", value_parser = loopback)]
    pub listen: SocketAddr,
    /// Unix socket that serves the same as --listen, for containers on this node, such as /run/evenstep/agent.sock
    /// [default: none].
    #[arg(long, value_name = "FILE", env = "EVENSTEP_AGENT_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Additional address for only /metrics and /healthz, for a Prometheus on another machine, such as
    /// 0.0.0.0:7119 [default: none; --listen serves both].
    #[arg(long, value_name = "ADDRESS", env = "EVENSTEP_AGENT_METRICS_LISTEN", value_parser = metrics_address)]
    pub metrics_listen: Option<SocketAddr>,
    /// Certificate chain (PEM) for TLS at --metrics-listen; read again when it changes [default: no TLS].
    #[arg(long, value_name = "FILE", env = "EVENSTEP_AGENT_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", env = "EVENSTEP_AGENT_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// CAs (PEM) of client certificates; if set, every scraper needs one [default: none].
    #[arg(long, value_name = "FILE", env = "EVENSTEP_AGENT_TLS_CLIENT_CA")]
    pub tls_client_ca: Option<PathBuf>,
    /// Time between samples, 20ms to 1h.
    #[arg(long, value_name = "TIME", env = "EVENSTEP_AGENT_INTERVAL", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Process to sample as well; can be repeated. Processes that request `/sample?pid=` are added
    /// automatically for 1 h.
    #[arg(long, value_name = "PID", env = "EVENSTEP_AGENT_WATCH_PID", value_delimiter = ',')]
    pub watch_pid: Vec<u32>,
    /// Directory for samples until the predictor acknowledges them [default: evenstep-agent in the user's
    /// state directory].
    #[arg(long, value_name = "DIRECTORY", env = "EVENSTEP_AGENT_SPOOL_DIR")]
    pub spool_dir: Option<PathBuf>,
    /// Maximum size of the spool in bytes, at least 65536; if full, the oldest samples are dropped.
    #[arg(long, value_name = "BYTES", env = "EVENSTEP_AGENT_SPOOL_MAX_BYTES", default_value = "67108864", value_parser = spool_bytes)]
    pub spool_max_bytes: u64,
    /// Let each user of this machine read the processes of all users at --listen [default: only their own; root, all].
    #[arg(long, env = "EVENSTEP_AGENT_ANY_USER")]
    pub any_user: bool,
    /// Folder in which processes of one user find this agent, by the file agent.json. It ends when no process holds
    /// a lock on the file users any more.
    #[arg(long, value_name = "FOLDER", env = "EVENSTEP_AGENT_LOCAL")]
    pub local: Option<PathBuf>,
    /// With --local: seconds without users before it ends.
    #[arg(long, env = "EVENSTEP_AGENT_LINGER_S", default_value = "300", value_parser = at_least_1::<u64>)]
    pub linger_s: u64,
    /// Send synthetic readings generated from this seed, marked as such, instead of real ones.
    #[arg(long, value_name = "SEED", env = "EVENSTEP_AGENT_DEMO_SEED")]
    pub demo_seed: Option<u64>,
}

impl Config {
    /// The name of the node, by default the name of its host.
    ///
    /// # Errors
    /// If the host has no name, or a name that is no ID.
    pub fn node(&self, host_name: Option<String>) -> Result<NodeId, String> {
        let of_host = || NodeId::new(host_name.unwrap_or_default());
        self.node
            .clone()
            .map_or_else(of_host, Ok)
            .map_err(|error| format!("{error}; set a node name with --node"))
    }

    /// The directory of the spool, by default `state_directory`.
    ///
    /// # Errors
    /// If neither is given.
    pub fn spool_dir(&self, state_directory: Option<PathBuf>) -> Result<PathBuf, String> {
        self.spool_dir.clone().or(state_directory).ok_or_else(|| {
            "no directory for the spool: none of $STATE_DIRECTORY, $XDG_STATE_HOME and $HOME is set; set --spool-dir"
                .to_owned()
        })
    }

    /// Processes to sample from the start.
    ///
    /// # Errors
    /// If there are too many.
    pub fn watched(&self) -> Result<Vec<u32>, String> {
        match self.watch_pid.len() {
            ..=WATCHED_MAX => Ok(self.watch_pid.clone()),
            more => Err(format!("--watch-pid {more} values: must be at most {WATCHED_MAX} processes")),
        }
    }

    /// Files of TLS of the metrics listener. The local API has none: its bytes do not leave the machine.
    ///
    /// # Errors
    /// An option that requires another one.
    pub fn tls(&self) -> Result<Option<TlsFiles>, String> {
        let Self { tls_cert, tls_key, tls_client_ca, .. } = self;
        let files = TlsFiles::of_options(tls_cert.clone(), tls_key.clone(), tls_client_ca.clone())?;
        match files {
            Some(TlsFiles { certificate, .. }) if self.metrics_listen.is_none() => Err(format!(
                "--tls-cert {certificate:?}: requires --metrics-listen; --listen is for this machine only and has no TLS"
            )),
            files => Ok(files),
        }
    }

    /// Files of the uplink's TLS, with a token.
    pub fn client_tls(&self, token: Option<TokenSource>) -> ClientTlsFiles {
        let Self { ca, client_cert, client_key, .. } = self;
        ClientTlsFiles { ca: ca.clone(), certificate: client_cert.clone(), key: client_key.clone(), token }
    }
}

/// Returns the directory for a service's state, following the conventions of systemd and XDG.
pub fn state_directory(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let given = |name: &str| variable(name).filter(|value| Path::new(value).is_absolute()).map(PathBuf::from);
    given("STATE_DIRECTORY")
        .or_else(|| given("XDG_STATE_HOME").map(|state| state.join("evenstep-agent")))
        .or_else(|| given("HOME").map(|home| home.join(".local/state/evenstep-agent")))
}

fn destination(text: &str) -> Result<Destination, String> {
    (text != "off").then(|| text.parse::<Servers>()).transpose().map_err(|error| error.to_string())
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(address),
        Ok(_) => Err("must be a loopback address; --metrics-listen serves other machines".to_owned()),
        Err(_) => Err("must be a loopback address such as 127.0.0.1:7118".to_owned()),
    }
}

fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "must be an address such as 0.0.0.0:7119".to_owned())
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = duration(text).ok_or("must be a duration such as 20ms, 1s or 1m")?;
    let is_in_range = (Duration::from_millis(INTERVAL_MIN_MS)..=TIME_MAX).contains(&time);
    is_in_range.then_some(time).ok_or_else(|| format!("must be between {INTERVAL_MIN_MS} ms and 1 h"))
}

fn spool_bytes(text: &str) -> Result<u64, String> {
    let bytes = text.parse().ok().filter(|bytes| *bytes >= SPOOL_BYTES_MIN);
    bytes.ok_or_else(|| format!("must be at least {SPOOL_BYTES_MIN} bytes"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use evenstep_fuzz::files_of_options;
    use evenstep_server::config::parse;
    use proptest::prelude::*;

    use super::*;

    fn config(arguments: &[&str]) -> Result<Config, String> {
        let parsed = parse::<Config>(None, std::iter::once(&"evenstep-agent").chain(arguments));
        let config = parsed.map_err(|error| error.to_string())?;
        config.tls().and(config.watched()).map(|_| config)
    }

    #[test]
    fn omitted_options_have_their_defaults() {
        let config = config(&[]).unwrap();
        let node = config.node(Some("node-a".to_owned())).unwrap();
        assert_eq!((node.as_str(), config.interval), ("node-a", Duration::from_secs(1)));
        assert_eq!(config.spool_dir(Some("/state".into())).unwrap(), Path::new("/state"));
        assert_eq!((config.listen.port(), config.spool_max_bytes), (7118, 64 << 20));
        assert_eq!(config.server.unwrap().to_string(), DEFAULT_SERVER);
        let of_none = self::config(&["--server=off"]).unwrap();
        assert_eq!(of_none.server, None);
        assert!(of_none.node(None).unwrap_err().ends_with("; set a node name with --node"));
        assert!(of_none.spool_dir(None).unwrap_err().ends_with("; set --spool-dir"));
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "interval = \"100ms\"\nnode = \"from-file\"\nwatch_pid = [7]\n").unwrap();
        let path = file.path().to_str().unwrap();
        let config = config(&["--config", path, "--node", "from-flag"]).unwrap();
        assert_eq!(
            (config.node(None).unwrap().as_str(), config.interval),
            ("from-flag", Duration::from_millis(100))
        );
        assert_eq!(config.watch_pid, [7]);
    }

    #[test]
    fn an_unknown_option_in_the_file_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "intervall = \"1s\"\n").unwrap();
        let error = config(&["--config", file.path().to_str().unwrap()]).unwrap_err();
        assert!(error.contains("intervall"), "{error}");
        let error = config(&["--config", "/no/such.toml"]).unwrap_err();
        assert!(error.contains("/no/such.toml"), "{error}");
    }

    #[test]
    fn a_bad_value_is_named_with_its_option() {
        for (option, value) in [
            ("--interval", "19ms"),
            ("--interval", "fast"),
            ("--interval", "2h"),
            ("--listen", "0.0.0.0:7118"),
            ("--listen", "here"),
            ("--metrics-listen", "0.0.0.0"),
            ("--server", "127.0.0.1:7117"),
            ("--server", "ftp://predictor"),
            ("--server", "http://a:1;http://b:1"),
            ("--spool-max-bytes", "1000"),
            ("--node", "a b"),
        ] {
            let error = config(&[option, value]).unwrap_err();
            assert!(error.contains(option) && error.contains(value), "{option} {value}: {error}");
        }
    }

    fn files() -> impl Strategy<Value = Vec<u8>> {
        let keys = Config::command().get_arguments().map(|arg| arg.get_id().to_string()).collect();
        files_of_options(keys, "x")
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
                    prop_assert!((Duration::from_millis(INTERVAL_MIN_MS)..=TIME_MAX).contains(&config.interval));
                    prop_assert!(config.listen.ip().is_loopback() && config.spool_max_bytes >= SPOOL_BYTES_MIN);
                    prop_assert!(config.watch_pid.len() <= WATCHED_MAX && config.linger_s > 0);
                }
                Err(error) => prop_assert!(error.contains("configuration: ") || error.starts_with("--"), "{}", error),
            }
        }
    }

    #[test]
    fn an_option_that_requires_another_is_named() {
        let complete = ["--tls-cert=a.pem", "--tls-key=a.key", "--metrics-listen=127.0.0.1:0"];
        assert_eq!(config(&complete).unwrap().tls().unwrap().unwrap().certificate, Path::new("a.pem"));
        for (lacking, named) in [
            (&["--tls-cert=a.pem"][..], "--tls-cert a.pem: requires --tls-key"),
            (&["--tls-key=a.key"], "--tls-key a.key: requires --tls-cert"),
            (&["--tls-client-ca=ca.pem"], "--tls-client-ca ca.pem: requires --tls-cert and --tls-key"),
            (&complete[..2], "--tls-cert \"a.pem\": requires --metrics-listen"),
        ] {
            let error = config(lacking).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn servers_are_a_list() {
        let servers = config(&["--server", "http://a:1, http://b:1/"]).unwrap().server;
        assert_eq!(servers.unwrap().to_string(), "http://a:1,http://b:1");
        let error = config(&["--server", "http://a:1,b:1"]).unwrap_err();
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
