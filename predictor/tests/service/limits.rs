//! Limits of tokens: refusals with the limit's name, metrics, and changes of the file.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use evenstep_client::{Client as Trainer, ClientConfig, ClientTls, ClientTlsFiles, ErrorKind, TokenSource};
use evenstep_protocol::{JobSpec, JobsView, JoinRequest, WorkersView};
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Predictor, Store};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::access::{create, id, with_token};
use crate::support::{BINARY, Service, job_id, worker_id};

/// The documentation of metrics.
const METRICS: &str = include_str!("../../../docs/reference/metrics.md");
/// More bytes than a rate of 1 byte per second adds during any test.
const MANY_BYTES: usize = 100_000;

/// A predictor with limits.
struct World {
    service: Service,
    folder: TempDir,
    /// Without limits.
    admin: Client,
}

impl World {
    /// Starts with tokens of these scopes and jobs, and a file that has limits for each.
    fn start<const N: usize>(tokens: [(&str, &str, &str); N]) -> (Self, [String; N]) {
        let (store, folder) = (Store::fresh(), tempfile::tempdir().unwrap());
        let created = tokens.map(|(scope, jobs, _)| create(&store.address(), scope, jobs));
        let admin = create(&store.address(), "admin", "*");
        let table =
            |(token, (.., limits)): (&String, (&str, &str, &str))| format!("[{}]\n{limits}\n", id(token));
        let file = folder.path().join("limits.toml");
        fs::write(&file, created.iter().zip(tokens).map(table).collect::<String>()).unwrap();
        let limits = format!("--limits={}", file.display());
        let flags = ["--url=http://predictor.test", "--refit-interval-s=86400", "--auth=required", &limits];
        let predictor = Predictor::start_over(Path::new(BINARY), &store.address(), &flags);
        let service = Service { client: predictor.client(), predictor, store };
        let admin = with_token(&service, &admin);
        (Self { service, folder, admin }, created)
    }

    fn client(&self, token: &str) -> Client {
        with_token(&self.service, token)
    }

    /// Replaces the file at once.
    fn write(&self, limits: &str) {
        let (new, file) = (self.folder.path().join("new"), self.folder.path().join("limits.toml"));
        fs::write(&new, limits).unwrap();
        fs::rename(new, file).unwrap();
    }

    /// The value of a metric of a token; `None` if it is absent.
    fn of_token(&self, name: &str, token: &str, limit: &str) -> Option<f64> {
        self.metric(&format!("{name}{{token=\"{}\",limit=\"{limit}\"}} ", id(token)))
    }

    fn metric(&self, series: &str) -> Option<f64> {
        let text = self.admin.get("/metrics").body;
        text.lines().find_map(|line| line.strip_prefix(series)?.parse().ok())
    }
}

fn put(client: &Client, job: &str) -> evenstep_tests::client::Reply {
    client.put(&format!("/v1/jobs/{}", job.replace('/', "%2F")), &JobSpec::new(64))
}

fn join(client: &Client, job: &str, worker: usize) -> evenstep_tests::client::Reply {
    let path = format!("/v1/jobs/{}/workers", job.replace('/', "%2F"));
    client.post(&path, &JoinRequest::new(worker_id(worker)))
}

fn batch(sequence: u64) -> Value {
    json!({"node": "n", "boot_id": "b", "sequence": sequence, "samples": [{"at_unix_ms": 1}]})
}

