//! TLS of the service and of its clients: files, certificates and messages.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use evenstep_client::{Client as Trainer, ClientConfig, ClientTls, ClientTlsFiles, ErrorKind};
use evenstep_protocol::JobSpec;
use evenstep_tests::certificates::{Authority, Identity};
use evenstep_tests::predictor::without_settings;
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Predictor};
use tempfile::TempDir;

use crate::support::{BINARY, job_id};

/// Longer than any healthy request takes.
const PATIENCE: Duration = Duration::from_secs(300);
/// The documentation of metrics.
const METRICS: &str = include_str!("../../../docs/reference/metrics.md");

/// A predictor that requires client certificates, and the files of its clients.
struct World {
    folder: TempDir,
    authority: Authority,
    predictor: Predictor,
}

impl World {
    fn start() -> Self {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("site"));
        authority.write(&folder.path().join("ca.pem"));
        Authority::new("other").write(&folder.path().join("other-ca.pem"));
        authority.issue("server").write(folder.path(), "server");
        authority.issue("client").write(folder.path(), "client");
        Authority::new("other").issue("client").write(folder.path(), "stranger");
        let file = |option: &str, name: &str| format!("--{option}={}", folder.path().join(name).display());
        let options = [
            file("tls-cert", "server.pem"),
            file("tls-key", "server.key"),
            file("tls-client-ca", "ca.pem"),
            file("local", ""),
        ];
        let store = format!("sqlite://{}", folder.path().join("evenstep.db").display());
        let predictor =
            Predictor::start_over(Path::new(BINARY), &store, &options.each_ref().map(String::as_str));
        Self { folder, authority, predictor }
    }

    fn files(&self, ca: Option<&str>, own: Option<&str>) -> ClientTlsFiles {
        let file = |name: String| self.folder.path().join(name);
        ClientTlsFiles {
            token: None,
            ca: ca.map(|name| file(name.to_owned())),
            certificate: own.map(|name| file(format!("{name}.pem"))),
            key: own.map(|name| file(format!("{name}.key"))),
        }
    }

    fn trainer(&self, url: &str, ca: Option<&str>, own: Option<&str>) -> Trainer {
        trainer(url, ClientTls::load(self.files(ca, own)).unwrap())
    }

    /// Runs a command of the program that queries the predictor.
    fn command(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Output {
        let mut command = Command::new(BINARY);
        without_settings(&mut command).args(arguments).arg(format!("--server={}", self.predictor.url));
        command.current_dir(self.folder.path()).envs(settings.iter().copied()).output().unwrap()
    }
}

fn trainer(url: &str, tls: ClientTls) -> Trainer {
    let config = ClientConfig { request_timeout: PATIENCE, tls, ..ClientConfig::default() };
    Trainer::new(&url.parse().unwrap(), job_id("job"), config)
}

/// The reason why a job cannot be registered.
fn unreachable(trainer: &Trainer) -> String {
    match trainer.register_job(&JobSpec::new(64)).unwrap_err().kind {
        ErrorKind::Unreachable(why) => why,
        other => panic!("{other}"),
    }
}

#[test]
fn clients_are_told_what_is_wrong() {
    let world = World::start();
    let url = world.predictor.url.as_str();
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let run_file = fs::read_to_string(world.folder.path().join("predictor.json")).unwrap();
    assert!(run_file.contains(&format!("\"url\":\"{url}\"")), "{run_file}");
    assert_eq!(world.trainer(url, Some("ca.pem"), Some("client")).register_job(&JobSpec::new(64)), Ok(()));

    let plain = Predictor::start(Path::new(BINARY), tempfile::tempdir().unwrap().path());
    let other_ca = world.folder.path().join("other-ca.pem").display().to_string();
    let stranger = world.folder.path().join("stranger.pem").display().to_string();
    for (url, ca, own, named) in [
        (url, None, Some("client"), "signed by none of the public CAs; set --ca or EVENSTEP_CA"),
        (url, Some("other-ca.pem"), Some("client"), &format!("signed by none of the CAs in {other_ca}")),
        (url, Some("ca.pem"), None, "requires a client certificate; set --client-cert and --client-key"),
        (url, Some("ca.pem"), Some("stranger"), &format!("rejected the client certificate in {stranger}")),
        (
            &url.replace("https", "http"),
            Some("ca.pem"),
            Some("client"),
            "this port requires TLS; use https://",
        ),
        (
            &plain.url.replace("http", "https"),
            Some("ca.pem"),
            None,
            "the server does not use TLS at this port",
        ),
        (
            &url.replace("127.0.0.1", "localhost"),
            Some("ca.pem"),
            Some("client"),
            "not valid for name \"localhost\"",
        ),
    ] {
        let why = unreachable(&world.trainer(url, ca, own));
        assert!(why.contains(named), "{named:?} in {why}");
    }
}

