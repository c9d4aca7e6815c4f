//! Predictors of two versions on one PostgreSQL, as during a rolling upgrade.

use std::env;
use std::path::{Path, PathBuf};

use evenstep_tests::wait::until;
use evenstep_tests::{Client, Database, Predictor, Store, binaries};

use crate::audit;
use crate::ledger::{JOBS, Ledger};
use crate::load::{self, Load};

/// Names the predictor of the previous release, as `scripts/previous` prints it.
const PREVIOUS_VARIABLE: &str = "EVENSTEP_TESTS_PREVIOUS";
/// Overrides the number of upgrades, [`UPGRADES`].
const UPGRADES_VARIABLE: &str = "EVENSTEP_TESTS_UPGRADES";
const UPGRADES: u64 = 1;
/// Number of successful requests between two changes.
const REQUESTS: u64 = 60;

#[test]
fn two_versions_share_one_database() {
    let name = "versions::two_versions_share_one_database";
    let Some(previous) = previous(name) else { return };
    let Some(current) = binaries::find("evenstep-predictor", name) else { return };
    let upgrades = env::var(UPGRADES_VARIABLE).map_or(UPGRADES, |number| number.parse().expect("a number"));
    for seed in 0..upgrades {
        let Some(database) = Database::shared(name) else { return };
        upgrade(&previous, &current, &Store::Postgres(database), seed);
    }
}

fn previous(test: &str) -> Option<PathBuf> {
    let path = env::var_os(PREVIOUS_VARIABLE).filter(|path| !path.is_empty());
    if path.is_none() {
        binaries::skip(test, &format!("{PREVIOUS_VARIABLE} names no predictor (scripts/previous)"));
    }
    path.map(PathBuf::from)
}

/// Replaces two predictors of the previous version one after the other, under load.
fn upgrade(previous: &Path, current: &Path, store: &Store, seed: u64) {
    let ledger = Ledger::default();
    let start = |binary| Predictor::start_over(binary, &store.address(), &["--lease-s=1"]);
    let end = |mut predictor: Predictor| {
        predictor.process.terminate();
        assert!(predictor.process.wait().success(), "{}", predictor.process.output());
    };
    let (leaving, old) = (start(previous), start(previous));
    load::begin(&Client::patient(&leaving.url), &ledger);
    run(&[&leaving, &old], &ledger, seed, |load| load.goes_on(REQUESTS));
    end(leaving);
    // The new version changes the schema while the old one serves.
    let new = run(&[&old], &ledger, seed + 1000, |load| {
        load.goes_on(REQUESTS);
        let new = start(current);
        load.goes_on(REQUESTS);
        new
    });
    // Each version continues the jobs of the other one.
    run(&[&old, &new], &ledger, seed + 2000, |load| {
        for (owner, other) in [(&old, &new), (&new, &old), (&old, &new)] {
            owner.process.stop();
            owns(other);
            load.goes_on(REQUESTS);
            owner.process.go_on();
            load.goes_on(REQUESTS);
        }
    });
    for predictor in [&old, &new] {
        audit::all(&Client::patient(&predictor.url), &ledger);
    }
    end(old);
    let joining = start(current);
    run(&[&new, &joining], &ledger, seed + 3000, |load| load.goes_on(REQUESTS));
    audit::all(&Client::patient(&joining.url), &ledger);
    end(new);
    end(joining);
    audit::store(store, &ledger);
    let told = ledger.told();
    eprintln!("{} answers, {} reports, all as told", told.answers.len(), told.reports.len());
}

fn run<T>(predictors: &[&Predictor], ledger: &Ledger, seed: u64, meanwhile: impl FnOnce(&Load) -> T) -> T {
    let urls: Vec<&str> = predictors.iter().map(|predictor| predictor.url.as_str()).collect();
    let load = Load::default();
    load.run_on(&urls, ledger, seed, || meanwhile(&load))
}

/// Waits until a predictor owns the first job.
fn owns(predictor: &Predictor) {
    let (client, path) = (predictor.client(), format!("/v1/jobs/{}", JOBS[0]));
    until("the other predictor takes over", || (client.get(&path).status == 200).then_some(()));
}