#[test]
fn jobs_and_workers_are_limited_by_token() {
    let ([a, b], world) = {
        let (world, tokens) = World::start([
            ("trainer", "team-a/*", "jobs = 1\nworkers = 2"),
            ("trainer", "team-b/*", "requests_per_s = 1000000"),
        ]);
        (tokens, world)
    };
    let (of_a, of_b) = (world.client(&a), world.client(&b));
    assert_eq!(put(&of_a, "team-a/one").status, 201);
    let refused = put(&of_a, "team-a/two");
    let detail = refused.problem(429, "limit-jobs").detail;
    for named in ["1 jobs exist in team-a/*", "jobs = 1", id(&a), "team-a/two"] {
        assert!(detail.contains(named), "{detail}");
    }
    assert_eq!(refused.retry_after, None, "waiting does not help");
    assert_eq!(put(&of_a, "team-a/one").status, 200, "not a new job");
    assert_eq!(put(&of_b, "team-b/one").status, 201);
    assert_eq!(put(&of_b, "team-b/two").status, 201);

    let joined: Vec<u16> = (0..2).map(|worker| join(&of_a, "team-a/one", worker).status).collect();
    assert_eq!(joined, [200, 200]);
    let before: WorkersView = of_a.get("/v1/jobs/team-a%2Fone/workers").json();
    let detail = join(&of_a, "team-a/one", 2).problem(429, "limit-workers").detail;
    for named in ["2 workers are live in team-a/*", "workers = 2", id(&a), "node/2"] {
        assert!(detail.contains(named), "{detail}");
    }
    let after: WorkersView = of_a.get("/v1/jobs/team-a%2Fone/workers").json();
    assert_eq!((after.workers.len(), after.generation), (2, before.generation), "an error changes nothing");
    assert_eq!(join(&of_a, "team-a/one", 0).status, 200, "a renewal is no new worker");
    (0..3).for_each(|worker| assert_eq!(join(&of_b, "team-b/one", worker).status, 200));
    assert_eq!(of_a.delete("/v1/jobs/team-a%2Fone/workers/node%2F0").status, 200);
    assert_eq!(join(&of_a, "team-a/one", 2).status, 200, "a departed worker does not count");

    // A run gets a clear error.
    fs::write(world.folder.path().join("token"), &a).unwrap();
    let token = Some(TokenSource::File(world.folder.path().join("token")));
    let tls = ClientTls::load(ClientTlsFiles { token, ..ClientTlsFiles::default() }).unwrap();
    let config = ClientConfig { tls, request_timeout: Duration::from_secs(300), ..ClientConfig::default() };
    let trainer = Trainer::new(&world.service.predictor.url.parse().unwrap(), job_id("team-a/two"), config);
    let error = trainer.register_job(&JobSpec::new(64)).unwrap_err();
    assert!(matches!(&error.kind, ErrorKind::Rejected(why) if why.contains("jobs = 1")), "{error}");

    let expected = [
        ("evenstep_token_limit", &a, "jobs", 1.0),
        ("evenstep_token_limit", &a, "workers", 2.0),
        ("evenstep_token_refusals_total", &a, "jobs", 2.0),
        ("evenstep_token_refusals_total", &a, "workers", 1.0),
        ("evenstep_token_refusals_total", &b, "requests_per_s", 0.0),
    ];
    for (name, token, limit, value) in expected {
        assert_eq!(world.of_token(name, token, limit), Some(value), "{name} {limit}");
    }
    assert_eq!(world.of_token("evenstep_token_limit", &b, "jobs"), None);
    assert!(world.of_token("evenstep_token_used_total", &b, "requests_per_s") >= Some(5.0));
    for (limit, used) in [("jobs", 1.0), ("workers", 2.0)] {
        until("jobs and workers are counted", || {
            (world.of_token("evenstep_token_used", &a, limit) == Some(used)).then_some(())
        });
    }
    let text = world.admin.get("/metrics").body;
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let own: Vec<&str> = names
        .filter(|name| name.starts_with("evenstep_token_") || name.starts_with("evenstep_limits_"))
        .collect();
    assert_eq!(own.len(), 5, "{own:?}");
    own.iter().for_each(|name| {
        assert!(METRICS.contains(&format!("`{name}`")), "{name} is not in docs/reference/metrics.md");
    });
    let of_team = world.client(&create(&world.service.store.address(), "metrics", "team-a/*"));
    let text = of_team.get("/metrics").body;
    assert!(text.contains("team-a/one") && !text.contains("evenstep_token_"), "{text}");

    assert_eq!(world.admin.delete("/v1/jobs/team-a%2Fone").status, 204);
    assert_eq!(put(&of_a, "team-a/two").status, 201, "a deleted job does not count");
    assert_eq!(world.admin.get("/v1/jobs").json::<JobsView>().jobs.len(), 3);
}

