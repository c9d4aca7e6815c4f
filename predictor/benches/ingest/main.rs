//! Telemetry over HTTP to the real service in a separate process, compared with the bare insert of the same
//! rows. Batches, table and durability are the same. All in one run on one machine, alternating.
//!
//! `cargo bench -p evenstep-predictor --bench ingest [-- FLAGS]` prints rates and their ratios. With
//! `--overload SECONDS` it sends more than the store can write, and prints the memory of the service.
//! `--help` lists the flags.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark prints, and panics if its set-up fails"
)]

mod bare;
mod overload;
mod samples;
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use clap::Parser;
use evenstep_protocol::NodesView;
use evenstep_tests::Predictor;
use evenstep_tests::postgres::Database;
use tempfile::TempDir;

use samples::Batches;
use support::KeptAliveConnection;

/// Compare telemetry ingest with a bare insert of the same rows.
#[derive(Debug, Parser)]
struct Args {
    /// Batch sizes to measure, in samples, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000])]
    batches: Vec<usize>,
    /// Samples per measurement, in MB
    #[arg(long, default_value_t = 30)]
    megabytes: usize,
    /// Alternating measurements of each kind; the medians are compared
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Kept-alive connections, one per node
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Send more than the store can write, for this many seconds
    #[arg(long)]
    overload: Option<u64>,
    /// URL of a PostgreSQL database used as the store; it must allow creating databases (`scripts/postgres
    /// start`)
    #[arg(long)]
    postgres: Option<String>,
    /// Flag that cargo adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    match args.overload {
        Some(seconds) => {
            overload::run(&Place::new(&args), Duration::from_secs(seconds), args.connections);
        }
        None => compare(&args),
    }
}

/// A separate, empty store.
enum Place {
    Sqlite(TempDir),
    Postgres(Database),
}

impl Place {
    fn new(args: &Args) -> Self {
        match &args.postgres {
            Some(server) => Self::Postgres(Database::on(server)),
            None => Self::Sqlite(tempfile::tempdir().expect("a temporary folder")),
        }
    }

    /// Samples per second of a bare insert.
    fn bare(&self, nodes: &[Batches]) -> f64 {
        match self {
            Self::Sqlite(folder) => bare::sqlite(&folder.path().join("bare.db"), nodes),
            Self::Postgres(database) => bare::postgres(&database.url(), nodes),
        }
    }

    /// Starts the service with this store, as a process.
    fn start(&self) -> (Predictor, SocketAddr) {
        let binary = Path::new(env!("CARGO_BIN_EXE_evenstep-predictor"));
        let predictor = match self {
            Self::Sqlite(folder) => Predictor::start(binary, folder.path()),
            Self::Postgres(database) => Predictor::start_over(binary, &database.url(), &[]),
        };
        let address =
            predictor.url.trim_start_matches("http://").parse().expect("the address of the predictor");
        (predictor, address)
    }
}

fn compare(args: &Args) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "samples per second, {} connections, medians of {} alternating rounds; samples of {} bytes; {}; {cores} cores, which the \
         client shares",
        args.connections,
        args.rounds,
        samples::sample(0).len(),
        if args.postgres.is_some() {
            "PostgreSQL and COPY"
        } else {
            "SQLite WAL with a sync at every commit"
        }
    );
    println!("{:>8}{:>12}{:>12}{:>8}", "batch", "bare insert", "HTTP", "ratio");
    for size in &args.batches {
        let count = (args.megabytes << 20) / samples::sample(0).len() / size / args.connections;
        let nodes: Vec<Batches> =
            (0..args.connections).map(|node| Batches::new(node, *size, count.max(1))).collect();
        let (mut bare, mut http) = (vec![], vec![]);
        for _ in 0..args.rounds {
            bare.push(Place::new(args).bare(&nodes));
            http.push(through_http(&Place::new(args), &nodes));
        }
        let [bare, http] = [bare, http].map(median);
        println!("{size:>8}{bare:>12.0}{http:>12.0}{:>8.2}   aim: 0.60", http / bare);
    }
}

/// Samples per second from the first byte sent to the last acknowledgement.
fn through_http(place: &Place, nodes: &[Batches]) -> f64 {
    let (_predictor, address) = place.start();
    let ready = Barrier::new(nodes.len() + 1);
    let seconds = std::thread::scope(|scope| {
        let clients: Vec<_> = nodes
            .iter()
            .map(|node| {
                scope.spawn(|| {
                    let mut connected = KeptAliveConnection::to(address);
                    ready.wait();
                    for request in node.requests() {
                        let answer = connected.send(request);
                        assert_eq!(answer.status, 200, "{}", answer.body);
                    }
                })
            })
            .collect();
        ready.wait();
        let started = Instant::now();
        clients.into_iter().for_each(|client| client.join().expect("a client"));
        started.elapsed().as_secs_f64()
    });
    let total: usize = nodes.iter().map(Batches::samples).sum();
    let stored: NodesView =
        serde_json::from_str(&KeptAliveConnection::to(address).call("GET", "/v1/nodes", ""))
            .expect("the nodes");
    assert_eq!(stored.nodes.iter().map(|node| node.samples).sum::<u64>(), total as u64);
    total as f64 / seconds
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
