//! Two predictors on one PostgreSQL, under load. One is killed, stopped or terminated, again and again.

use std::env;
use std::time::Instant;

use evenstep_tests::postgres::Database;
use evenstep_tests::wait::until;
use evenstep_tests::{Client, Predictor, Store, binaries};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::audit;
use crate::ledger::{JOBS, Ledger};
use crate::load::{self, Load};

/// Overrides the number of failovers, [`KILLS`].
const KILLS_VARIABLE: &str = "EVENSTEP_TESTS_FAILOVERS";
const KILLS: u64 = 3;
/// Maximum number of successful requests before a failover.
const REQUESTS_MAX: u64 = 120;
const LEASE_S: f64 = 3.0;

/// Ways of taking a predictor out of service.
#[derive(Debug, Clone, Copy)]
enum FailureMode {
    /// `kill -9`.
    Killed,
    /// Stopped for longer than its lease, and then continued.
    Stopped,
    /// Terminated, as in a rolling restart.
    Ended,
}

#[test]
fn no_two_predictors_allocate_the_same_iteration() {
    let name = "failover::no_two_predictors_allocate_the_same_iteration";
    let Some(binary) = binaries::find("evenstep-predictor", name) else { return };
    let Some(database) = Database::shared(name) else { return };
    let store = Store::Postgres(database);
    let ledger = Ledger::default();
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let lease = format!("--lease-s={LEASE_S}");
    let start = || Predictor::start_over(&binary, &store.address(), &[&lease, "--refit-interval-s=1"]);
    let mut predictors = [start(), start()];
    load::begin(&Client::patient(&predictors[0].url), &ledger);
    let mut taken_over = [Vec::new(), Vec::new(), Vec::new()];
    for kill in 0..kills() {
        let urls = predictors.each_ref().map(|predictor| predictor.url.clone());
        let way = [FailureMode::Killed, FailureMode::Stopped, FailureMode::Ended][kill as usize % 3];
        let load = Load::default();
        let (out, s) = load.run_on(&urls.each_ref().map(String::as_str), &ledger, kill, || {
            load.goes_on(random.random_range(0..REQUESTS_MAX));
            let out = owner(&predictors);
            let other = Client::new(&urls[1 - out]);
            let begun = Instant::now();
            take_out(&mut predictors[out], way);
            until("the other one takes over", || (other.get(&path()).status == 200).then_some(()));
            let s = begun.elapsed().as_secs_f64();
            if matches!(way, FailureMode::Stopped) {
                predictors[out].process.go_on();
                // The stopped predictor had allocations of this job in memory, and must not return them as
                // the owner.
                let stale = Client::new(&urls[out]).get(&path());
                assert!(matches!(stale.status, 307 | 503), "{stale:?}");
            }
            load.goes_on(REQUESTS_MAX / 4);
            (out, s)
        });
        taken_over[way as usize].push(s);
        if !matches!(way, FailureMode::Stopped) {
            predictors[out].restart();
        }
        for predictor in &predictors {
            audit::some(&Client::patient(&predictor.url), &ledger, &mut random);
        }
    }
    audit::all(&Client::patient(&predictors[0].url), &ledger);
    for predictor in &mut predictors {
        predictor.process.terminate();
        assert!(predictor.process.wait().success(), "{}", predictor.process.output());
    }
    audit::store(&store, &ledger);
    let told = ledger.told();
    eprintln!(
        "{} allocations, all consistent; lease {LEASE_S} s, goal lease + 2 s; seconds until the other predictor responds:",
        told.answers.len()
    );
    for (way, mut seconds) in
        [FailureMode::Killed, FailureMode::Stopped, FailureMode::Ended].into_iter().zip(taken_over)
    {
        seconds.sort_by(f64::total_cmp);
        if let Some(most) = seconds.last() {
            eprintln!(
                "{way:?}: {} times, median {:.2}, maximum {most:.2}",
                seconds.len(),
                seconds[seconds.len() / 2]
            );
        }
    }
}

fn kills() -> u64 {
    let Ok(kills) = env::var(KILLS_VARIABLE) else { return KILLS };
    kills.parse().unwrap_or_else(|_| panic!("{KILLS_VARIABLE}={kills}: must be a number"))
}

fn path() -> String {
    format!("/v1/jobs/{}", JOBS[0])
}

/// Returns the index of the predictor that owns the first job.
fn owner(predictors: &[Predictor; 2]) -> usize {
    until("a predictor owns the job", || {
        predictors.iter().position(|predictor| predictor.client().get(&path()).status == 200)
    })
}

fn take_out(predictor: &mut Predictor, way: FailureMode) {
    match way {
        FailureMode::Killed => predictor.process.kill(),
        FailureMode::Stopped => predictor.process.stop(),
        FailureMode::Ended => predictor.process.terminate(),
    }
}