#[test]
fn rates_are_limited_by_token() {
    let (world, [slow, viewer, agent, streaming, other]) = World::start([
        ("viewer", "*", "requests_per_s = 0.001"),
        ("viewer", "*", "jobs = 1"),
        ("agent", "*", "telemetry_bytes_per_s = 1"),
        ("agent", "*", "telemetry_bytes_per_s = 1"),
        ("agent", "*", "requests_per_s = 1000"),
    ]);
    let slow = world.client(&slow);
    assert_eq!(slow.get("/v1/jobs").status, 200);
    let problem = slow.get("/v1/jobs").problem(429, "limit-requests-per-s");
    assert!(problem.detail.contains("requests_per_s = 0.001"), "{}", problem.detail);
    assert!(problem.retry_after_s.is_some_and(|wait_s| (1..=1001).contains(&wait_s)), "{problem:?}");
    // Also requests that the scope does not allow.
    slow.put("/v1/jobs/job", &JobSpec::new(64)).problem(429, "limit-requests-per-s");
    assert_eq!(slow.get("/healthz").status, 200, "needs no token");
    (0..3).for_each(|_| assert_eq!(world.client(&viewer).get("/v1/jobs").status, 200));

    // A body above one second's worth is accepted, and then the token waits.
    let padded = |sequence: u64| format!("{}{}", batch(sequence), " ".repeat(MANY_BYTES));
    let post = |token: &str, sequence: u64| world.client(token).post_text("/v1/telemetry", &padded(sequence));
    assert_eq!(post(&agent, 0).status, 200);
    let refused = post(&agent, 1);
    let problem = refused.problem(429, "limit-telemetry-bytes-per-s");
    assert!(problem.retry_after_s > Some(MANY_BYTES as u64 / 2), "{problem:?}");
    assert!(problem.detail.contains("telemetry_bytes_per_s = 1;"), "{}", problem.detail);
    assert_eq!(world.client(&agent).post("/v1/telemetry", &batch(1)).status, 429, "a short one too");
    assert_eq!(post(&other, 1).status, 200);
    assert_eq!(world.of_token("evenstep_token_refusals_total", &agent, "telemetry_bytes_per_s"), Some(2.0));

    // The length of a body in chunks is not known before.
    let chunked = |sequence: u64| chunked(&world.service.predictor.url, &streaming, &padded(sequence));
    let first = chunked(2);
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    let used = world.of_token("evenstep_token_used_total", &streaming, "telemetry_bytes_per_s").unwrap();
    assert_eq!(used, padded(2).len() as f64);
    let second = chunked(3);
    assert!(second.starts_with("HTTP/1.1 429") && second.contains("limit-telemetry-bytes-per-s"), "{second}");
    assert_eq!(world.admin.samples("n", 10).samples.len(), 3, "refused samples are not stored");
}

/// Sends telemetry in chunks; returns the response.
fn chunked(url: &str, token: &str, body: &str) -> String {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/telemetry HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         authorization: Bearer {token}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    for chunk in body.as_bytes().chunks(1 << 14) {
        stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).unwrap();
        stream.write_all(chunk).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_changed_file_is_read_again_and_a_bad_one_changes_nothing() {
    let (world, [trainer]) = World::start([("trainer", "team-a/*", "jobs = 1")]);
    let client = world.client(&trainer);
    assert_eq!(put(&client, "team-a/one").status, 201);
    put(&client, "team-a/two").problem(429, "limit-jobs");
    world.write(&format!("[{}]\njobs = 2\n", id(&trainer)));
    until("the new limit is in use", || (put(&client, "team-a/two").status == 201).then_some(()));
    let reloads = |outcome: &str| {
        world.metric(&format!("evenstep_limits_reloads_total{{outcome=\"{outcome}\"}} ")).unwrap()
    };
    assert_eq!((reloads("loaded"), reloads("failed")), (1.0, 0.0));
    world.write("[default]\njobs = 0\n");
    until("the bad file is seen", || (reloads("failed") == 1.0).then_some(()));
    // Another thread reads the log.
    let says = |text: &str| world.service.predictor.process.output().contains(text).then_some(());
    until("the log names the value", || says("jobs: 0 must be 1 to 10000"));
    assert!(put(&client, "team-a/three").problem(429, "limit-jobs").detail.contains("jobs = 2"));
    // As a save that was cut, or a full disk.
    world.write("");
    until("the empty file is seen", || (reloads("failed") == 2.0).then_some(()));
    until("the log has the rule", || says("must have a limit"));
    assert!(put(&client, "team-a/three").problem(429, "limit-jobs").detail.contains("jobs = 2"));
    assert_eq!(reloads("loaded"), 1.0);
}

#[test]
fn a_bad_file_is_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], named: &str| {
        let base = ["--listen=127.0.0.1:0", "--auth=required"];
        crate::command::refused(&folder, &[&base[..], arguments].concat(), &[], named);
    };
    fs::write(folder.path().join("limits.toml"), "[default]\njob = 1\n").unwrap();
    refused(&["--limits=limits.toml"], "limits.toml: line 2: unknown field `job`");
    refused(&["--limits=none.toml"], "none.toml: cannot be read: ");
    refused(&["--limits=."], ".: is a directory; must be a regular file");
    fs::write(folder.path().join("empty.toml"), "").unwrap();
    refused(
        &["--limits=empty.toml"],
        "empty.toml: must have a limit; if no token has one, start the predictor",
    );
    let named = "limits: limits.toml has no effect";
    crate::command::refused(&folder, &["--listen=127.0.0.1:0"], &[("EVENSTEP_LIMITS", "limits.toml")], named);
}
