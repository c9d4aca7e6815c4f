//! `kill -9` of the predictor at random moments under load, again and again.

use std::env;
use std::fs;
use std::hint::spin_loop;
use std::path::Path;
use std::time::{Duration, Instant};

use evenstep_tests::store::{sqlite_file, sqlite_rows};
use evenstep_tests::{Client, Database, Predictor, Store, binaries};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::audit;
use crate::ledger::{JOBS, Ledger};
use crate::load::{self, Load};

/// Overrides the number of kills, [`KILLS`].
const KILLS_VARIABLE: &str = "EVENSTEP_TESTS_KILLS";
const KILLS: u64 = 10;
/// Maximum number of successful requests before the kill.
const REQUESTS_MAX: u64 = 80;
/// Maximum delay of the kill after these requests, in microseconds, so that every step of a request is hit.
const MOMENT_US_MAX: u64 = 2_000;
/// Maximum delay of a kill during the start, in microseconds: the duration of a start.
const START_US_MAX: u64 = 60_000;

#[test]
fn allocations_survive_any_kill_on_sqlite() {
    let name = "kills::allocations_survive_any_kill_on_sqlite";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    outlives_kills(&binary, &Store::sqlite(), &[]);
}

#[test]
fn allocations_survive_any_kill_on_postgres() {
    let name = "kills::allocations_survive_any_kill_on_postgres";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(database) = Database::shared(name) else { return };
    // Both processes have one name, so that a new process takes over the jobs of the old one at once.
    outlives_kills(&binary, &Store::Postgres(database), &["--url=http://predictor.test"]);
}

fn kills() -> u64 {
    let Ok(kills) = env::var(KILLS_VARIABLE) else { return KILLS };
    kills.parse().unwrap_or_else(|_| panic!("{KILLS_VARIABLE}={kills}: must be a number"))
}

fn outlives_kills(binary: &Path, store: &Store, flags: &[&str]) {
    let ledger = Ledger::default();
    let mut random = ChaCha8Rng::seed_from_u64(6);
    // Models are stored in parallel with the requests.
    let flags: Vec<&str> = flags.iter().copied().chain(["--refit-interval-s=1"]).collect();
    let mut predictor = Predictor::start_over(binary, &store.address(), &flags);
    load::begin(&Client::patient(&predictor.url), &ledger);
    let kills = kills();
    for kill in 0..kills {
        let load = Load::default();
        let (requests, moment_us) =
            (random.random_range(0..REQUESTS_MAX), random.random_range(0..MOMENT_US_MAX));
        let url = predictor.url.clone();
        load.run(&url, &ledger, kill, || {
            load.goes_on(requests);
            spin(moment_us);
            predictor.process.kill();
        });
        opens_clean(store);
        // Sometimes it is killed again before it has started.
        if random.random_bool(0.25) {
            let moment_us = random.random_range(0..START_US_MAX);
            predictor.start_and_kill(|| spin(moment_us));
            opens_clean(store);
        }
        predictor.restart();
        audit::some(&Client::patient(&predictor.url), &ledger, &mut random);
    }
    audit::all(&Client::patient(&predictor.url), &ledger);
    predictor.process.terminate();
    assert!(predictor.process.wait().success(), "{}", predictor.process.output());
    audit::store(store, &ledger);
    opens_clean(store);
    there_was_load(&ledger, kills);
}

/// Lets a moment pass that no test depends on.
fn spin(us: u64) {
    let end = Instant::now() + Duration::from_micros(us);
    while Instant::now() < end {
        spin_loop();
    }
}

/// Checks that the store is intact. Reads a copy, so that the predictor finds the store unchanged.
fn opens_clean(store: &Store) {
    let Store::Sqlite(folder) = store else { return };
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        // The shared memory belongs to running processes. Without it SQLite rebuilds it from the log, as
        // after a power failure.
        if !entry.file_name().to_string_lossy().ends_with("-shm") {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    let file = sqlite_file(copy.path());
    assert_eq!(sqlite_rows(&file, "PRAGMA integrity_check"), [[Some("ok".to_owned())]]);
    assert!(sqlite_rows(&file, "SELECT \"table\" FROM pragma_foreign_key_check").is_empty());
}

fn there_was_load(ledger: &Ledger, kills: u64) {
    let told = ledger.told();
    let samples: u64 = told.samples.values().map(|samples| samples.acknowledged).sum();
    let generation = told.generations[JOBS[0]];
    eprintln!(
        "{kills} kills: {} answers, {} reports, {samples} samples, {generation} generations",
        told.answers.len(),
        told.reports.len()
    );
    assert!(told.answers.len() as u64 > kills && samples > 20 * kills && generation > kills / 8);
}