#[test]
fn a_client_uses_new_files_after_an_error() {
    let world = World::start();
    let trainer = world.trainer(&world.predictor.url, Some("other-ca.pem"), Some("stranger"));
    let clone = trainer.clone();
    assert!(unreachable(&trainer).contains("signed by none"));
    // A certificate without its key yet: not used.
    fs::copy(world.folder.path().join("client.pem"), world.folder.path().join("stranger.pem")).unwrap();
    fs::copy(world.folder.path().join("ca.pem"), world.folder.path().join("other-ca.pem")).unwrap();
    assert!(unreachable(&trainer).contains("signed by none"));
    fs::copy(world.folder.path().join("client.key"), world.folder.path().join("stranger.key")).unwrap();
    // This attempt still fails, and finds the new files.
    unreachable(&trainer);
    assert_eq!(clone.register_job(&JobSpec::new(64)), Ok(()));
}

#[test]
fn commands_connect_over_tls() {
    let world = World::start();
    let files = ["--ca=ca.pem", "--client-cert=client.pem", "--client-key=client.key"];
    let variables = [
        ("EVENSTEP_CA", "ca.pem"),
        ("EVENSTEP_CLIENT_CERT", "client.pem"),
        ("EVENSTEP_CLIENT_KEY", "client.key"),
    ];
    for (command, said) in [("top", "There are no jobs yet"), ("report", "no jobs")] {
        for output in
            [world.command(&[&[command], &files[..]].concat(), &[]), world.command(&[command], &variables)]
        {
            let said_error = String::from_utf8_lossy(&output.stderr);
            assert!(String::from_utf8_lossy(&output.stdout).contains(said), "{command}: {said_error}");
        }
        let fails = |options: &[&str], named: &str| {
            let output = world.command(&[&[command], options].concat(), &[]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && said.contains(named), "{command} {options:?}: {said}");
        };
        fails(&["--ca=ca.pem"], "requires a client certificate");
        fails(&["--ca=none.pem"], "none.pem: cannot be read: ");
        fails(&["--ca=client.key"], "client.key: has no certificate");
        fails(&["--client-cert=client.pem"], "--client-key");
        fails(&["--client-cert=client.pem", "--client-key=stranger.key"], "stranger.key: does not belong");
    }
}

#[test]
fn metrics_of_tls_are_documented() {
    let world = World::start();
    let own = Identity {
        certificate: fs::read_to_string(world.folder.path().join("client.pem")).unwrap(),
        key: fs::read_to_string(world.folder.path().join("client.key")).unwrap(),
    };
    let client = Client::trusting(&world.predictor.url, &world.authority, Some(&own));
    Client::new(&world.predictor.url.replace("https", "http")).get("/metrics").problem(421, "tls-required");
    let metrics = until("the failure is counted", || {
        let metrics = client.get("/metrics").body;
        metrics.contains("handshake_failures_total 1").then_some(metrics)
    });
    for series in [
        "evenstep_tls_reloads_total{outcome=\"failed\"} 0",
        "evenstep_tls_reloads_total{outcome=\"loaded\"} 0",
        "evenstep_tls_handshake_failures_total 1",
        // The beginning of the year 4096.
        "evenstep_tls_certificate_expiry_timestamp_seconds 67090118400",
    ] {
        assert!(metrics.contains(&format!("\n{series}\n")), "{series}: {metrics}");
        let name = series.split(['{', ' ']).next().unwrap();
        assert!(METRICS.contains(&format!("`{name}`")), "{name} is not in docs/reference/metrics.md");
    }
    let names = metrics.lines().filter(|line| line.starts_with("evenstep_tls_"));
    assert_eq!(names.count(), 4, "{metrics}");
}

#[test]
fn wrong_files_end_the_start() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("site"));
    authority.issue("one").write(folder.path(), "one");
    authority.issue("two").write(folder.path(), "two");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let refused = |options: &[(&str, &str)], named: &str| {
        let mut command = Command::new(BINARY);
        without_settings(&mut command).args(["serve", "--listen=127.0.0.1:0"]).current_dir(folder.path());
        let options = options.iter().map(|(option, file)| format!("--tls-{option}={}", path(file)));
        let output = command.args(options).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(named), "{named} in {said}");
    };
    refused(&[("cert", "one.pem")], "requires --tls-key");
    refused(&[("key", "one.key")], "requires --tls-cert");
    refused(&[("client-ca", "one.pem")], "requires --tls-cert and --tls-key");
    let belongs =
        format!("{}: does not belong to the first certificate in {}", path("two.key"), path("one.pem"));
    refused(&[("cert", "one.pem"), ("key", "two.key")], &belongs);
    let both = [("cert", "one.pem"), ("key", "one.key")];
    refused(&[both[0], ("key", "none")], &format!("{}: cannot be read: ", path("none")));
    refused(
        &[&both[..], &[("client-ca", "one.key")]].concat(),
        &format!("{}: has no certificate", path("one.key")),
    );
}
