//! Duration of `/allocate`, compared with its lower bound: a bare axum handler that receives and sends the
//! same bytes, plus one bare commit of the same row. All in one run on one machine, alternating. The repeated iteration
//! is also requested over TLS with a token, from a second service with the same job.
//!
//! `cargo bench -p evenstep-predictor --bench allocate [-- ROUNDS]` prints a table of milliseconds and
//! ratios.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark prints, and panics if its set-up fails"
)]

mod support;

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::post;
use evenstep_predictor::access::Auth;
use evenstep_predictor::app::App;
use evenstep_predictor::clock::Clock;
use evenstep_predictor::config::Config;
use evenstep_server::config::defaults;
use evenstep_tests::certificates::Authority;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use support::{KeptAliveConnection, percentiles};
use tokio::runtime::Runtime;

const WORKERS: usize = 4;
/// Iterations before the measurement.
const WARM_UP: usize = 200;
/// Concurrent connections in the throughput measurement.
const CLIENTS: usize = 16;
/// Duration of each throughput measurement, in seconds.
const THROUGHPUT_S: f64 = 2.0;

fn main() {
    let rounds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(2000);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let service = start(&runtime, folder.path(), "service", defaults().expect("the defaults"));
    let mut asker = KeptAliveConnection::to(service);
    // The same job twice. The workers of the second can claim, so that its iterations are hedged.
    begin(&mut asker, "bench", false);
    begin(&mut asker, "hedged", true);
    let mut encrypted = connect_securely(&runtime, folder.path());
    begin(&mut encrypted, "bench", false);
    let answer = asker.call("POST", "/allocate", &allocate_request("bench", WARM_UP));
    let hedged = asker.call("POST", "/allocate", &allocate_request("hedged", WARM_UP));
    assert!(hedged.contains("\"tail\""), "noise of 10 % should lead to a tail: {hedged}");
    let bare = runtime.block_on(bare_handler(answer.clone()));
    let mut bare_asker = KeptAliveConnection::to(bare);
    let mut database = runtime.block_on(bare_database(folder.path().join("bare.db")));

    let (mut handler, mut commit, mut allocate, mut again, mut hedge, mut secret) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    for round in 0..rounds {
        let body = allocate_request("bench", WARM_UP + 1 + round);
        handler.push(timed(|| bare_asker.call("POST", "/", &body)));
        commit.push(timed(|| runtime.block_on(bare_commit(&mut database, round, &answer))));
        allocate.push(timed(|| asker.call("POST", "/allocate", &body)));
        again.push(timed(|| asker.call("POST", "/allocate", &body)));
        encrypted.call("POST", "/allocate", &body);
        secret.push(timed(|| encrypted.call("POST", "/allocate", &body)));
        let body = allocate_request("hedged", WARM_UP + 1 + round);
        hedge.push(timed(|| asker.call("POST", "/allocate", &body)));
    }
    let rows = [&mut handler, &mut commit, &mut allocate, &mut again, &mut hedge, &mut secret];
    let [handler, commit, allocate, again, hedge, secret] = rows.map(|times| percentiles(times));
    println!("{rounds} alternating rounds, {WORKERS} workers, SQLite WAL with a sync at every commit; ms");
    println!("{:<42}{:>8}{:>8}", "", "p50", "p99");
    for (name, [p50, p99]) in [
        ("bare axum handler, same bytes", handler),
        ("bare commit, same row", commit),
        ("/allocate, a new iteration", allocate),
        ("/allocate, a repeated iteration", again),
        ("/allocate, repeated, TLS 1.3 and token", secret),
        ("/allocate, a new iteration, hedged", hedge),
    ] {
        println!("{name:<42}{p50:>8.3}{p99:>8.3}");
    }
    let ratio = |at: usize| allocate[at] / (handler[at] + commit[at]);
    println!("{:<42}{:>8.2}{:>8.2}   aim: 3", "new iteration / (handler + commit)", ratio(0), ratio(1));
    println!(
        "{:<42}{:>8.2}{:>8.2}   aim: 1.5",
        "repeated iteration / handler",
        again[0] / handler[0],
        again[1] / handler[1]
    );
    println!(
        "{:<42}{:>8.2}{:>8.2}   aim: 1.3",
        "repeated, with TLS and token / without",
        secret[0] / again[0],
        secret[1] / again[1]
    );

    let body = allocate_request("bench", WARM_UP + rounds);
    let path = format!("/allocate?job_id=bench&iteration={}", WARM_UP + rounds);
    println!("\n{CLIENTS} connections, requests per second, client included, best of three, alternating");
    let mut best = [0.0f64; 3];
    for _ in 0..3 {
        best[0] = best[0].max(throughput(bare, "POST", "/", &body));
        best[1] = best[1].max(throughput(service, "POST", "/allocate", &body));
        best[2] = best[2].max(throughput(service, "GET", &path, ""));
    }
    println!("{:<42}{:>8.0}", "bare axum handler", best[0]);
    println!(
        "{:<42}{:>8.0}   bare is {:.2} times that; aim: 1.5",
        "POST of a repeated iteration",
        best[1],
        best[0] / best[1]
    );
    println!(
        "{:<42}{:>8.0}   bare is {:.2} times that",
        "GET of an allocated iteration",
        best[2],
        best[0] / best[2]
    );
}

