//! A deterministic simulation of the service: one scheduler decides the order of everything, from a seed.
//!
//! The job registry and the store are the real ones. The scheduler starts requests of clients that retry, repeat and
//! reorder them. It decides when a commit proceeds, and whether it fails or loses its confirmation. It drops requests,
//! advances the clock, and crashes the service. Between two decisions it waits until nothing else moves, so a seed always
//! gives the same run.
//!
//! - `EVENSTEP_TESTS_SEEDS=10000` runs that many seeds instead of 40, `EVENSTEP_TESTS_SEED=7` only one.
//! - A failure prints its seed and every decision of the run.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod commits;

mod ledger;

mod request;

mod world;

mod run;

mod cut;

mod eviction;

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Number of seeds in a test run.
const SEEDS: u64 = 40;

#[test]
fn every_seed_keeps_the_invariants() {
    let seeds = match (number("EVENSTEP_TESTS_SEED"), number("EVENSTEP_TESTS_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, seeds) => 0..seeds.unwrap_or(SEEDS),
    };
    let mut totals = run::Totals::default();
    for seed in seeds.clone() {
        let outcome = catch_unwind(AssertUnwindSafe(|| run::run(seed)));
        match outcome {
            Ok(done) => totals.add(&done.totals),
            Err(panic) => {
                eprintln!("seed {seed} failed; repeat it with EVENSTEP_TESTS_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{} seeds: {totals:?}", seeds.end - seeds.start);
    assert!(seeds.end - seeds.start < SEEDS || totals.cover_all_events(), "{totals:?}");
}

#[test]
fn a_seed_gives_the_same_run() {
    for seed in [1, 2, 3] {
        assert_eq!(run::run(seed).decisions, run::run(seed).decisions, "seed {seed}");
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: must be a number")))
}