/// Starts a service with its own store.
fn start(runtime: &Runtime, folder: &Path, name: &str, config: Config) -> SocketAddr {
    let store = format!("sqlite://{}", folder.join(format!("{name}.db")).display());
    let config = Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), store, ..config };
    let app = runtime.block_on(App::open(&config, Clock::system())).expect("the service opens");
    let address = app.address();
    runtime.spawn(app.serve(std::future::pending()));
    address
}

/// Starts a service with TLS and tokens, and connects to it.
fn connect_securely(runtime: &Runtime, folder: &Path) -> KeptAliveConnection {
    let authority = Authority::new("bench");
    let (certificate, key) = authority.issue("server").write(folder, "server");
    let config = Config {
        tls_cert: Some(certificate),
        tls_key: Some(key),
        auth: Some(Auth::Required),
        ..defaults().expect("the defaults")
    };
    let service = start(runtime, folder, "encrypted", config);
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(authority.certificate().as_bytes()).expect("a certificate");
    roots.add(ca).expect("a CA");
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = "127.0.0.1".try_into().expect("an address");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    let stream = TcpStream::connect(service).expect("the server listens");
    stream.set_nodelay(true).expect("a TCP stream");
    let authorization = format!("authorization: Bearer {}\r\n", create_token(folder));
    KeptAliveConnection::over(Box::new(StreamOwned::new(connection, stream)), authorization)
}

/// Creates a token in the store of the service `encrypted`.
fn create_token(folder: &Path) -> String {
    let store = format!("--store=sqlite://{}", folder.join("encrypted.db").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenstep-predictor"));
    let output =
        command.args(["token", "create", "--scope=trainer", &store]).output().expect("the command runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a token").trim_end().to_owned()
}

/// Creates a job and requests its first iterations.
fn begin(asker: &mut KeptAliveConnection, job: &str, claims: bool) {
    asker.call("PUT", &format!("/v1/jobs/{job}"), r#"{"global_batch":1024}"#);
    for worker in 0..WORKERS {
        let join = format!(r#"{{"worker":"node/{worker}","claims":{claims}}}"#);
        asker.call("POST", &format!("/v1/jobs/{job}/workers"), &join);
    }
    for iteration in 0..WARM_UP {
        asker.call("POST", "/allocate", &allocate_request(job, iteration));
    }
}

/// A request for an iteration with the reports of the previous one: speeds that nothing can forecast, and the drivers of
/// a trainer.
fn allocate_request(job: &str, iteration: usize) -> String {
    let report = |worker: usize| {
        let noise =
            0.95 + 0.1 * ChaCha8Rng::seed_from_u64((iteration * WORKERS + worker) as u64).random::<f64>();
        let (before, wave) = (iteration - 1, (iteration % 10) as f64 / 10.0);
        // Chunks of eight samples at the same cost per sample.
        let claimed = if job == "hedged" { 24 } else { 0 };
        let (own, time) = (256 - claimed, |samples: i32| 0.1 * noise * f64::from(samples) / 256.0);
        let tail = if claimed > 0 {
            let time = time(claimed);
            format!(
                r#""tail":{{"chunks":3,"samples":{claimed},"compute_time_s":{time},"claim_time_s":0.001}},"#
            )
        } else {
            String::new()
        };
        let time = time(own);
        format!(
            r#"{{"worker":"node/{worker}","iteration":{before},"local_batch":{own},"compute_time_s":{time},"barrier_wait_s":0.01,"loader_wait_s":0.001,{tail}"drivers":{{"psi_cpu_some":{wave},"run_queue_wait":0.08,"other_cpu":0.9,"own_cpu":0.97,"procs_running":3}}}}"#
        )
    };
    let reports: Vec<String> = if iteration == 0 { vec![] } else { (0..WORKERS).map(report).collect() };
    format!(
        r#"{{"job_id":"{job}","generation":{WORKERS},"iteration":{iteration},"reports":[{}]}}"#,
        reports.join(",")
    )
}

async fn bare_handler(answer: String) -> SocketAddr {
    let answer = Bytes::from(answer);
    let handler = move |body: Bytes| async move {
        std::hint::black_box(body);
        ([(header::CONTENT_TYPE, "application/json")], answer.clone())
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let app: Router = Router::new().route("/", post(handler));
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn bare_database(file: std::path::PathBuf) -> SqliteConnection {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging();
    let mut connection = options.connect().await.expect("a database");
    let create = "CREATE TABLE answer (iteration INTEGER PRIMARY KEY, answer TEXT NOT NULL) STRICT";
    sqlx::query(create).execute(&mut connection).await.expect("a table");
    connection
}

async fn bare_commit(connection: &mut SqliteConnection, iteration: usize, answer: &str) {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.expect("a transaction");
    sqlx::query("INSERT INTO answer VALUES (?1, ?2)")
        .bind(i64::try_from(iteration).expect("a small number"))
        .bind(answer)
        .execute(&mut *transaction)
        .await
        .expect("a row");
    transaction.commit().await.expect("a commit");
}

fn timed<T>(what: impl FnOnce() -> T) -> f64 {
    let started = Instant::now();
    std::hint::black_box(what());
    started.elapsed().as_secs_f64() * 1e3
}

fn throughput(address: SocketAddr, method: &str, path: &str, body: &str) -> f64 {
    let started = Instant::now();
    let until = started + Duration::from_secs_f64(THROUGHPUT_S);
    let count: usize = std::thread::scope(|scope| {
        let client = || {
            let mut connected = KeptAliveConnection::to(address);
            let mut count = 0;
            while Instant::now() < until {
                connected.call(method, path, body);
                count += 1;
            }
            count
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    count as f64 / started.elapsed().as_secs_f64()
}
